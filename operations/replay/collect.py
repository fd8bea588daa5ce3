"""The selection of the records of the topics that belong in a recording, and their lines."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from checkpoints.sealed_file import ExportedGroup
from kafka_why.contract.codec import UNREADABLE, clock_of, record_of, unpack
from kafka_why.contract.layout import TopicLayout
from kafka_why.partitioner import partition_of
from operations.replay.recording import (
    AnswerLine,
    ClockLine,
    EventLine,
    LetterLine,
    LogLine,
    OutputLine,
    RecordBytes,
    Recording,
    RecordingHeader,
    RequestLine,
    ViewLine,
)
from operations.replay.replay import named_group
from operations.replay.topic_contents import decode_answer, decode_letter, group_named_in
from streaming.query.admission import LogMessage, LogRow


class TopicRecord(NamedTuple):
    """A record of any topic."""

    topic: str
    partition: int
    offset: int
    at_ms: int  # append time
    key: bytes | None
    value: bytes | None
    is_early: bool = False  # as in `AnswerLine`


class Collector:
    """A selector of the records that belong in a recording. Read `log` before `outputs`.

    The log shows which answers belong in the recording.
    """

    def __init__(self, header: RecordingHeader) -> None:
        self._header = header
        self._layout = header.layout
        self._admissions = header.admissions()
        self._clocks: dict[int, ClockLine] = {}
        # The requests of recorded groups whose answers name no group.
        self._nameless: set[str] = set()
        self._partitions = (
            None
            if header.groups is None
            else {partition_of(group_id, header.layout.request_partitions) for group_id in header.groups}
        )

    @property
    def partitions(self) -> list[int]:
        """The partitions of requests, groups and events that are recorded."""
        everything = range(self._layout.request_partitions)
        return sorted(everything if self._partitions is None else self._partitions)

    def log(self, records: Iterable[TopicRecord]) -> Iterator[LogLine]:
        """Yield the lines of the requests topic."""
        for record in records:
            clock = clock_of(record.key, record.value)
            if clock is not None:
                time_ms = min(clock.time_ms, record.at_ms)
                before = self._clocks.get(record.partition)
                # Of the clock records between two requests, the one with the greatest time.
                if before is None or before.time_ms < time_ms:
                    self._clocks[record.partition] = ClockLine(
                        record.partition, record.offset, record.at_ms, time_ms
                    )
            elif kept := self._requests(record):
                if record.partition in self._clocks:
                    yield self._clocks.pop(record.partition)
                yield from kept
        yield from self._clocks.values()
        self._clocks.clear()

    def _requests(self, record: TopicRecord) -> list[RequestLine]:
        row = LogRow(record.partition, record.offset, record.at_ms, record.key or b"", record.value or b"")
        messages = self._admissions[record.partition].messages(row)
        return [RequestLine.of(message) for message in messages if self.takes(message)]

    def takes(self, message: LogMessage) -> bool:
        """Return True if a message is of a recorded group."""
        if self._header.groups is None:
            return True
        group_id = named_group(message)
        is_wanted = self._header.wants(group_id)
        if is_wanted and group_named_in(message.value) != group_id:
            self._nameless.add(message.id)
        return is_wanted

    def outputs(self, records: Iterable[TopicRecord]) -> Iterator[OutputLine]:
        """Yield the lines of the output topics."""
        for record in records:
            yield from filter(self.includes, _output_lines(record, self._layout))

    def includes(self, line: OutputLine) -> bool:
        """Return True if an output belongs to the recorded part of the log."""
        if isinstance(line, ViewLine):
            return self._header.wants(line.group_id)
        value = line.value.get()
        if isinstance(line, EventLine):
            return self._header.wants(group_named_in(value))
        try:
            return (
                self._includes_letter(value) if isinstance(line, LetterLine) else self._includes_answer(value)
            )
        except UNREADABLE:
            return self._header.groups is None

    def _includes_letter(self, value: bytes) -> bool:
        letter = decode_letter(value)
        group_id = group_named_in(letter.value) or letter.key.decode(errors="replace")
        # A letter without the record is of a parked request that was answered later.
        may_belong = not letter.value and self._is_of_partitions(letter.request)
        return letter.request in self._nameless or self._header.wants(group_id) or may_belong

    def _includes_answer(self, value: bytes) -> bool:
        named = decode_answer(value)
        if named.request in self._nameless:
            return True
        is_wanted = named.group_id is not None and self._header.wants(named.group_id)
        return is_wanted and self._is_of_partitions(named.request)

    def _is_of_partitions(self, request: str) -> bool:
        if self._partitions is None:
            return True
        try:
            return record_of(request)[1] in self._partitions
        except ValueError:
            return True  # a deadline or a scan, which is of no partition


def _output_lines(record: TopicRecord, layout: TopicLayout) -> Iterator[OutputLine]:
    place = record.partition, record.offset, record.at_ms
    value = RecordBytes.of(record.value or b"")
    if record.topic == layout.responses_topic:
        for answer in unpack(record.value or b""):
            yield AnswerLine(*place, RecordBytes.of(answer), record.is_early)
    elif record.topic == layout.dead_letters_topic:
        yield LetterLine(*place, value)
    elif record.topic == layout.groups_topic:
        group_id = (record.key or b"").decode(errors="replace")
        yield ViewLine(*place, group_id, None if record.value is None else value)
    elif record.key:  # entries of the coordinator itself have no key
        yield EventLine(*place, value)


class SelectedGroups:
    """The part of a recording about these groups, by the rules of `record`."""

    def __init__(self, recording: Recording, groups: set[str]) -> None:
        self._recording = recording
        self.header: RecordingHeader = replace(recording.header, groups=sorted(groups))
        self._collector = Collector(self.header)
        self._has_read_log = False

    def states(self) -> Iterator[ExportedGroup]:
        return (state for state in self._recording.states() if self.header.wants(state.group_id))

    def log(self) -> Iterator[LogLine]:
        topic = self.header.identity.requests_topic
        for line in self._recording.log():
            if isinstance(line, ClockLine) or self._collector.takes(line.message(topic)):
                yield line

    def outputs(self) -> Iterator[OutputLine]:
        if not self._has_read_log:
            for _ in self.log():  # it shows which answers belong
                pass
            self._has_read_log = True
        return filter(self._collector.includes, self._recording.outputs())
