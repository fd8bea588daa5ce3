"""Moves of a coordinator's state: the new folder's identity, and its configurations and outages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from checkpoints import codec
from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import CommittedBatch, Epoch, Identity, KnownOutage, OwnerRecord
from checkpoints.sealed_file import ExportedGroup, ExportFile, ExportHeader, write_export
from checkpoints.spark_logs import PlannedBatch
from kafka_why.contract.kafka.history import Offset
from kafka_why.errors import UserFacingError
from kafka_why.local_files import FolderError
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.group import PendingOffsets
from state.protocol import Outage
from streaming.query.admission import MAX_SHARDS
from streaming.service.ownership.owner import owner_id_of
from streaming.service.stored_state import moving
from streaming.service.stored_state.moving import header_of, identity_for, import_state
from tests.harness.checkpoints import spark_of
from tests.harness.disk_steps import record_disk_steps

IDENTITY = Identity("c", "eu-requests", "t", 2, "00000000-0000-0000-0000-000000000001", 16)
BATCH = 7
NO_SPARK = cast(SparkSession, None)


def epoch(from_batch: int) -> Epoch:
    return Epoch(from_batch, {"group.max.size": 1 + from_batch}, [], "0.1.0", from_batch)


@dataclass(frozen=True)
class Stopped:
    """A folder whose coordinator was stopped. Its last batches are BATCH and, if planned, BATCH + 1."""

    checkpoint: Checkpoint

    def plan(self, batch: int, *, ends: dict[int, int]) -> None:
        """Write `offsets` of a batch as Spark does."""
        offsets = spark_of(self.checkpoint) / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        source = "{" + ",".join(f'"{p}":{end}' for p, end in ends.items()) + "}"
        metadata = f'{{"batchWatermarkMs":{batch * 10},"batchTimestampMs":{batch},"conf":{{}}}}'
        (offsets / str(batch)).write_text(f'v1\n{metadata}\n{{"eu-requests":{source}}}')

    def commit(self, batch: int) -> None:
        commits = spark_of(self.checkpoint) / "commits"
        commits.mkdir(parents=True, exist_ok=True)
        (commits / str(batch)).write_text(f'v1\n{{"nextBatchWatermarkMs":{batch * 10 + 10}}}')


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    """Return a folder with configurations of several batches, and the last batch committed."""
    checkpoint = Checkpoint.at(tmp_path / "coordinator")
    epochs = [epoch(0), epoch(3), epoch(BATCH + 1), epoch(BATCH + 2)]
    outages = [KnownOutage(2, Outage(10, 20)), KnownOutage(BATCH + 1, Outage(30, 40))]
    checkpoint.create(IDENTITY, OwnerRecord(epochs, outages, CommittedBatch(BATCH, {0: 5, 1: 6})))
    there = Stopped(checkpoint)
    there.plan(BATCH, ends={0: 5, 1: 6})
    there.commit(BATCH)
    return there


def test_batches_are_numbered_from_the_last_committed_one(stopped: Stopped) -> None:
    stopped.plan(BATCH + 1, ends={0: 9, 1: 6})
    header = header_of(stopped.checkpoint, None)
    assert [e.from_batch for e in header.epochs] == [0, 0, 1, 2]
    times = [e.after_ms for e in header.epochs]
    assert times == [0, 3, BATCH + 1, BATCH + 2], "a group may rest since the first"
    assert [o.from_batch for o in header.outages] == [0, 1]
    assert header.committed == PlannedBatch({0: 5, 1: 6}, BATCH * 10, BATCH)
    assert header.next_watermark_ms == (BATCH + 1) * 10
    assert header.planned == PlannedBatch({0: 9, 1: 6}, (BATCH + 1) * 10, BATCH + 1)
    assert (header.identity, header.unread) == (IDENTITY, None)


def lost(stopped: Stopped) -> None:
    stopped.checkpoint.own(1)
    stopped.checkpoint.store_committed(BATCH, "eu-requests")
    (spark_of(stopped.checkpoint) / "offsets" / str(BATCH)).unlink()


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (
            lambda stopped: (spark_of(stopped.checkpoint) / "commits" / str(BATCH)).unlink(),
            UserFacingError,
            "no committed batch",
        ),
        (lost, FolderError, "has lost batches"),
        (
            lambda stopped: stopped.checkpoint.create(replace(IDENTITY, requests_topic_id=""), OwnerRecord()),
            UserFacingError,
            "not started yet",
        ),
    ],
)
def test_incomplete_state_is_not_exported(
    stopped: Stopped, tmp_path: Path, change: Callable[[Stopped], None], error: type[Exception], why: str
) -> None:
    assert header_of(stopped.checkpoint, None).planned is None
    change(stopped)
    with pytest.raises(error, match=why):
        header_of(stopped.checkpoint, None)
    with pytest.raises(FolderError, match="has no state of a coordinator"):
        header_of(Checkpoint.at(tmp_path), None)


@pytest.fixture
def header(stopped: Stopped) -> ExportHeader:
    return replace(header_of(stopped.checkpoint, None), unread={0: 0, 1: 0})


def test_new_folder_keeps_topic_and_namespace_with_a_new_owner_identity(header: ExportHeader) -> None:
    assert identity_for(header).shards == IDENTITY.shards
    new = identity_for(header, shards=4)
    assert new == replace(IDENTITY, shards=4, moved=new.moved)
    assert new.moved is not None
    assert (new.moved.from_owner_id, new.moved.exported_at_ms) == (
        owner_id_of(IDENTITY),
        header.exported_at_ms,
    )
    assert owner_id_of(new) == new.moved.owner_id != owner_id_of(IDENTITY)
    again = identity_for(replace(header, identity=new)).moved
    assert again is not None
    assert again.from_owner_id == owner_id_of(new)


def test_new_topics_are_pinned_by_the_first_start(header: ExportHeader, tmp_path: Path) -> None:
    new = identity_for(header, prefix="us", request_partitions=4)
    assert (new.requests_topic, new.request_partitions, new.requests_topic_id) == ("us-requests", 4, "")
    checkpoint = Checkpoint.at(tmp_path)
    checkpoint.create(new, OwnerRecord())
    found = replace(new, requests_topic_id="found", member_id_namespace="another", moved=None)
    with pytest.raises(FolderError, match="request_partitions was 4 and is 5"):
        checkpoint.pin(replace(found, request_partitions=5))
    assert checkpoint.pin(found) == replace(new, requests_topic_id="found")
    with pytest.raises(FolderError, match="requests_topic_id was 'found' and is 'other'"):
        checkpoint.pin(replace(found, requests_topic_id="other"))


def test_unread_packed_records_prevent_a_move_to_one_shard_per_group(header: ExportHeader) -> None:
    header = replace(header, unread={0: 0, 1: 3})
    with pytest.raises(UserFacingError, match="packs of them would be refused"):
        identity_for(header, shards=MAX_SHARDS)
    assert identity_for(replace(header, unread={0: 0, 1: 0}), shards=MAX_SHARDS).shards == MAX_SHARDS


class SparkStarted(Exception):
    """The export is accepted, and its state would be written."""


@contextmanager
def spark_started() -> Iterator[SparkSession]:
    raise SparkStarted
    yield


def test_import_syncs_the_name_of_its_folder(
    header: ExportHeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator may delete the export afterwards."""
    monkeypatch.setattr(moving, "write_state", lambda *_: None)
    monkeypatch.setattr(moving, "_complete", lambda *_: None)
    write_export(tmp_path / "file", header, [])
    steps = record_disk_steps(monkeypatch)
    import_state(ExportFile(tmp_path / "file"), tmp_path / "new", IDENTITY, lambda: nullcontext(NO_SPARK))
    assert steps[-2:] == ["name new", f"sync {tmp_path.name}"]


@pytest.mark.parametrize("group_type", [ClassicGroup, ConsumerGroup])
@pytest.mark.parametrize(("prefix", "refused"), [("us", UserFacingError), (None, SparkStarted)])
def test_state_with_pending_transaction_offsets_cannot_move_to_other_topics(
    header: ExportHeader,
    tmp_path: Path,
    prefix: str | None,
    refused: type[Exception],
    group_type: type[ClassicGroup] | type[ConsumerGroup],
) -> None:
    """The outcome of its transaction comes to the old topic of markers."""
    group = group_type("orders", "i")
    offsets = {"t": {0: Offset(5, -1, "", 0, None, None, (7, 0))}}
    group.pending = [PendingOffsets("r", (7, 0), 0, "t-1", 4001, 7, 2, 0, 40, None, offsets)]
    entry = codec.encode_group(group, None)
    write_export(tmp_path / "file", header, [ExportedGroup("orders", entry.version, entry.group)])
    export, identity = ExportFile(tmp_path / "file"), identity_for(header, prefix=prefix)
    with pytest.raises(UserFacingError, match=r"exists\. Import into a new folder"):
        import_state(export, tmp_path, identity, spark_started)
    with pytest.raises(refused) as raised:
        import_state(export, tmp_path / "new", identity, spark_started)
    assert (prefix is None) != ("'orders' has offsets that are pending in transactions" in str(raised.value))
    assert not (tmp_path / "new").exists()
