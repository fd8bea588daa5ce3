"""Creation of a recording from a coordinator's topics and checkpoint. The coordinator may run meanwhile.

So the order of reading matters. The last committed batch is read first, because its output is on the topics,
and then the ends of the output topics. The configurations, the outages and the end of the log are read last,
because the recording must have everything that led to those outputs.
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


class CannotRecord(RuntimeError):
    """The error when the topics or the checkpoint lack something. Its message says what, and what to do."""


class RecordingPart(Struct, frozen=True):
    """The part of a coordinator's log to record."""

    groups: list[str] | None = None  # None: all
    since_ms: int | None = None
    until_ms: int | None = None  # exclusive


@contextmanager
def recorded(
    client_config: ClientConfig,
    layout: TopicLayout,
    checkpoint: Checkpoint,
    part: RecordingPart,
    start: ExportFile | None = None,
) -> Iterator[RecordingFile]:
    """Make a recording in a temporary file that only this user may read. Errors are those of `record`."""
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

    Raises RecordingError, CannotRecord, FolderError or KafkaError.
    """
    identity = checkpoint.identity()
    handled = _handled(checkpoint, identity)
    max_bytes = max(layout.response_record_max_bytes, layout.request_record_max_bytes)
    with TopicReader(client_config, max_record_bytes=max_bytes) as reader:
        if len(reader.partitions_of(layout.requests_topic)) != identity.request_partitions:
            raise CannotRecord(f"topic {layout.requests_topic} has not as many partitions as {checkpoint}")
        topics = _Topics(reader, layout, part)
        owner = checkpoint.record()
        if not owner.epochs:
            raise FolderError(f"{checkpoint} has no configuration of a coordinator")
        planned = checkpoint.last_batch("offsets")
        begins, ends = topics.log_part(None if start is None else _ends_of(start, identity))
        header = RecordingHeader(
            recorded_at_ms=time.time_ns() // 1_000_000,
            code_version=code_version(),
            groups=part.groups,
            identity=identity,
            layout=layout,
            epochs=owner.epochs,
            outages=[known for known in owner.outages if known.from_batch <= planned],
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
    collector = Collector(header)
    if start is not None:
        for group in start.groups():
            if header.wants(group.group_id):
                yield StartLine(group)
    yield from collector.log(topics.log(collector.partitions, header))
    yield from collector.outputs(topics.outputs())


def _handled(checkpoint: Checkpoint, identity: Identity) -> HandledBatch | None:
    batch = checkpoint.last_batch("commits")
    if batch < 0:
        return None
    try:
        planned = read_planned(checkpoint.files, batch, identity.requests_topic)
    except FileNotFoundError:
        return None
    return HandledBatch(batch, planned.ends, planned.watermark_ms)


def _ends_of(start: ExportFile, identity: Identity) -> dict[int, int]:
    """Return the first offsets after an export, by partition."""
    if start.header.identity.member_id_namespace != identity.member_id_namespace:
        raise CannotRecord("the export is of another coordinator: it has another member_id_namespace")
    if start.header.identity.requests_topic != identity.requests_topic:
        # The state was moved to new topics: all their records are after the export.
        return dict.fromkeys(range(identity.request_partitions), 0)
    return start.header.committed.ends


class _Topics:
    """A reader of the recorded part of the topics.

    The constructor looks up the ends of the outputs, and `log_part` those of the log.
    """

    def __init__(self, reader: TopicReader, layout: TopicLayout, part: RecordingPart) -> None:
        self._reader = reader
        self._layout = layout
        self._part = part
        names = (
            layout.responses_topic,
            layout.events_topic,
            layout.dead_letters_topic,
            layout.groups_topic,
        )
        self._output_partitions = reader.partitions_of(*names)
        self._output_ends = reader.ends(self._output_partitions)

    def log_part(self, after: Mapping[int, int] | None) -> tuple[dict[int, int], dict[int, int]]:
        """Return the first and the last offset (exclusive) of the log's part, by partition.

        It begins at `after`, if that is given.
        """
        partitions = self._reader.partitions_of(self._layout.requests_topic)
        ends, firsts = self._reader.ends(partitions), self._reader.beginnings(partitions)
        begins = dict(firsts)
        if after is not None:
            begins = {p: after.get(p.partition, 0) for p in partitions}
            if gone := [p for p in partitions if begins[p] < firsts[p]]:
                raise CannotRecord(
                    f"retention has deleted requests since that export: {gone[0].topic}, partition "
                    f"{gone[0].partition} begins at offset {firsts[gone[0]]}, the export ends at "
                    f"{begins[gone[0]]}"
                )
        if self._part.since_ms is not None:
            begins = {p: max(begins[p], at) for p, at in self._at(ends, self._part.since_ms).items()}
        if self._part.until_ms is not None:
            ends = {p: max(begins[p], at) for p, at in self._at(ends, self._part.until_ms).items()}
        return {p.partition: at for p, at in begins.items()}, {p.partition: at for p, at in ends.items()}

    def _at(self, ends: Ends, at_ms: int) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time, or else the partition's end."""
        found = self._reader.offsets_at(list(ends), at_ms)
        return {p: ends[p] if offset is None else offset for p, offset in found.items()}

    def kept_since_ms(self) -> dict[str, dict[int, int]]:
        """Return `RecordingHeader.kept_since_ms`."""
        kept: dict[str, dict[int, int]] = {}
        for partition, begin in self._output_begins().items():
            if begin and partition.topic != self._layout.groups_topic:
                at_ms = self._time_of(partition, begin)
                kept.setdefault(partition.topic, {})[partition.partition] = at_ms
        return kept

    def _output_begins(self) -> dict[TopicPartition, int]:
        begins = self._reader.beginnings(self._output_partitions)
        if self._part.since_ms is None:
            return begins
        since = self._at(self._output_ends, self._part.since_ms)
        # The groups topic is compacted: the last view of a group may be older.
        return {
            p: begin if p.topic == self._layout.groups_topic else max(begin, since[p])
            for p, begin in begins.items()
        }

    def _time_of(self, partition: TopicPartition, offset: int) -> int:
        """Return the append time of a record, or the present time if there is none."""
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
        """Yield the coordinator's output, without the early answers that do not count."""
        early = EarlyAnswers()
        for record in self._read(self._output_begins(), self._output_ends):
            if record.topic != self._layout.responses_topic:
                yield _topic_record(record)
            elif early.accepts(record.partition, record.headers):
                yield _topic_record(record)._replace(is_early=not is_from_query(record.headers))

    def _read(self, begins: Ends, ends: Ends) -> Iterator[Record]:
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
