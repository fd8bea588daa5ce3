"""The records on the output topics by identity, each once: answers, history, dead letters, and views (the
published states of groups). Also the position in a recording from which each group can be judged.

A group can be judged from a position at which its state is known. This is the first record of a log that has
lost no record, the state at the beginning of the recording, or the request that created the group. Each
creation of a group begins an incarnation, which has the id of this request.
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

    request: str  # id of the request, or of the scan that sent a message to a connection
    connection: str = ""  # this field and the next two are set only for a message to a connection
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
    """A record on an output topic."""

    partition: int
    offset: int
    value: bytes
    number: int  # position among all records that were read


class Contradiction(NamedTuple):
    """Two records with the same name and different bytes."""

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
decode_event = msgspec.json.Decoder(EventFields).decode
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
    """Return True if the log determines the record's bytes. It does not if the record is a dead letter with a
    traceback, which depends on the installation.
    """
    return not isinstance(name, LetterName) or name.reason != Reason.HANDLER_FAILED


@dataclass
class TopicContents:
    """The outputs of a recording, by the names that identify them."""

    answers: dict[AnswerName, RecordCopy] = field(default_factory=dict)  # of the query
    # Answers of replicas.
    early: dict[AnswerName, list[RecordCopy]] = field(default_factory=lambda: defaultdict(list))
    events: dict[EventName, RecordCopy] = field(default_factory=dict)
    letters: dict[LetterName, RecordCopy] = field(default_factory=dict)
    views: dict[EventName, list[RecordCopy]] = field(default_factory=lambda: defaultdict(list))
    last_views: dict[str, EventName | None] = field(default_factory=dict)  # by group; None if it ended
    late: dict[str, int] = field(default_factory=dict)  # delay in ms of each request that was applied late
    duplicates: int = 0  # records that were written again with the same bytes
    unreadable: list[OutputLine] = field(default_factory=list)  # so they have no name
    contradictions: list[Contradiction] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Iterable[OutputLine]) -> "TopicContents":
        """Return the contents of these lines, which are in the order of each partition."""
        contents = cls()
        for number, line in enumerate(lines):
            try:
                contents._add_line(line, number)
            except UNREADABLE:
                contents.unreadable.append(line)
        return contents

    def incarnations_by_group(self) -> dict[str, set[str]]:
        """Return the incarnations in each group's history and views."""
        incarnations: dict[str, set[str]] = defaultdict(set)
        for name in (*self.events, *self.views):
            incarnations[name.group_id].add(name.incarnation)
        return incarnations

    def _add_line(self, line: OutputLine, number: int) -> None:
        """Add a record. Raises one of UNREADABLE."""
        value = b"" if line.value is None else line.value.get()
        copy = RecordCopy(line.partition, line.offset, value, number)
        match line:
            case AnswerLine(is_early=True) if lists_changed(value):
                pass  # depends on the query's progress, so the log does not determine its value
            case AnswerLine(is_early=True):
                self.early[answer_name(value)].append(copy)
            case AnswerLine():
                self._add_once(self.answers, answer_name(value), copy)
            case EventLine():
                self._add_event(copy)
            case LetterLine():
                self._add_once(self.letters, letter_name(value), copy)
            case ViewLine(group_id=group_id):
                self._add_view(group_id, None if line.value is None else copy)

    def _add_event(self, copy: RecordCopy) -> None:
        """Add a history entry, and the delay of its request if that was applied late."""
        fields = decode_event(copy.value)
        self._add_once(self.events, EventName(fields.group_id, fields.incarnation, fields.seq), copy)
        if fields.late_by_ms is not None:
            self.late[fields.cause] = fields.late_by_ms

    def _add_view(self, group_id: str, copy: RecordCopy | None) -> None:
        """Add a view of a group, or None if the group ended."""
        name = None
        if copy is not None:
            fields = decode_event(copy.value)
            name = EventName(group_id, fields.incarnation, fields.seq)
            if copy.value in [earlier.value for earlier in self.views[name]]:
                self.duplicates += 1
            else:
                self.views[name].append(copy)
        self.last_views[group_id] = name

    def _add_once(self, names: dict[N, RecordCopy], name: N, copy: RecordCopy) -> None:
        """Add a record, or if its name already has a record, compare it with that."""
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

    By default it is the beginning of the log. If `incarnation` is set, the replay begins with the recorded
    state of the group, its state after history entry `seq` of this incarnation.
    """

    is_cut: bool = False  # the beginning of the log is gone
    # The request that created the group anew; None if the log has none, so the group cannot be judged.
    request: str | None = None
    incarnation: str = ""
    seq: int = 0

    def includes(self, position: LogPosition) -> bool:
        """Return True if the replay applies the request at this position of the log."""
        if not self.is_cut:
            return True  # all requests in the log, because it begins with the group or its recorded state
        return self.request is not None and position >= _position(self.request)


def find_starts(recording: Recording, found: TopicContents) -> dict[str, ReplayStart]:
    """Return the start of each group whose first request is not in the recorded part of the log.

    `found` are the recording's outputs. The groups' history and views tell which requests created them.
    """
    header = recording.header
    groups = ((state.group_id, state.decode()) for state in recording.states())
    starts = {name: ReplayStart(incarnation=group.incarnation, seq=group.seq) for name, group in groups}
    if header.starts_from is not None:
        return starts  # the recording begins with the groups that existed, so all others began later
    for group_id, incarnations in found.incarnations_by_group().items():
        if not header.wants(group_id):
            continue
        partition = partition_of(group_id, header.layout.request_partitions)
        positions = {incarnation: position_of(incarnation, header) for incarnation in incarnations}
        if partition in header.is_first and None not in positions.values():
            continue  # the recorded part has the whole log of the group
        recorded_creations = [
            (position, incarnation)
            for incarnation, position in positions.items()
            if position is not None and is_recorded(position, header)
        ]
        starts[group_id] = ReplayStart(
            is_cut=True, request=min(recorded_creations)[1] if recorded_creations else None
        )
    return starts


def position_of(request: str, header: RecordingHeader) -> LogPosition | None:
    """Return the position of a request in the recorded topic, or None for a deadline or another topic."""
    try:
        topic = record_of(request)[0]
    except ValueError:
        return None
    return _position(request) if topic == header.identity.requests_topic else None


def is_recorded(position: LogPosition, header: RecordingHeader) -> bool:
    """Return True if a position is in the recorded part of the log."""
    return (
        header.begins.get(position.partition, 0) <= position.offset < header.ends.get(position.partition, 0)
    )


def _position(request: str) -> LogPosition:
    """Return the position that the id of a request contains."""
    _, partition, offset = record_of(request)
    number_in_pack = request.partition("#")[2]  # "" if the record is not a pack
    return LogPosition(partition, offset, int(number_in_pack or 0))
