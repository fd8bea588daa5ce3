"""Which records of the topics belong into a recording, and as which lines."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from kafka_why.contract.codec import UNREADABLE, Clock, DeadLetter, clock_of, record_of
from kafka_why.contract.pack import unpack
from kafka_why.partitioner import partition_of
from operations.replay.recording import (
    Answer,
    Bytes,
    Event,
    Header,
    Letter,
    LogClock,
    LogLine,
    LogRequest,
    OutputLine,
    View,
)
from operations.replay.replay import named_group
from streaming.query.admission import Message
from streaming.query.log_order import LogRow


class TopicRecord(NamedTuple):
    """A record of any topic. The broker appended it at `at_ms`. `is_early` is as in `Answer`."""

    topic: str
    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    is_early: bool = False


class Collector:
    """Makes lines of records. The requests topic comes first, because it shows which answers belong."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._layout = header.layout
        self._admissions = header.admissions()
        self._clocks: dict[int, LogClock] = {}
        # The requests of recorded groups whose answers name no group.
        self._nameless: set[str] = set()
        self._partitions = (
            None
            if header.groups is None
            else {partition_of(group_id, header.layout.request_partitions) for group_id in header.groups}
        )

    @property
    def partitions(self) -> list[int]:
        """The partitions of requests, groups and events that the recording needs."""
        everything = range(self._layout.request_partitions)
        return sorted(everything if self._partitions is None else self._partitions)

    def log(self, records: Iterable[TopicRecord]) -> Iterator[LogLine]:
        """The lines of the requests topic. Of the clock records between two requests only the one with the
        greatest time is kept.
        """
        for record in records:
            clock = clock_of(record.key, record.value)
            if clock is not None:
                self._clock(record, clock)
                continue
            kept = list(self._requests(record))
            if kept:
                if record.partition in self._clocks:
                    yield self._clocks.pop(record.partition)
                yield from kept
        yield from self._clocks.values()
        self._clocks = {}

    def _clock(self, record: TopicRecord, clock: Clock) -> None:
        time_ms = min(clock.time_ms, record.at_ms)
        before = self._clocks.get(record.partition)
        if before is None or before.time_ms < time_ms:
            self._clocks[record.partition] = LogClock(record.partition, record.offset, record.at_ms, time_ms)

    def _requests(self, record: TopicRecord) -> Iterator[LogRequest]:
        row = LogRow(record.partition, record.offset, record.at_ms, record.key or b"", record.value or b"")
        return (
            LogRequest.of(message)
            for message in self._admissions[record.partition].messages(row)
            if self.takes(message)
        )

    def takes(self, message: Message) -> bool:
        """Whether a message is of a recorded group."""
        if self._header.groups is None:
            return True
        group_id = named_group(message)
        is_wanted = self._header.wants(group_id)
        if is_wanted and _group_of(message.value) != group_id:
            self._nameless.add(message.id)
        return is_wanted

    def outputs(self, records: Iterable[TopicRecord]) -> Iterator[OutputLine]:
        """The lines of the output topics."""
        makers: dict[str, Callable[[TopicRecord], Iterator[OutputLine]]] = {
            self._layout.responses_topic: self._answers,
            self._layout.events_topic: self._events,
            self._layout.dead_letters_topic: self._letters,
            self._layout.groups_topic: self._views,
        }
        for record in records:
            yield from makers[record.topic](record)

    def _answers(self, record: TopicRecord) -> Iterator[Answer]:
        for value in unpack(record.value or b""):
            if self._is_wanted(value):
                yield Answer(record.partition, record.offset, record.at_ms, Bytes.of(value), record.is_early)

    def _events(self, record: TopicRecord) -> Iterator[Event]:
        # Entries of the coordinator itself have no key.
        if record.key and self._header.wants(record.key.decode(errors="replace")):
            yield Event(record.partition, record.offset, record.at_ms, Bytes.of(record.value or b""))

    def _letters(self, record: TopicRecord) -> Iterator[Letter]:
        value = record.value or b""
        if self._header.groups is None or self._is_letter_wanted(record.key or b"", value):
            yield Letter(record.partition, record.offset, record.at_ms, Bytes.of(value))

    def _is_letter_wanted(self, key: bytes, value: bytes) -> bool:
        try:
            letter = _letter.decode(value)
        except UNREADABLE:
            return False
        group_id = _group_of(letter.value) or key.decode(errors="replace")
        # A letter without the record is of a parked request that was answered later.
        is_perhaps = not letter.value and self._is_of_partitions(letter.request)
        return letter.request in self._nameless or self._header.wants(group_id) or is_perhaps

    def _views(self, record: TopicRecord) -> Iterator[View]:
        group_id = (record.key or b"").decode(errors="replace")
        if self._header.wants(group_id):
            value = None if record.value is None else Bytes.of(record.value)
            yield View(record.partition, record.offset, record.at_ms, group_id, value)

    def _is_wanted(self, value: bytes) -> bool:
        """Whether an answer or a dead letter belongs to the recorded part of the log."""
        try:
            named = _output.decode(value)
        except UNREADABLE:
            return self._header.groups is None
        if named.request in self._nameless:
            return True
        if named.group_id is None or not self._header.wants(named.group_id):
            return self._header.groups is None and named.group_id is not None
        return self._is_of_partitions(named.request)

    def _is_of_partitions(self, request: str) -> bool:
        if self._partitions is None:
            return True
        try:
            return record_of(request)[1] in self._partitions
        except ValueError:
            return True  # a deadline or a scan, which is of no partition


class _Output(msgspec.Struct):
    request: str = ""
    group_id: str | None = None


_output = msgspec.json.Decoder(_Output)
_letter = msgspec.json.Decoder(DeadLetter)


def _group_of(value: bytes) -> str | None:
    try:
        return _output.decode(value).group_id
    except UNREADABLE:
        return None
