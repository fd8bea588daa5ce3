"""The selection of the records that belong in a recording, and their conversion to its lines."""

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
    is_early: bool = False  # an answer that a replica wrote, as in `AnswerLine`


class Collector:
    """A selector of the records that belong in a recording. Read `log` before `outputs`, because some answers
    can be recognized only by the requests in the log.
    """

    def __init__(self, header: RecordingHeader) -> None:
        self._header = header
        self._layout = header.layout
        self._admissions = header.admissions()
        # By partition, the clock line that precedes the next recorded request.
        self._pending_clocks: dict[int, ClockLine] = {}
        # The ids of requests of recorded groups whose values, and so whose answers, name no group.
        self._nameless_requests: set[str] = set()
        self._partitions = (  # of the requests topic; None: all
            None
            if header.groups is None
            else {partition_of(group_id, header.layout.request_partitions) for group_id in header.groups}
        )

    @property
    def partitions(self) -> list[int]:
        """The partitions of the requests topic that are recorded."""
        all_partitions = range(self._layout.request_partitions)
        return sorted(all_partitions if self._partitions is None else self._partitions)

    def log(self, records: Iterable[TopicRecord]) -> Iterator[LogLine]:
        """Yield the lines of records of the requests topic: recorded requests, and clock lines."""
        for record in records:
            clock = clock_of(record.key, record.value)
            if clock is not None:
                time_ms = min(clock.time_ms, record.at_ms)
                pending = self._pending_clocks.get(record.partition)
                # Keep the greatest time of the clock records between two requests.
                if pending is None or pending.time_ms < time_ms:
                    self._pending_clocks[record.partition] = ClockLine(
                        record.partition, record.offset, record.at_ms, time_ms
                    )
            elif requests := self._selected_requests(record):
                if record.partition in self._pending_clocks:
                    yield self._pending_clocks.pop(record.partition)
                yield from requests
        yield from self._pending_clocks.values()
        self._pending_clocks.clear()

    def _selected_requests(self, record: TopicRecord) -> list[RequestLine]:
        """Return the requests of recorded groups in this record."""
        row = LogRow(record.partition, record.offset, record.at_ms, record.key or b"", record.value or b"")
        messages = self._admissions[record.partition].messages(row)
        return [RequestLine.of(message) for message in messages if self.accepts(message)]

    def accepts(self, message: LogMessage) -> bool:
        """Return True if a message is of a recorded group.

        If its value does not name the group, store its id, so that `includes` recognizes its outputs.
        """
        if self._header.groups is None:
            return True
        group_id = named_group(message)
        is_wanted = self._header.wants(group_id)
        if is_wanted and group_named_in(message.value) != group_id:
            self._nameless_requests.add(message.id)
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
        """Return True if a dead letter belongs to the recorded part. Raises one of UNREADABLE."""
        letter = decode_letter(value)
        group_id = group_named_in(letter.value) or letter.key.decode(errors="replace")
        # A letter without a value is of a parked request, whose answer was sent later. It does not name the
        # group, so it may be of any group in a recorded partition.
        may_belong = not letter.value and self._is_in_recorded_partitions(letter.request)
        return letter.request in self._nameless_requests or self._header.wants(group_id) or may_belong

    def _includes_answer(self, value: bytes) -> bool:
        """Return True if an answer belongs to the recorded part. Raises one of UNREADABLE."""
        answer = decode_answer(value)
        if answer.request in self._nameless_requests:
            return True
        is_wanted = answer.group_id is not None and self._header.wants(answer.group_id)
        # A request in another partition was refused and is not recorded, so its answer is not either.
        return is_wanted and self._is_in_recorded_partitions(answer.request)

    def _is_in_recorded_partitions(self, request: str) -> bool:
        """Return True unless this is the id of a request in a partition that is not recorded."""
        if self._partitions is None:
            return True
        try:
            return record_of(request)[1] in self._partitions
        except ValueError:
            return True  # a deadline, or a scan of RocketMQ's connections, which has no partition


def _output_lines(record: TopicRecord, layout: TopicLayout) -> Iterator[OutputLine]:
    """Yield the lines of a record of an output topic: several for a pack of answers, else one or none."""
    position = record.partition, record.offset, record.at_ms
    value = RecordBytes.of(record.value or b"")
    if record.topic == layout.responses_topic:
        for answer in unpack(record.value or b""):
            yield AnswerLine(*position, RecordBytes.of(answer), record.is_early)
    elif record.topic == layout.dead_letters_topic:
        yield LetterLine(*position, value)
    elif record.topic == layout.groups_topic:
        group_id = (record.key or b"").decode(errors="replace")
        yield ViewLine(*position, group_id, None if record.value is None else value)
    elif record.key:  # entries of the coordinator itself have no key
        yield EventLine(*position, value)


class SelectedGroups:
    """A recording of only some groups of another recording."""

    def __init__(self, recording: Recording, groups: set[str]) -> None:
        self._recording = recording
        self.header: RecordingHeader = replace(recording.header, groups=sorted(groups))
        self._collector = Collector(self.header)

    def states(self) -> Iterator[ExportedGroup]:
        return (state for state in self._recording.states() if self.header.wants(state.group_id))

    def log(self) -> Iterator[LogLine]:
        topic = self.header.identity.requests_topic
        for line in self._recording.log():
            if isinstance(line, ClockLine) or self._collector.accepts(line.message(topic)):
                yield line

    def outputs(self) -> Iterator[OutputLine]:
        for _ in self.log():  # so that the collector knows the requests whose answers name no group
            pass
        return filter(self._collector.includes, self._recording.outputs())
