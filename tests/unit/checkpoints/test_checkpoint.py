"""The files beside Spark's checkpoint: one topic, its outages, and its owners."""

import re
import shutil
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from checkpoints.checkpoint import OUTAGES_KEPT, Checkpoint, new_namespace
from checkpoints.metadata import Epoch, Identity, KnownOutage, OwnerRecord, configs_of
from kafka_why.local_files import FolderError, FolderNotWritable
from state.config import CoordinatorConfig
from state.protocol import Outage
from tests.harness.checkpoints import AFTER_MS, NEW, OLD, path_of, plan, reopened_by_next_owner, spark_of

IDENTITY = Identity("cluster-1", "eu-requests", "topic-1", 4, "00000000-0000-0000-0000-000000000001", 64)


def test_the_first_identity_and_its_namespace_are_pinned(checkpoint: Checkpoint) -> None:
    """A file that a crash left half written beside it does not count."""
    (path_of(checkpoint) / "identity.json.new").write_bytes(b"{")
    assert checkpoint.pin(IDENTITY) == reopened_by_next_owner(checkpoint).pin(IDENTITY) == IDENTITY
    found = msgspec.structs.replace(IDENTITY, member_id_namespace=new_namespace())
    assert found != IDENTITY
    assert checkpoint.pin(found) == checkpoint.identity() == IDENTITY


@pytest.mark.parametrize(
    ("given", "other", "refusal"),
    [
        ({"shards": 8}, {"shards": 64}, r"has 8 shards of a partition, not 64\. .*state export"),
        (
            {"state_partitions": 2},
            {"state_partitions": 3},
            r"is kept in 2 partitions, not 3\. .*state export.*state import",
        ),
    ],
)
def test_the_numbers_of_shards_and_of_partitions_are_pinned(
    checkpoint: Checkpoint, given: dict[str, Any], other: dict[str, Any], refusal: str
) -> None:
    for wish in (given, {}, given):
        pinned = msgspec.structs.asdict(checkpoint.pin(IDENTITY, **wish))
        assert pinned.items() >= given.items()
    with pytest.raises(FolderError, match=refusal):
        checkpoint.pin(IDENTITY, **other)


@pytest.mark.parametrize(
    ("field", "now"),
    [
        ("cluster_id", "cluster-2"),
        ("requests_topic", "us-requests"),
        ("requests_topic_id", "topic-2"),
        ("request_partitions", 8),
    ],
)
def test_checkpoint_of_another_topic_is_refused(checkpoint: Checkpoint, field: str, now: object) -> None:
    checkpoint.pin(IDENTITY)
    with pytest.raises(FolderError) as raised:
        checkpoint.pin(msgspec.structs.replace(IDENTITY, **{field: now}))
    expected = f"belongs to another topic: .*{getattr(IDENTITY, field)!r} and is {now!r}"
    assert re.search(expected, str(raised.value))
    assert IDENTITY.member_id_namespace not in str(raised.value), "it is a secret"
    assert checkpoint.pin(IDENTITY) == IDENTITY


@pytest.mark.parametrize("name", ["identity.json", "owners/1.json"])
def test_a_flipped_bit_in_any_file_is_detected(checkpoint: Checkpoint, name: str) -> None:
    """An unnoticed one would change a namespace, a setting or an outage, and so members and answers."""
    checkpoint.pin(IDENTITY)
    checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS)
    kept = checkpoint.identity(), checkpoint.record()
    path = path_of(checkpoint) / name
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            assert (checkpoint.identity(), checkpoint.record()) == kept
        except FolderError as error:
            assert f"{name} is damaged" in str(error)


def test_outage_applies_to_batches_not_yet_planned(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 6, 5)
    assert checkpoint.store_outage(100, 900) == [KnownOutage(7, Outage(100, 900))]
    assert checkpoint.store_outage(100, 1_200) == [KnownOutage(7, Outage(100, 1_200))], (
        "no batch knew of the one before"
    )
    plan(checkpoint, 8, 8)
    outages = [KnownOutage(7, Outage(100, 1_200)), KnownOutage(9, Outage(2_000, 2_001))]
    assert checkpoint.store_outage(2_000, 2_001) == outages
    plan(checkpoint, 9, 9)
    assert checkpoint.store_outage(3_000, 3_000) == outages, "no time passed, or the clock was set back"
    assert reopened_by_next_owner(checkpoint).store_outage(3_000, 2_999) == outages


def test_only_the_latest_outages_are_kept(checkpoint: Checkpoint) -> None:
    known: list[KnownOutage] = []
    for batch in range(OUTAGES_KEPT + 5):
        plan(checkpoint, batch, batch)
        known = checkpoint.store_outage(10 * batch, 10 * batch + 1)
    assert [outage.from_batch for outage in known] == list(range(6, OUTAGES_KEPT + 6))


@pytest.mark.parametrize(
    ("lines", "ends"),
    [
        (['{"requests":{"0":17,"1":0}}'], {"requests": {0: 17, 1: 0}, "other": {}}),
        (
            ['{"requests":{"0":17,"1":0}}', '{"sightings":{"0":9}}'],
            {"requests": {0: 17, 1: 0}, "sightings": {0: 9}},
        ),
        (["-", '{"requests":{"0":17,"1":0}}'], {"requests": {0: 17, 1: 0}}),
    ],
)
def test_planned_ends_of_a_batch_are_read_from_sparks_offset_log(
    checkpoint: Checkpoint, lines: list[str], ends: dict[str, dict[int, int]]
) -> None:
    plan(checkpoint, 3, 2)
    (spark_of(checkpoint) / "offsets" / "3").write_text("\n".join(["v1", '{"batchWatermarkMs":5}', *lines]))
    assert {topic: checkpoint.planned_ends(3, topic) for topic in ends} == ends
    assert checkpoint.planned_ends(4, "requests") == checkpoint.planned_ends(-1, "requests") == {}


def test_a_checkpoint_that_lost_a_committed_batch_is_refused(checkpoint: Checkpoint) -> None:
    """Otherwise Spark would silently handle its requests again."""
    plan(checkpoint, 7, 6)
    for batch, end in ((5, 30), (7, 42)):
        (spark_of(checkpoint) / "offsets" / str(batch)).write_text(
            f'v1\n{{}}\n{{"requests":{{"0":{end},"1":9}}}}'
        )
    checkpoint.check_committed("requests")
    checkpoint.store_committed(7, "requests")
    checkpoint.check_committed("requests")
    for batch in (6, 7):
        (spark_of(checkpoint) / "offsets" / str(batch)).unlink()
    with pytest.raises(FolderError, match=r"batch 7 was committed.* is 5\. 12 records of requests that"):
        reopened_by_next_owner(checkpoint).check_committed("requests")
    shutil.rmtree(spark_of(checkpoint))
    with pytest.raises(FolderError, match=r"batch 7 was committed.* is none\. 51 records of requests that"):
        checkpoint.check_committed("requests")


def test_plan_replaced_by_another_driver_after_the_commit_is_refused(checkpoint: Checkpoint) -> None:
    """The next batch begins where the plan ends, so it would read requests again, or skip some."""
    plan(checkpoint, 7, 7)
    offsets = spark_of(checkpoint) / "offsets" / "7"
    offsets.write_text('v1\n{}\n{"requests":{"0":42}}')
    checkpoint.store_committed(7, "requests", {0: 42})
    checkpoint.check_committed("requests")
    offsets.write_text('v1\n{}\n{"requests":{"0":40}}')
    with pytest.raises(
        FolderError, match=r"offsets/7 was replaced .*to \{0: 40\}, .*to \{0: 42\}"
    ) as refused:
        reopened_by_next_owner(checkpoint).check_committed("requests")
    assert 'Make {"requests":{"0":42}} the last line of that file' in str(refused.value)


def test_first_of_concurrently_pinned_identities_is_kept(checkpoint: Checkpoint) -> None:
    """Two coordinators start on a new checkpoint, and each has read it before the other one writes."""
    late = Checkpoint.at(path_of(checkpoint))
    assert late.pin(IDENTITY) == IDENTITY
    found = msgspec.structs.replace(IDENTITY, member_id_namespace=new_namespace())
    assert not checkpoint.files.create("identity.json", msgspec.json.encode(found))
    assert checkpoint.identity() == IDENTITY
    assert {name for name in checkpoint.files.names("") if name != "owners"} == {"identity.json"}


def test_a_damaged_offset_file_is_named(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 7, 6)
    with pytest.raises(
        FolderError, match=f"{re.escape(str(spark_of(checkpoint) / 'offsets' / '7'))} is damaged"
    ):
        checkpoint.planned_ends(7, "requests")


@pytest.mark.parametrize("name", ["identity", "epochs", "outages", "committed"])
def test_file_that_does_not_fit_on_the_disk_is_named(checkpoint: Checkpoint, name: str) -> None:
    file = "identity.json" if name == "identity" else "owners/1.json"
    checkpoint.pin(msgspec.structs.replace(IDENTITY, requests_topic_id=""))
    (path_of(checkpoint) / f"{file}.new").symlink_to("/dev/full")
    write: dict[str, Callable[[], object]] = {
        "identity": lambda: checkpoint.pin(IDENTITY),
        "epochs": lambda: checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS),
        "outages": lambda: checkpoint.store_outage(100, 900),
        "committed": lambda: checkpoint.store_committed(1, "requests"),
    }
    with pytest.raises(FolderNotWritable, match=rf"{file} cannot be written: No space left on device"):
        write[name]()


def test_new_owner_inherits_outages_and_deposes_the_previous_one(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 6, 5)
    known = checkpoint.store_outage(100, 900)
    checkpoint.check_owner(1)
    assert reopened_by_next_owner(checkpoint).record() == OwnerRecord(outages=known)
    for refused in (checkpoint.check_owner, Checkpoint.at(path_of(checkpoint)).own):
        with pytest.raises(FolderError, match="record of a later owner, epoch 2; this one is 1"):
            refused(1)


def test_records_written_by_a_deposed_owner_are_ignored(checkpoint: Checkpoint) -> None:
    """A deposed owner may sleep while another takes over, and then continue."""
    plan(checkpoint, 6, 5)
    later = reopened_by_next_owner(checkpoint)
    checkpoint.store_outage(100, 900)
    checkpoint.store_epoch(NEW, [], "1", after_ms=AFTER_MS)
    assert later.record() == Checkpoint.at(path_of(checkpoint)).record() == OwnerRecord()


def test_the_records_of_the_last_two_owners_are_kept(checkpoint: Checkpoint) -> None:
    for _ in range(4):
        checkpoint = reopened_by_next_owner(checkpoint)
    assert sorted(checkpoint.files.names("owners")) == ["4.json", "5.json"]


def test_new_configuration_applies_from_the_first_unplanned_batch(checkpoint: Checkpoint) -> None:
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
    assert reopened_by_next_owner(checkpoint).store_epoch(OLD, [], "2", after_ms=AFTER_MS) == epochs


def test_batch_planned_late_by_an_earlier_owner_gets_the_new_configuration(checkpoint: Checkpoint) -> None:
    """The new owner has read batch 6. Then the earlier owner's driver wakes up and plans batch 7."""
    checkpoint.store_epoch(OLD, [], "1", after_ms=AFTER_MS)
    plan(checkpoint, 7, 5)
    assert checkpoint.store_epoch(NEW, [], "1", after_ms=AFTER_MS, from_batch=7)[-1] == Epoch(
        7, NEW, [], "1", AFTER_MS
    )


def test_empty_folder_begins_with_the_current_configuration(checkpoint: Checkpoint) -> None:
    """A configuration without a batch is forgotten. If the file is lost, each batch has the current one."""
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


def test_configuration_in_force_between_two_batches_is_kept(checkpoint: Checkpoint) -> None:
    """Requests were answered early between the two starts, and no batch was planned."""
    checkpoint.store_epoch(OLD, [], "1", after_ms=0)
    plan(checkpoint, 6, 6)
    checkpoint.store_epoch(NEW, [], "1", after_ms=900)
    assert checkpoint.store_epoch(OLD, [], "1", after_ms=950) == [
        Epoch(0, OLD, [], "1"),
        Epoch(7, NEW, [], "1", 900),
        Epoch(7, OLD, [], "1", 950),
    ]


def test_configuration_change_applies_after_its_recorded_time() -> None:
    base = CoordinatorConfig(group_max_size=3)
    configs = configs_of([Epoch(0, OLD, [], "1", 50), Epoch(7, NEW, [], "1", 900)], base)
    assert [configs.at(at_ms).group_max_size for at_ms in (0, 50, 900, 901)] == [5, 5, 5, 7]
    assert configs_of([], base).at(0) == base
