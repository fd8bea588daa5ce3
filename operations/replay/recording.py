"""A recording: the part of a coordinator's log that concerns some groups, the other inputs of the
coordinator, and its output; and its file.

The output is a function of the log (requests, and the greatest time that clock records attest), the
configurations with their times, and the outages. A recording has these, and the records on the output topics
for the same groups: answers, history, dead letters and views.

The file of a recording is what `group-coordinator record` writes: a sealed file (`checkpoints.sealed_file`)
with the lines of `operations.replay.recording`. A file whose name ends with `.zst` is compressed with
Zstandard.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from checkpoints.metadata import Epoch, Identity, KnownOutage, configs_of
from checkpoints.sealed_file import ExportedGroup, SealedFile, SealedFormat, write_sealed
from kafka_why.contract.codec import request_id
from kafka_why.contract.layout import TopicLayout
from state.config import Configs, CoordinatorConfig
from streaming.query.admission import Admission, LogMessage, LogRow

FORMAT_VERSION = 1


class HandledBatch(Struct, frozen=True):
    """The last batch that is known to be committed: it has read up to `ends` (exclusive, by partition) and
    fired the deadlines before `watermark_ms`. Its output must be on the topics.
    """

    batch: int
    ends: dict[int, int]
    watermark_ms: int


class RecordingHeader(Struct, frozen=True, kw_only=True):
    """The header of a recording: its origin and bounds, and the coordinator's inputs other than the log.

    `groups` are the recorded groups, None for all. `begins` and `ends` are the offsets of the recorded part
    of the log by partition. `is_first` names the partitions whose part begins with the first record ever
    written. `handled` is None if it is not known which outputs have to be on the topics. `kept_since_ms` is
    the append time of the first record that an output topic still has, by topic and partition; a partition
    that has lost no record is left out. `starts_from` is the export with whose groups the recording begins,
    if it does not begin with the log. `until_ms` is the time before which the log's part was cut, or None.
    """

    version: int = FORMAT_VERSION
    recorded_at_ms: int
    code_version: str
    groups: list[str] | None
    identity: Identity
    layout: TopicLayout
    epochs: list[Epoch]
    outages: list[KnownOutage]
    begins: dict[int, int]
    ends: dict[int, int]
    is_first: list[int]
    handled: HandledBatch | None
    kept_since_ms: dict[str, dict[int, int]]
    starts_from: str | None = None
    until_ms: int | None = None

    @property
    def configs(self) -> Configs:
        """The configurations by time."""
        return configs_of(
            self.epochs, CoordinatorConfig(member_id_namespace=self.identity.member_id_namespace)
        )

    def admission(self, partition: int) -> Admission:
        """Return the admission of the messages of a partition. A record can be skipped only before it is
        handled, so the last configuration has the skipped records of the whole log.
        """
        skip = frozenset(self.epochs[-1].skip)
        return Admission(self.layout, partition, self.identity.shards, skip)

    def admissions(self) -> dict[int, Admission]:
        """Return the admission of each partition."""
        return {partition: self.admission(partition) for partition in range(self.layout.request_partitions)}

    def wants(self, group_id: str) -> bool:
        """Return True if this is one of the recorded groups."""
        return self.groups is None or group_id in self.groups


class RecordBytes(Struct, frozen=True, omit_defaults=True):
    """Bytes of a record. If they are UTF-8, as nearly always, they are stored as text, for people to read."""

    text: str | None = None
    base64: bytes | None = None

    @classmethod
    def of(cls, content: bytes) -> "RecordBytes":
        try:
            return cls(text=content.decode())
        except UnicodeDecodeError:
            return cls(base64=content)

    def get(self) -> bytes:
        return self.text.encode() if self.text is not None else (self.base64 or b"")


class StartLine(Struct, frozen=True, tag="group", tag_field="line"):
    """A group's state at the beginning of the recording."""

    group: ExportedGroup


class RecordLine(Struct, frozen=True, tag_field="line"):
    """A line with a record of a topic: its place, and the append time `at_ms` in ms since 1970."""

    partition: int
    offset: int
    at_ms: int


class RequestLine(RecordLine, frozen=True, tag="request"):
    """A message of the requests topic: a record, or message `n` of a pack."""

    n: int | None
    key: RecordBytes
    value: RecordBytes

    @classmethod
    def of(cls, message: LogMessage) -> "RequestLine":
        row = message.row
        key, value = RecordBytes.of(row.key), RecordBytes.of(message.value)
        return cls(row.partition, row.offset, row.at_ms, message.n, key, value)

    def message(self, requests_topic: str) -> LogMessage:
        """Return the message for `streaming.query.admission`. Its row has its own value, not the pack's."""
        value = self.value.get()
        row = LogRow(self.partition, self.offset, self.at_ms, self.key.get(), value)
        return LogMessage(row, self.n, value, request_id(requests_topic, self.partition, self.offset, self.n))


class ClockLine(RecordLine, frozen=True, tag="clock"):
    """The greatest time attested by the clock records of a partition since the line before: at most the clock
    record's own append time `at_ms`.
    """

    time_ms: int


class AnswerLine(RecordLine, frozen=True, tag="answer", omit_defaults=True):
    """A response, or a message to a RocketMQ connection, on a reply partition.

    `is_early` marks one written by a replica before the query's (`kafka_why.contract.early_answers`).
    """

    value: RecordBytes
    is_early: bool = False


class EventLine(RecordLine, frozen=True, tag="event"):
    """A history entry."""

    value: RecordBytes


class LetterLine(RecordLine, frozen=True, tag="dead letter"):
    """A dead letter."""

    value: RecordBytes


class ViewLine(RecordLine, frozen=True, tag="view"):
    """A record of the groups topic. `value` is None if the group ended."""

    group_id: str
    value: RecordBytes | None


LogLine = RequestLine | ClockLine
OutputLine = AnswerLine | EventLine | LetterLine | ViewLine
Line = StartLine | LogLine | OutputLine


class Recording(Protocol):
    """A recording in any storage. Each call reads it from its beginning."""

    @property
    def header(self) -> RecordingHeader: ...

    def states(self) -> Iterator[ExportedGroup]:
        """Yield the groups' states at the beginning of the recording."""
        ...

    def log(self) -> Iterator[LogLine]:
        """Yield the log, each partition in its order."""
        ...

    def outputs(self) -> Iterator[OutputLine]:
        """Yield the records on the output topics, each partition in its order."""
        ...


class RecordingError(RuntimeError):
    """A file is not a complete recording that this code can read, or cannot be written."""


class _End(Struct, forbid_unknown_fields=True):
    lines: int
    sha256: str


_RECORDING = SealedFormat(
    header=RecordingHeader,
    end=_End,
    version=FORMAT_VERSION,
    error=RecordingError,
    a_file="a recording",
    can_be_compressed=True,
)
_line: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def write_recording(path: Path, header: RecordingHeader, lines: Iterable[Line]) -> int:
    """Write a new file and return its number of lines. Raises RecordingError if it exists or is not writable.

    The file gets its name when it is complete. `lines` are in the order of the types of
    `operations.replay.recording`: states, log, outputs.
    """
    return write_sealed(path, _RECORDING, header, lines)


class RecordingFile:
    """A complete recording. The constructor reads the whole file once; it raises RecordingError if the file
    is cut, changed, or of another format.
    """

    def __init__(self, path: Path) -> None:
        self._file = SealedFile(path, _RECORDING)
        self.header = self._file.header

    def states(self) -> Iterator[ExportedGroup]:
        return (line.group for line in self._lines("group") if isinstance(line, StartLine))

    def log(self) -> Iterator[LogLine]:
        return (line for line in self._lines("request", "clock") if isinstance(line, LogLine))

    def outputs(self) -> Iterator[OutputLine]:
        kinds = "answer", "event", "dead letter", "view"
        return (line for line in self._lines(*kinds) if isinstance(line, OutputLine))

    def _lines(self, *kinds: str) -> Iterator[Line]:
        """Yield the lines of these kinds. The kind comes first in a line, so other lines need not
        be decoded.
        """
        wanted = tuple(f'{{"line":"{kind}"'.encode() for kind in kinds)
        for line in self._file.lines():
            if line.startswith(wanted):
                yield self._file.decode(line, _line)
