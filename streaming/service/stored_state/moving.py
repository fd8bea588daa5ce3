"""The move of a coordinator's state into a new folder: export into a file, and import of that file.

docs/recovery.md, "Moving the state", is the description for users.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import structlog
from kafka import TopicPartition
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from checkpoints import codec
from checkpoints.checkpoint import Checkpoint, code_version
from checkpoints.metadata import CommittedBatch, Epoch, Identity, KnownOutage, Moved, OwnerRecord, configs_of
from checkpoints.sealed_file import ExportedGroup, ExportFile, ExportHeader, write_export
from checkpoints.spark_logs import (
    SPARK,
    read_next_watermark_ms,
    read_planned,
    rewrite_next_watermark_ms,
    rewrite_planned,
)
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import is_clock_record, unpack
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.layout import TopicLayout
from kafka_why.errors import UserFacingError
from kafka_why.local_files import make_private_folder, sync
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicReader
from state.config import CoordinatorConfig
from state.dispatch import kind_of
from state.kafka.group import Group
from state.kafka.offsets import precede_other_log
from streaming.query.admission import allows_packs, shard_of
from streaming.query.pipeline import read_state, write_state
from streaming.service.outages.outage import type_of
from streaming.service.ownership.owner import owner_id_of
from streaming.service.stored_state.continuation import Continuation

_READ_TIMEOUT_MS = 60_000


def header_of(checkpoint: Checkpoint, client_config: ClientConfig | None) -> ExportHeader:
    """Return the header of an export of this checkpoint, whose folder is locked.

    With `client_config` the unread requests are counted. Raises FolderError, UserFacingError or KafkaError.
    """
    identity = checkpoint.identity()
    topic = identity.requests_topic
    if not identity.requests_topic_id:
        raise UserFacingError(f"{checkpoint} was imported and not started yet. Import that export again")
    checkpoint.check_committed(topic)
    batch = checkpoint.last_batch("commits")
    if batch < 0:
        raise UserFacingError(f"{checkpoint} has no committed batch, so there is nothing to move")
    header = header_at(checkpoint, batch, checkpoint.record())
    if client_config is None:
        return header
    return replace(header, unread=count_unread(client_config, topic, header.committed.ends))


def header_at(checkpoint: Checkpoint, batch: int, record: OwnerRecord) -> ExportHeader:
    """Return the header of the state after a committed batch, with the configurations and outages of
    `record`.

    Raises FolderError, or FileNotFoundError if Spark has removed the batch's files.
    """
    topic = checkpoint.identity().requests_topic
    is_planned = checkpoint.last_batch("offsets") > batch
    return ExportHeader(
        exported_at_ms=int(time.time() * 1000),
        code_version=code_version(),
        identity=checkpoint.identity(),
        epochs=_renumbered_epochs(record.epochs, batch),
        outages=_renumbered_outages(record.outages, batch),
        committed=read_planned(checkpoint.files, batch, topic),
        next_watermark_ms=read_next_watermark_ms(checkpoint.files, batch),
        planned=read_planned(checkpoint.files, batch + 1, topic) if is_planned else None,
        batch=batch,
    )


def export_state(checkpoint: Checkpoint, spark: SparkSession, header: ExportHeader, path: Path) -> int:
    """Write the state of this checkpoint, whose folder is locked, to a new file. Returns the number of
    groups.

    Raises UserFacingError, StateError, or PySparkException if Spark cannot read the state.
    """
    rows = read_state(spark, checkpoint.spark_uri, checkpoint.last_batch("commits"))
    return write_export(path, header, groups_in(rows))


def count_unread(client_config: ClientConfig, topic: str, ends: Mapping[int, int]) -> dict[int, int]:
    """Return the number of requests at and after the offsets `ends`, by partition. Raises KafkaError.

    Clock records and TopicMetadata, which only a coordinator's own process appends, do not count.
    """
    unread = dict.fromkeys(ends, 0)
    begin = {TopicPartition(topic, partition): end for partition, end in ends.items()}
    with TopicReader(client_config) as reader:
        log_ends = reader.ends(begin)
        reader.start(at=begin)
        for record in reader.read_to(log_ends, timeout_ms=_READ_TIMEOUT_MS):
            if (
                not is_clock_record(record.key, record.value)
                and type_of(record.value) != TopicMetadata.__name__
            ):
                unread[record.partition] += len(unpack(record.value or b""))
    return unread


def identity_for(
    header: ExportHeader,
    *,
    prefix: str | None = None,
    request_partitions: int | None = None,
    shards: int | None = None,
    state_partitions: int | None = None,
    continued_at_ms: int | None = None,
) -> Identity:
    """Return the identity of the new folder. A parameter that is None keeps the state's own value.

    `continued_at_ms` is the time in ms up to which the state is complete, by default that of the export. The
    new folder may use the old topics unless the old folder's coordinator claimed them later. A backup has no
    such time, because that coordinator may have answered requests after it. So by default the old topics are
    refused after a backup.

    Raises UserFacingError if requests that no batch has handled would be lost, refused, or in another
    partition.
    """
    old = header.identity
    if continued_at_ms is None:
        # Every claim is later than 0, which refuses the topics (`streaming.service.ownership.owner`).
        continued_at_ms = 0 if header.is_backup else header.exported_at_ms
    new = replace(
        old,
        request_partitions=request_partitions or old.request_partitions,
        shards=shards or old.shards,
        state_partitions=state_partitions or old.state_partitions,
        moved=Moved(str(uuid4()), owner_id_of(old), continued_at_ms),
    )
    if allows_packs(old.shards) and not allows_packs(new.shards):
        _check_handled(header, "packs of them would be refused")
    topic = old.requests_topic if prefix is None else TopicLayout.named(prefix).requests_topic
    if topic == old.requests_topic:
        if new.request_partitions != old.request_partitions:
            raise UserFacingError(
                f"the records of {old.requests_topic} are placed by {old.request_partitions} partitions. "
                "Another number needs topics of their own: give --prefix, too"
            )
        return new
    _check_handled(header, "they would be lost")
    return replace(new, requests_topic=topic, requests_topic_id="")


def _check_handled(header: ExportHeader, consequence: str) -> None:
    """Raise UserFacingError if the old topic has unhandled requests, with the consequence for these."""
    topic = header.identity.requests_topic
    if header.unread is None:
        raise UserFacingError(
            f"{topic} may have requests that are not handled, and {consequence}. The export has not counted "
            "them: export with a broker (--bootstrap-servers)"
        )
    if unread := {partition: count for partition, count in header.unread.items() if count}:
        counts = ", ".join(f"{count} in partition {partition}" for partition, count in sorted(unread.items()))
        raise UserFacingError(
            f"{topic} has requests that are not handled ({counts}), and {consequence}. Stop the gateways and "
            "clients, run the coordinator on the old folder until it has answered them (--no-gateway), stop "
            "it, and export again"
        )


def import_state(
    export: ExportFile,
    target: Path,
    identity: Identity,
    starting_spark: Callable[[], AbstractContextManager[SparkSession]],
    continuation: Continuation | None = None,
) -> None:
    """Create the folder `target` with the state of an export. The folder appears complete or not at all.

    `continuation` is the coordinator's work after the export, which runs again as batch 1. Spark is started
    once the export has been checked. Raises UserFacingError, StateError, SparkFailed, or PySparkException if
    Spark cannot write the state.
    """
    if target.exists():
        raise UserFacingError(f"{target} exists. Import into a new folder")
    make_private_folder(target.parent)
    state = _groups_by_shard(export, identity)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.import-", dir=target.parent) as parent:
        new = Path(parent) / target.name
        make_private_folder(new)
        with starting_spark() as spark:
            rows = Path(parent) / "rows"
            write_state(spark, new / "spark", rows, identity.shards, state, identity.state_partitions)
        header = export.header
        if continuation:
            header = replace(
                header,
                epochs=_renumbered_epochs(continuation.record.epochs, continuation.batch),
                outages=_renumbered_outages(continuation.record.outages, continuation.batch),
                planned=continuation.planned,
            )
        _complete(new, header, identity)
        os.sync()
        new.rename(target)
    sync(target.parent)  # the export may now be deleted


def _complete(new: Path, header: ExportHeader, identity: Identity) -> None:
    """Convert the checkpoint that `write_state` wrote to one of the coordinator's query, and write its other
    files.
    """
    committed, planned, topic = header.committed, header.planned, identity.requests_topic
    if topic != header.identity.requests_topic:
        # The old topic has no unhandled requests, so its planned batch has only clock records and is dropped.
        committed = replace(committed, ends=dict.fromkeys(range(identity.request_partitions), 0))
        planned = None
    # The log of the file source that seeded the checkpoint. The Kafka source would mistake it for its own.
    shutil.rmtree(new / "spark" / "sources")
    checkpoint = Checkpoint.at(new)
    rewrite_planned(checkpoint.files, 0, committed, topic)
    rewrite_next_watermark_ms(checkpoint.files, 0, header.next_watermark_ms)
    if planned is not None:
        rewrite_planned(checkpoint.files, 1, planned, topic)
    checkpoint.create(identity, OwnerRecord(header.epochs, header.outages, CommittedBatch(0, committed.ends)))


def _renumbered_outages(outages: list[KnownOutage], batch: int) -> list[KnownOutage]:
    """Return the outages, renumbered so that this batch becomes batch 0."""
    return [replace(o, from_batch=max(0, o.from_batch - batch)) for o in outages]


def _renumbered_epochs(epochs: list[Epoch], batch: int) -> list[Epoch]:
    """Return the configurations, renumbered so that this batch becomes batch 0."""
    # Earlier configurations are kept, because a stored group may need them.
    return [replace(e, from_batch=max(0, e.from_batch - batch)) for e in epochs]


def groups_in(rows: Iterator[codec.ShardRow]) -> Iterator[ExportedGroup]:
    """Yield the groups of these rows of a state. Raises StateError."""
    for row in rows:
        for group_id, entry in codec.read_row(*row).items():
            yield ExportedGroup(group_id, entry.version, entry.group)


def _groups_by_shard(export: ExportFile, identity: Identity) -> dict[int, dict[str, codec.StoredGroup]]:
    """Return the export's groups by shard number and id, each with its next deadline, or if the topics are
    new with UNPUBLISHED_DEADLINE_MS. Raises UserFacingError or StateError.
    """
    config = configs_of(export.header.epochs, CoordinatorConfig()).at(export.header.next_watermark_ms)
    is_new_topic = identity.requests_topic != export.header.identity.requests_topic
    groups_by_shard: dict[int, dict[str, codec.StoredGroup]] = {}
    for exported in export.groups():
        # If the topics are new, the first batch publishes the group on the compacted topics, and the group's
        # offsets precede every request of the new log.
        entry = codec.StoredGroup(exported.version, codec.UNPUBLISHED_DEADLINE_MS, exported.group)
        # Decode the group to find damage, and for the next deadline.
        group = codec.decode_group(exported.group_id, entry)
        if not is_new_topic:
            entry = replace(entry, next_deadline_ms=kind_of(group).next_deadline_ms(group, config))
        elif isinstance(group, Group) and group.pending:
            raise UserFacingError(
                f"group {exported.group_id!r} has offsets that are pending in transactions, and other topics "
                "have no markers of these. Run the coordinator on the old folder until they are decided (or "
                "end them: groups abort-pending), and export again"
            )
        elif isinstance(group, Group) and not group.is_without_offsets():
            precede_other_log(group)
            entry = codec.encode_group(group, codec.UNPUBLISHED_DEADLINE_MS)
        partition = partition_of(exported.group_id, identity.request_partitions)
        shard = shard_of(exported.group_id, partition, identity.shards)
        groups = groups_by_shard.setdefault(shard, {})
        if exported.group_id in groups:
            raise UserFacingError(f"the export has group {exported.group_id!r} twice")
        groups[exported.group_id] = entry
    return groups_by_shard


log = structlog.get_logger()
_ATTEMPTS = 3


class StateNotRead(UserFacingError):
    """The state after a batch cannot be read. The message names the readable batches."""


@dataclass(frozen=True)
class StoredState:
    """The state after a committed batch."""

    batch: int
    watermark_ms: int  # of the next batch
    record: OwnerRecord  # the configurations and outages
    groups: list[ExportedGroup]

    @property
    def config(self) -> CoordinatorConfig:
        """The configuration in force at the watermark."""
        epochs = [epoch for epoch in self.record.epochs if epoch.from_batch <= self.batch]
        return configs_of(epochs, CoordinatorConfig()).at(self.watermark_ms)


def retained_batches(checkpoint: Checkpoint) -> range:
    """Return the committed batches whose state Spark keeps: the last 100, or fewer on a new checkpoint."""
    batches = [int(name) for name in checkpoint.files.names(f"{SPARK}/commits") if name.isdigit()]
    return range(min(batches), max(batches) + 1) if batches else range(0)


def read_stored(
    checkpoint: Checkpoint, spark: SparkSession, batch: int | None = None, *, spark_uri: str | None = None
) -> StoredState:
    """Read the state after `batch`, or after the newest committed batch if it is None, even while a
    coordinator uses it.

    Spark does not change the files of a committed batch, but removes them when the batch is old. If it
    removes those of the newest batch meanwhile, the next batch is read. `spark_uri` is another location of
    Spark's files. Raises StateNotRead, StateError, FolderError.
    """
    retained = retained_batches(checkpoint)
    if not retained:
        raise StateNotRead(f"{checkpoint} has no committed batch, so it has no state")
    if batch is not None and batch not in retained:
        raise StateNotRead(f"the state after batch {batch} is not kept: {_describe_retained(retained)}")
    wanted, failure = retained[-1], ""
    for _ in range(_ATTEMPTS if batch is None else 1):
        wanted = retained[-1] if batch is None else batch
        try:
            # Read the record first: later batches only add to it.
            record = checkpoint.record()
            watermark_ms = read_next_watermark_ms(checkpoint.files, wanted)
            groups = list(groups_in(read_state(spark, spark_uri or checkpoint.spark_uri, wanted)))
            return StoredState(wanted, watermark_ms, record, groups)
        except (PySparkException, FileNotFoundError) as error:
            failure = str(error).strip().partition("\n")[0]
            retained = retained_batches(checkpoint) or retained
            log.debug("the state was not read", batch=wanted, error=failure)
    raise StateNotRead(
        f"the state after batch {wanted} cannot be read, because its files were removed or are damaged; "
        f"{_describe_retained(retained)}. Spark says: {failure}"
    )


def _describe_retained(batches: range) -> str:
    return f"batches {batches[0]} to {batches[-1]} are kept" if batches else "no batch is kept"
