"""A batch that code with other rules has planned is not run again."""

from pathlib import Path

import pytest

from checkpoints.checkpoint import SAME_RULES, Checkpoint, check_answered, check_planned, code_version
from checkpoints.metadata import Epoch, Identity, OwnerRecord
from kafka_why.local_files import FolderError

IDENTITY = Identity("cluster", "requests", "topic", 1, "00000000-0000-0000-0000-000000000001", 64)
OTHER, OURS = "0.0.1", SAME_RULES[-1]
BY_OTHER, BY_OURS = Epoch(0, {}, [], OTHER), Epoch(3, {}, [], OURS)


def checkpoint_with(path: Path, planned: int, committed: int, *epochs: Epoch) -> Checkpoint:
    """Return a checkpoint whose batches are planned up to `planned`, and committed up to `committed`."""
    for log, last in (("offsets", planned), ("commits", committed)):
        (path / "spark" / log).mkdir(parents=True)
        for batch in range(last + 1):
            (path / "spark" / log / str(batch)).touch()
    checkpoint = Checkpoint.at(path)
    if epochs:
        checkpoint.create(IDENTITY, OwnerRecord(list(epochs)))
    return checkpoint


def test_this_version_runs_its_own_batches() -> None:
    """A new version is appended to SAME_RULES, or begins a new list."""
    assert code_version() == OURS


@pytest.mark.parametrize(
    ("planned", "committed", "epochs"),
    [
        (-1, -1, ()),
        (0, -1, ()),
        (2, 2, (BY_OTHER,)),
        (3, 3, (BY_OTHER, BY_OURS)),
        (3, 2, (BY_OTHER, BY_OURS)),
        (9, 8, (BY_OTHER, BY_OURS)),
    ],
)
def test_batches_committed_or_planned_by_equal_rules_do_not_block_an_upgrade(
    tmp_path: Path, planned: int, committed: int, epochs: tuple[Epoch, ...]
) -> None:
    check_planned(checkpoint_with(tmp_path, planned, committed, *epochs), OURS)


def test_planned_batch_of_a_version_with_other_rules_is_refused_by_name(tmp_path: Path) -> None:
    """The epoch of a later batch does not count."""
    checkpoint = checkpoint_with(tmp_path, 2, 1, BY_OTHER, BY_OURS)
    with pytest.raises(
        FolderError,
        match=rf"batch 2 was planned by version {OTHER} .* This is version {OURS}.* Start version {OTHER} on",
    ):
        check_planned(checkpoint, OURS)


@pytest.mark.parametrize(
    ("is_ahead", "epochs"), [(False, (BY_OTHER,)), (True, (BY_OTHER, BY_OURS)), (True, ())]
)
def test_only_answers_of_other_rules_without_a_planned_batch_block_an_upgrade(
    tmp_path: Path, is_ahead: bool, epochs: tuple[Epoch, ...]
) -> None:
    check_answered(checkpoint_with(tmp_path / "well", 2, 2, *epochs), OURS, is_ahead=is_ahead)
    checkpoint = checkpoint_with(tmp_path / "other", 2, 2, BY_OTHER)
    with pytest.raises(FolderError, match=rf"version {OTHER} was ended before .* Start version {OTHER} on"):
        check_answered(checkpoint, OURS, is_ahead=True)
