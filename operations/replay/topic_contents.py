"""The records on the output topics by identity: answers, history, dead letters and views, each once; and the
position in a recording from which they show that each group can be judged.

A group's state is known at the beginning of a topic that has lost no record, at the state that the recording
begins with, and where a group is created: an incarnation of a group is named after the request that created
it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from kafka_why.contract.codec import UNREADABLE, DeadLetter, Reason, record_of
from kafka_why.contract.early_answers import lists_changed
from kafka_why.partitioner import partition_of
from operations.replay.recording import (
    AnswerLine,
    EventLine,
    LetterLine,
    OutputLine,
    Recording,
    RecordingHeader,
    ViewLine,
)


class RecordKind(StrEnum):
    """The kinds of records that are judged."""

    ANSWER = "answer"
    EARLY = "early answer"
    HISTORY = "history entry"
    LETTER = "dead letter"
    VIEW = "view"


class AnswerName(NamedTuple):
    """The identity of an answer, or of a message to a RocketMQ connection."""

    request: str  # its id; of a message to a connection, also a scan
    connection: str = ""  # as the following fields, only of a message to a connection
    type: str = ""
    group_id: str = ""

    def __str__(self) -> str:
        if self.connection:
            return f"{self.type} to {self.connection} because of {self.request}"
        return f"answer to {self.request}"


class EventName(NamedTuple):
    """The identity of a history entry or a view."""

    group_id: str
    incarnation: str
    seq: int

    def __str__(self) -> str:
        return f"number {self.seq} of incarnation {self.incarnation}"


class LetterName(NamedTuple):
    """The identity of a dead letter."""

    reason: str
    subject: str  # the request, or the group and the deadline that failed

    def __str__(self) -> str:
        return f"{self.reason} of {self.subject}"


class RecordCopy(NamedTuple):
    """The first copy of a record."""

    partition: int
    offset: int
    value: bytes
    number: int  # among all records that were read


class Contradiction(NamedTuple):
    """Two records of one name with different bytes."""

    name: AnswerName | EventName | LetterName
    first: RecordCopy
    second: RecordCopy


N = TypeVar("N", bound=AnswerName | EventName | LetterName)


class AnswerFields(msgspec.Struct):
    """The fields that identify an answer, or a request."""

    request: str = ""
    connection: str = ""
    type: str = ""
    group_id: str | None = None


class EventFields(msgspec.Struct):
    """The fields that history entries and views of any protocol share."""

    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    type: str = ""
    cause: str = ""
    late_by_ms: int | None = None


# Decoders raise one of `kafka_why.contract.codec.UNREADABLE`.
decode_answer = msgspec.json.Decoder(AnswerFields).decode
event_fields = msgspec.json.Decoder(EventFields).decode
decode_letter = msgspec.json.Decoder(DeadLetter).decode


def answer_name(value: bytes) -> AnswerName:
    """Return the name of an answer. Raises one of UNREADABLE."""
    fields = decode_answer(value)
    if not fields.connection:
        return AnswerName(fields.request)
    return AnswerName(fields.request, fields.connection, fields.type, fields.group_id or "")


def letter_name(value: bytes) -> LetterName:
    """Return the name of a dead letter. Raises one of UNREADABLE."""
    letter = decode_letter(value)
    first_line = letter.message.partition("\n")[0]
    return LetterName(letter.reason, letter.request or f"{letter.key.decode(errors='replace')}: {first_line}")


def group_named_in(value: bytes) -> str:
    """Return the group of an answer or dead letter, or ""."""
    try:
        return decode_answer(value).group_id or ""
    except UNREADABLE:
        return ""


def is_determined_by_log(name: object) -> bool:
    """Return False if the record has a traceback, which depends on the installation."""
    return not isinstance(name, LetterName) or name.reason != Reason.HANDLER_FAILED


@dataclass
class TopicContents:
    """The outputs of a recording."""

    answers: dict[AnswerName, RecordCopy] = field(default_factory=dict)  # of the query
    # Answers of replicas.
    early: dict[AnswerName, list[RecordCopy]] = field(default_factory=lambda: defaultdict(list))
    events: dict[EventName, RecordCopy] = field(default_factory=dict)
    letters: dict[LetterName, RecordCopy] = field(default_factory=dict)
    views: dict[EventName, list[RecordCopy]] = field(default_factory=lambda: defaultdict(list))
    last_views: dict[str, EventName | None] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)  # delay in ms of each request that was applied late
    duplicates: int = 0  # records that were written again with the same bytes
    unreadable: list[OutputLine] = field(default_factory=list)  # without a name
    contradictions: list[Contradiction] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Iterable[OutputLine]) -> "TopicContents":
        found = cls()
        for number, line in enumerate(lines):
            try:
                found._add_line(line, number)
            except UNREADABLE:
                found.unreadable.append(line)
        return found

    def incarnations_by_group(self) -> dict[str, set[str]]:
        """Return the incarnations in each group's history and views."""
        incarnations: dict[str, set[str]] = defaultdict(set)
        for name in (*self.events, *self.views):
            incarnations[name.group_id].add(name.incarnation)
        return incarnations

    def _add_line(self, line: OutputLine, number: int) -> None:
        value = b"" if line.value is None else line.value.get()
        copy = RecordCopy(line.partition, line.offset, value, number)
        match line:
            case AnswerLine(is_early=True) if lists_changed(value):
                pass  # the log does not determine it, because it depends on the query's progress
            case AnswerLine(is_early=True):
                self.early[answer_name(value)].append(copy)
            case AnswerLine():
                self._add(self.answers, answer_name(value), copy)
            case EventLine():
                self._add_event(copy)
            case LetterLine():
                self._add(self.letters, letter_name(value), copy)
            case ViewLine(group_id=group_id):
                self._add_view(group_id, None if line.value is None else copy)

    def _add_event(self, copy: RecordCopy) -> None:
        fields = event_fields(copy.value)
        self._add(self.events, EventName(fields.group_id, fields.incarnation, fields.seq), copy)
        if fields.late_by_ms is not None:
            self.late[fields.cause] = fields.late_by_ms

    def _add_view(self, group_id: str, copy: RecordCopy | None) -> None:
        name = None
        if copy is not None:
            fields = event_fields(copy.value)
            name = EventName(group_id, fields.incarnation, fields.seq)
            if copy.value in [known.value for known in self.views[name]]:
                self.duplicates += 1
            else:
                self.views[name].append(copy)
        self.last_views[group_id] = name

    def _add(self, names: dict[N, RecordCopy], name: N, copy: RecordCopy) -> None:
        first = names.setdefault(name, copy)
        if first is copy:
            return
        if (first.partition, first.value) == (copy.partition, copy.value):
            self.duplicates += 1
        elif is_determined_by_log(name):
            self.contradictions.append(Contradiction(name, first, copy))


class LogPosition(NamedTuple):
    """The position of a request in the log."""

    partition: int
    offset: int
    n: int  # 0 for a record that is not a pack


class ReplayStart(Struct, frozen=True):
    """The position at which the replay of a group begins.

    If not `is_cut`, the recording begins with the group after entry `seq` of `incarnation`.
    """

    is_cut: bool = False  # the beginning of the log is gone
    # The request that created the group anew; None if the log has none, so the group cannot be judged.
    request: str | None = None
    incarnation: str = ""
    seq: int = 0

    def has(self, place: LogPosition) -> bool:
        """Return True if the position of a request is at or after the start."""
        if not self.is_cut:
            return True
        return self.request is not None and place >= _position(self.request)


def starts_of(recording: Recording, found: TopicContents) -> dict[str, ReplayStart]:
    """Return the starts of the groups that do not begin with the recording's log."""
    header = recording.header
    starts: dict[str, ReplayStart] = {}
    for state in recording.states():
        group = state.decode()
        starts[state.group_id] = ReplayStart(incarnation=group.incarnation, seq=group.seq)
    if header.starts_from is not None:
        return starts
    for group_id, incarnations in found.incarnations_by_group().items():
        if not header.wants(group_id):
            continue
        partition = partition_of(group_id, header.layout.request_partitions)
        places = {incarnation: position_of(incarnation, header) for incarnation in incarnations}
        if partition in header.is_first and None not in places.values():
            continue
        created = [
            (place, incarnation)
            for incarnation, place in places.items()
            if place is not None and is_recorded(place, header)
        ]
        starts[group_id] = ReplayStart(is_cut=True, request=min(created)[1] if created else None)
    return starts


def position_of(request: str, header: RecordingHeader) -> LogPosition | None:
    """Return the position of a request in the recorded topic, or None."""
    try:
        topic = record_of(request)[0]
    except ValueError:
        return None
    return _position(request) if topic == header.identity.requests_topic else None


def is_recorded(place: LogPosition, header: RecordingHeader) -> bool:
    """Return True if a position is in the recorded part of the log."""
    return header.begins.get(place.partition, 0) <= place.offset < header.ends.get(place.partition, 0)


def _position(request: str) -> LogPosition:
    _, partition, offset = record_of(request)
    return LogPosition(partition, offset, int(request.partition("#")[2] or 0))
