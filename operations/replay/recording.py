"""A recording of a coordinator: the part of its log that concerns some groups, its other inputs, and its
output.

The output is a function of the log (requests, and the greatest time that clock records attest), the
configurations with their times, and the outages, the times without a coordinator. A recording has these
inputs. It also has the records on the output topics for the same groups: answers, history, dead letters and
views, which are the groups' published states.

`group-coordinator record` writes a recording as a sealed file (`checkpoints.sealed_file`) of lines. A file
whose name ends with `.zst` is compressed with Zstandard.
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
    """The last committed batch that the checkpoint shows. Its output must be on the topics."""

    batch: int  # its number
    ends: dict[int, int]  # first offset after the batch, by partition
    watermark_ms: int  # earlier deadlines have fired


class RecordingHeader(Struct, frozen=True, kw_only=True):
    """The header of a recording: its origin and bounds, and the coordinator's inputs other than the log."""

    version: int = FORMAT_VERSION
    recorded_at_ms: int
    code_version: str  # of the package that recorded
    groups: list[str] | None  # None: all
    identity: Identity
    layout: TopicLayout
    epochs: list[Epoch]  # the coordinator's configurations, in order
    outages: list[KnownOutage]
    begins: dict[int, int]  # first offset of the recorded part of the log, by partition
    ends: dict[int, int]  # first offset after that part, by partition
    is_first: list[int]  # partitions whose part begins with the first record ever written
    handled: HandledBatch | None  # None if it is not known which outputs have to be on the topics
    # By topic and partition, append time of the first record that retention has left; partitions that lost no
    # record are omitted.
    kept_since_ms: dict[str, dict[int, int]]
    starts_from: str | None = None  # name of the export that the first states of groups are from
    until_ms: int | None = None  # end of the recorded part of the log (exclusive), if it was cut

    @property
    def configs(self) -> Configs:
        """The configurations by time."""
        return configs_of(
            self.epochs, CoordinatorConfig(member_id_namespace=self.identity.member_id_namespace)
        )

    def admissions(self) -> dict[int, Admission]:
        """Return, by partition of the log, the rules that admit or refuse its messages."""
        # A record can be skipped only before it is handled, so the last epoch has all skipped records.
        skip = frozenset(self.epochs[-1].skip)
        return {
            partition: Admission(self.layout, partition, self.identity.shards, skip)
            for partition in range(self.layout.request_partitions)
        }

    def wants(self, group_id: str) -> bool:
        """Return True if this group is recorded."""
        return self.groups is None or group_id in self.groups


class RecordBytes(Struct, frozen=True, omit_defaults=True):
    """Bytes of a record. Valid UTF-8 is stored as text, so that people can read it."""

    text: str | None = None
    base64: bytes | None = None  # msgspec stores bytes in base64

    @classmethod
    def of(cls, content: bytes) -> "RecordBytes":
        """Return this content as text if it is valid UTF-8, else as bytes."""
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
    """A line with a record of a topic."""

    partition: int
    offset: int
    at_ms: int  # append time


class RequestLine(RecordLine, frozen=True, tag="request"):
    """A message of the requests topic: a record, or a part of a pack."""

    n: int | None  # number in the pack, or None if the record is not a pack
    key: RecordBytes
    value: RecordBytes

    @classmethod
    def of(cls, message: LogMessage) -> "RequestLine":
        row = message.row
        key, value = RecordBytes.of(row.key), RecordBytes.of(message.value)
        return cls(row.partition, row.offset, row.at_ms, message.n, key, value)

    def message(self, requests_topic: str) -> LogMessage:
        """Return the message for `streaming.query.admission`.

        Its row has the message's value, not the pack's.
        """
        value = self.value.get()
        row = LogRow(self.partition, self.offset, self.at_ms, self.key.get(), value)
        return LogMessage(row, self.n, value, request_id(requests_topic, self.partition, self.offset, self.n))


class ClockLine(RecordLine, frozen=True, tag="clock"):
    """The greatest time that a partition's clock records attest since the partition's previous line."""

    time_ms: int  # at most the clock record's append time, `at_ms`


class AnswerLine(RecordLine, frozen=True, tag="answer", omit_defaults=True):
    """A response, or a message to a RocketMQ connection, on a reply partition."""

    value: RecordBytes
    is_early: bool = False  # written by a replica before the query's (`kafka_why.contract.early_answers`)


class EventLine(RecordLine, frozen=True, tag="event"):
    """A history entry."""

    value: RecordBytes


class LetterLine(RecordLine, frozen=True, tag="dead letter"):
    """A dead letter."""

    value: RecordBytes


class ViewLine(RecordLine, frozen=True, tag="view"):
    """A record of the groups topic."""

    group_id: str
    value: RecordBytes | None  # None if the group ended


LogLine = RequestLine | ClockLine
OutputLine = AnswerLine | EventLine | LetterLine | ViewLine
Line = StartLine | LogLine | OutputLine


class Recording(Protocol):
    """A recording in any storage. Each call of a method reads it from its beginning."""

    @property
    def header(self) -> RecordingHeader: ...

    def states(self) -> Iterator[ExportedGroup]:
        """Yield the groups' states at the beginning of the recording."""

    def log(self) -> Iterator[LogLine]:
        """Yield the log, each partition in its order."""

    def outputs(self) -> Iterator[OutputLine]:
        """Yield the records on the output topics, in the order of each partition."""


class _End(Struct, forbid_unknown_fields=True):
    """The last line of the file, by which a cut or changed file is recognized."""

    lines: int
    sha256: str


_RECORDING = SealedFormat(
    header=RecordingHeader,
    end=_End,
    version=FORMAT_VERSION,
    a_file="a recording",
    can_be_compressed=True,
)
_line_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def write_recording(path: Path, header: RecordingHeader, lines: Iterable[Line]) -> int:
    """Write a new file. Return its number of lines. Raises UserFacingError if it exists or is not writable.

    `lines` are in this order: states, log, outputs. The file gets its name when it is complete.
    """
    return write_sealed(path, _RECORDING, header, lines)


class RecordingFile:
    """A complete recording. The constructor reads the whole file once.

    It raises UserFacingError if the file is cut, changed, or of another format.
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
        """Yield the lines of these kinds."""
        # A line begins with its kind, so that lines of other kinds need not be decoded.
        line_starts = tuple(f'{{"line":"{kind}"'.encode() for kind in kinds)
        for line in self._file.lines():
            if line.startswith(line_starts):
                yield self._file.decode(line, _line_decoder)
