"""Creation of a recording from a coordinator's topics and checkpoint. The coordinator may run meanwhile.

The order of reading matters. The last committed batch is read before the ends of the output topics, so that
the recording has all output of the batch. The configurations, the outages and the end of the log are read
last, so that the recording has everything that led to the output.
"""

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kafka import TopicPartition
from msgspec import Struct

from checkpoints.checkpoint import Checkpoint, code_version
from checkpoints.metadata import Identity
from checkpoints.sealed_file import COMPRESSED, ExportFile
from checkpoints.spark_logs import read_planned
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.early_answers import EarlyAnswers, is_from_query
from kafka_why.contract.layout import TopicLayout
from kafka_why.errors import UserFacingError
from kafka_why.local_files import FolderError
from kafka_why.topic_reader import Record, TopicReader
from operations.replay.collect import Collector, TopicRecord
from operations.replay.recording import (
    HandledBatch,
    Line,
    RecordingFile,
    RecordingHeader,
    StartLine,
    write_recording,
)

Ends = Mapping[TopicPartition, int]
"""By partition, the first offset after a part of it."""


class RecordingPart(Struct, frozen=True):
    """The part of a coordinator's log to record."""

    groups: list[str] | None = None  # None: all
    since_ms: int | None = None  # append times
    until_ms: int | None = None  # exclusive


@contextmanager
def temporary_recording(
    client_config: ClientConfig,
    layout: TopicLayout,
    checkpoint: Checkpoint,
    part: RecordingPart,
    start: ExportFile | None = None,
) -> Iterator[RecordingFile]:
    """Write a recording to a temporary file that only this user may read. Raises the errors of `record`."""
    with tempfile.TemporaryDirectory(prefix="group-coordinator-recording-") as folder:
        path = Path(folder) / f"recording{COMPRESSED}"
        record(path, client_config, layout, checkpoint, part, start)
        yield RecordingFile(path)


def record(
    path: Path,
    client_config: ClientConfig,
    layout: TopicLayout,
    checkpoint: Checkpoint,
    part: RecordingPart,
    start: ExportFile | None = None,
) -> RecordingHeader:
    """Write a recording into a new file. With `start`, it begins with the groups of that export.

    Raises UserFacingError, FolderError or KafkaError.
    """
    identity = checkpoint.identity()
    handled = _last_handled_batch(checkpoint, identity)
    max_bytes = max(layout.response_record_max_bytes, layout.request_record_max_bytes)
    with TopicReader(client_config, max_record_bytes=max_bytes) as reader:
        if len(reader.partitions_of(layout.requests_topic)) != identity.request_partitions:
            raise UserFacingError(f"topic {layout.requests_topic} has not as many partitions as {checkpoint}")
        topics = _Topics(reader, layout, part)
        owner = checkpoint.record()
        if not owner.epochs:
            raise FolderError(f"{checkpoint} has no configuration of a coordinator")
        # Spark's log "offsets" has each planned batch. An outage of a later batch has had no effect yet.
        last_planned_batch = checkpoint.last_batch("offsets")
        begins, ends = topics.log_part(None if start is None else _ends_of(start, identity))
        header = RecordingHeader(
            recorded_at_ms=time.time_ns() // 1_000_000,
            code_version=code_version(),
            groups=part.groups,
            identity=identity,
            layout=layout,
            epochs=owner.epochs,
            outages=[outage for outage in owner.outages if outage.from_batch <= last_planned_batch],
            begins=begins,
            ends=ends,
            is_first=[
                partition for partition, begin in begins.items() if begin == 0 and part.since_ms is None
            ],
            handled=handled,
            kept_since_ms=topics.kept_since_ms(),
            starts_from=None if start is None else f"the export of {start.header.exported_at_ms}",
            until_ms=part.until_ms,
        )
        write_recording(path, header, _lines(header, topics, start))
    return header


def _lines(header: RecordingHeader, topics: "_Topics", start: ExportFile | None) -> Iterator[Line]:
    """Yield the lines of a recording in their order: states, log, outputs."""
    collector = Collector(header)
    if start is not None:
        for group in start.groups():
            if header.wants(group.group_id):
                yield StartLine(group)
    yield from collector.log(topics.log(collector.partitions, header))
    yield from collector.outputs(topics.outputs())


def _last_handled_batch(checkpoint: Checkpoint, identity: Identity) -> HandledBatch | None:
    """Return the last committed batch, or None if there is none or the checkpoint has lost its plan."""
    batch = checkpoint.last_batch("commits")
    if batch < 0:
        return None
    try:
        plan = read_planned(checkpoint.files, batch, identity.requests_topic)
    except FileNotFoundError:
        return None
    return HandledBatch(batch, plan.ends, plan.watermark_ms)


def _ends_of(start: ExportFile, identity: Identity) -> dict[int, int]:
    """Return the first offsets after an export, by partition.

    Raises UserFacingError if the export is of another coordinator.
    """
    if start.header.identity.member_id_namespace != identity.member_id_namespace:
        raise UserFacingError("the export is of another coordinator: it has another member_id_namespace")
    if start.header.identity.requests_topic != identity.requests_topic:
        # The state was moved to new topics: all their records are after the export.
        return dict.fromkeys(range(identity.request_partitions), 0)
    return start.header.committed.ends


class _Topics:
    """A reader of the recorded part of the topics. The constructor queries the ends of the output topics, and
    `log_part` the ends of the requests topic.
    """

    def __init__(self, reader: TopicReader, layout: TopicLayout, part: RecordingPart) -> None:
        self._reader = reader
        self._layout = layout
        self._part = part
        self._output_partitions = reader.partitions_of(
            layout.responses_topic, layout.events_topic, layout.dead_letters_topic, layout.groups_topic
        )
        self._output_ends = reader.ends(self._output_partitions)

    def log_part(self, after: Mapping[int, int] | None) -> tuple[dict[int, int], dict[int, int]]:
        """Return the begins and the ends (exclusive) of the log's part: offsets by partition.

        The part begins at the offsets `after`, or at the first existing ones if `after` is None. It is cut to
        the times of `RecordingPart`.
        """
        partitions = self._reader.partitions_of(self._layout.requests_topic)
        ends, firsts = self._reader.ends(partitions), self._reader.beginnings(partitions)
        begins = dict(firsts)
        if after is not None:
            begins = {p: after.get(p.partition, 0) for p in partitions}
            cut = next((p for p in partitions if begins[p] < firsts[p]), None)
            if cut is not None:
                raise UserFacingError(
                    f"retention has deleted requests since that export: {cut.topic}, partition "
                    f"{cut.partition} begins at offset {firsts[cut]}, the export ends at "
                    f"{begins[cut]}"
                )
        if self._part.since_ms is not None:
            since_offsets = self._offsets_at(ends, self._part.since_ms)
            begins = {p: max(begins[p], offset) for p, offset in since_offsets.items()}
        if self._part.until_ms is not None:
            until_offsets = self._offsets_at(ends, self._part.until_ms)
            ends = {p: max(begins[p], offset) for p, offset in until_offsets.items()}
        return (
            {p.partition: offset for p, offset in begins.items()},
            {p.partition: offset for p, offset in ends.items()},
        )

    def _offsets_at(self, ends: Ends, at_ms: int) -> dict[TopicPartition, int]:
        """Return, by partition, the offset of the first record at or after a time, or else the end.

        The partitions are those of `ends`.
        """
        offsets = self._reader.offsets_at(list(ends), at_ms)
        return {p: ends[p] if offset is None else offset for p, offset in offsets.items()}

    def kept_since_ms(self) -> dict[str, dict[int, int]]:
        """Return `RecordingHeader.kept_since_ms`."""
        since_ms: dict[str, dict[int, int]] = {}
        for partition, begin in self._output_begins().items():
            has_lost_records = begin > 0
            # The groups topic is compacted: it keeps the last view of each group.
            if has_lost_records and partition.topic != self._layout.groups_topic:
                at_ms = self._time_of(partition, begin)
                since_ms.setdefault(partition.topic, {})[partition.partition] = at_ms
        return since_ms

    def _output_begins(self) -> dict[TopicPartition, int]:
        """Return the first recorded offset of each partition of the output topics."""
        begins = self._reader.beginnings(self._output_partitions)
        if self._part.since_ms is None:
            return begins
        since_offsets = self._offsets_at(self._output_ends, self._part.since_ms)
        # The groups topic is compacted: the last view of a group may be older.
        return {
            p: begin if p.topic == self._layout.groups_topic else max(begin, since_offsets[p])
            for p, begin in begins.items()
        }

    def _time_of(self, partition: TopicPartition, offset: int) -> int:
        """Return the append time of a record, or the present time if retention has deleted all records."""
        if offset < self._output_ends[partition]:
            self._reader.start(at={partition: offset})
            for record in self._reader.read_to({partition: offset + 1}):
                return int(record.timestamp)
        return time.time_ns() // 1_000_000

    def log(self, partitions: Collection[int], header: RecordingHeader) -> Iterator[TopicRecord]:
        """Yield these partitions' records in the recorded part of the log."""
        topic = self._layout.requests_topic
        begins = {TopicPartition(topic, p): header.begins[p] for p in partitions}
        ends = {TopicPartition(topic, p): header.ends[p] for p in partitions}
        return map(_topic_record, self._read(begins, ends))

    def outputs(self) -> Iterator[TopicRecord]:
        """Yield the coordinator's output, without early answers of replicas that have been replaced."""
        early_answers = EarlyAnswers()
        for record in self._read(self._output_begins(), self._output_ends):
            if record.topic != self._layout.responses_topic:
                yield _topic_record(record)
            elif early_answers.accepts(record.partition, record.headers):
                yield _topic_record(record)._replace(is_early=not is_from_query(record.headers))

    def _read(self, begins: Mapping[TopicPartition, int], ends: Ends) -> Iterator[Record]:
        self._reader.start(at=begins)
        return self._reader.read_to(ends)


def _topic_record(record: Record) -> TopicRecord:
    return TopicRecord(
        record.topic,
        record.partition,
        record.offset,
        int(record.timestamp),
        None if record.key is None else bytes(record.key),
        None if record.value is None else bytes(record.value),
    )
