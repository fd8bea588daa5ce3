"""The configurations of a checkpoint: the first batch that knows each, and the time of each."""

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, OwnerRecord, configs_of
from state.config import CoordinatorConfig
from tests.harness.checkpoints import AFTER_MS, NEW, OLD, again, plan


def test_a_new_configuration_starts_at_the_first_batch_that_is_not_planned(checkpoint: Checkpoint) -> None:
    checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS)
    plan(checkpoint, 6, 5)
    assert checkpoint.store_epoch(NEW, [], "1", after_ms=AFTER_MS) == [
        Epoch(0, OLD, [], "1"),
        Epoch(7, NEW, [], "1", AFTER_MS),
    ]
    assert checkpoint.store_epoch(NEW, [], "2", after_ms=AFTER_MS)[1:] == [
        Epoch(7, NEW, [], "2", AFTER_MS)
    ], "the one before never ran"
    plan(checkpoint, 8, 8)
    epochs = [Epoch(0, OLD, [], "1"), Epoch(7, NEW, [], "2", AFTER_MS), Epoch(9, OLD, [], "2", AFTER_MS)]
    assert checkpoint.store_epoch(OLD, [], "2", after_ms=AFTER_MS) == epochs
    assert again(checkpoint).store_epoch(OLD, [], "2", after_ms=AFTER_MS) == epochs


def test_batch_planned_late_by_an_earlier_owner_has_the_configuration(checkpoint: Checkpoint) -> None:
    """The new owner has looked at batch 6. Then the driver of the one before wakes up and plans batch 7."""
    checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS)
    plan(checkpoint, 7, 5)
    assert checkpoint.store_epoch(NEW, [], "1", after_ms=AFTER_MS, from_batch=7)[-1] == Epoch(
        7, NEW, [], "1", AFTER_MS
    )


def test_empty_folder_begins_with_the_current_configuration(checkpoint: Checkpoint) -> None:
    """What never ran is forgotten, and every batch has a configuration even if the file is lost."""
    for settings in (OLD, NEW):
        assert checkpoint.store_epoch(settings, [], "1", after_ms=0) == [Epoch(0, settings, [], "1")]
    plan(checkpoint, 6, 5)
    checkpoint.rewrite(OwnerRecord())
    assert checkpoint.store_epoch(NEW, [], "1", after_ms=AFTER_MS) == [Epoch(0, NEW, [], "1")]


def test_skipped_record_is_left_out_of_the_batch_it_stopped(checkpoint: Checkpoint) -> None:
    """That batch runs again under its settings. The new settings start after it."""
    checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS)
    plan(checkpoint, 6, 5)
    skipping = [Epoch(0, OLD, [], "1"), Epoch(6, OLD, ["eu-requests-0-1"], "1")]
    assert checkpoint.store_epoch(OLD, ["eu-requests-0-1"], "1", after_ms=AFTER_MS) == skipping
    assert checkpoint.store_epoch(NEW, ["eu-requests-0-1"], "1", after_ms=AFTER_MS) == [
        *skipping,
        Epoch(7, NEW, ["eu-requests-0-1"], "1", AFTER_MS),
    ]


def test_a_skipped_record_stays_skipped(checkpoint: Checkpoint) -> None:
    """Later starts that do not name it skip it too, because any of them may run the batch again."""
    checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS)
    plan(checkpoint, 6, 5)
    first = checkpoint.store_epoch(OLD, ["a-0-1"], "1", after_ms=AFTER_MS)
    assert checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS) == first
    assert checkpoint.store_epoch(OLD, ["a-0-1", "a-0-1"], "1", after_ms=AFTER_MS) == first
    both = checkpoint.store_epoch(OLD, ["a-0-2"], "1", after_ms=AFTER_MS)
    assert both == [Epoch(0, OLD, [], "1"), Epoch(6, OLD, ["a-0-1", "a-0-2"], "1")]
    plan(checkpoint, 6, 6)
    assert checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS) == both


def test_configuration_without_a_batch_is_kept_if_time_passed_under_it(checkpoint: Checkpoint) -> None:
    """Requests were answered early between the two starts, and no batch was planned."""
    checkpoint.store_epoch(OLD, [], "1", after_ms=0)
    plan(checkpoint, 6, 6)
    checkpoint.store_epoch(NEW, [], "1", after_ms=900)
    assert checkpoint.store_epoch(OLD, [], "1", after_ms=950) == [
        Epoch(0, OLD, [], "1"),
        Epoch(7, NEW, [], "1", 900),
        Epoch(7, OLD, [], "1", 950),
    ]


def test_configuration_of_an_epoch_applies_after_its_time() -> None:
    base = CoordinatorConfig(group_max_size=3)
    configs = configs_of([Epoch(0, OLD, [], "1", 50), Epoch(7, NEW, [], "1", 900)], base)
    assert [configs.at(at_ms).group_max_size for at_ms in (0, 50, 900, 901)] == [5, 5, 5, 7]
    assert configs_of([], base).at(0) == base
