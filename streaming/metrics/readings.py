"""What the topics and the query have said: the numbers behind the metrics, with no IO and no clock.

One thread reads the topics and another looks after the query; any number scrape meanwhile. The lock is held
for no longer than one record or a copy takes.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from state.errors import ErrorCode
from state.history import EventType, GroupEvent
from state.responses import OffsetCommitResponse
from streaming.history_reader import KAFKA, HistoryReader, decode_entry
from streaming.layout import Layout
from streaming.progress import BatchProgress
from streaming.records import Reason

# (topic, partition)
Partition = tuple[str, int]


class _Member(Struct, frozen=True):
    """Members are only counted."""


class GroupRow(Struct, frozen=True):
    """What is kept of a record of the groups topic, where the group is Kafka's."""

    state: str = ""
    members: list[_Member] = []
    quarantined: str | None = None
    protocol: str = KAFKA


class _OffsetRow(Struct, frozen=True):
    offset: int


class _DeadLetterRow(Struct, frozen=True):
    reason: str


class _Answer(Struct, frozen=True):
    """RocketMQ's answers have a `code`, and what it says by itself has neither."""

    type: str
    error_code: int | None = None


_group = msgspec.json.Decoder(GroupRow)
_offset = msgspec.json.Decoder(_OffsetRow)
_offset_key = msgspec.json.Decoder(tuple[str, str, int])
_dead_letter = msgspec.json.Decoder(_DeadLetterRow)
_answer = msgspec.json.Decoder(_Answer)
_commit_answer = msgspec.json.Decoder(OffsetCommitResponse)


@dataclass(slots=True)
class Numbers:
    """A copy of everything, for one scrape. `groups` and `offsets` are None until they are read to the end:
    half of a topic would show groups that are gone.
    """

    groups: dict[str, GroupRow] | None = None
    # By group, then by topic and partition.
    offsets: dict[str, dict[Partition, int]] | None = None
    end_offsets: dict[Partition, int] = field(default_factory=dict)
    backlog_records: int | None = None
    rebalances: dict[str, int] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    answers: dict[tuple[str, str], int] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    offsets_committed: int = 0
    offsets_expired: int = 0
    offsets_deleted: int = 0
    duplicates: int = 0


class Readings:
    """Takes what comes; `numbers` is what it comes to. Counters count from the start of this process."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._history = HistoryReader(from_start=False)
        self._is_complete = False
        self._groups: dict[str, GroupRow] = {}
        self._offsets: dict[str, dict[Partition, int]] = {}
        self._end_offsets: dict[Partition, int] = {}
        self._read_to: dict[Partition, int] = {}
        self._backlog_records: int | None = None
        self._rebalances: Counter[str] = Counter()
        # What can come begins with 0: an alert on an increase would not see a count that begins with 1.
        self._entries: Counter[str] = Counter(dict.fromkeys(EventType, 0))
        self._answers: Counter[tuple[str, str]] = Counter()
        self._dead_letters: Counter[str] = Counter(dict.fromkeys(Reason, 0))
        self._committed = self._expired = self._deleted = 0

    def take(self, topic: str, key: bytes | None, value: bytes | None) -> GroupEvent | None:
        """Take one record of a topic; a history entry that is new is given back.

        Raises one of `streaming.records.UNREADABLE`.
        """
        layout = self._layout
        with self._lock:
            if topic == layout.groups_topic:
                self._take_group((key or b"").decode(), value)
            elif topic == layout.offsets_topic:
                self._take_offset(key or b"", value)
            elif topic == layout.events_topic:
                return self._take_entry(value or b"")
            elif topic == layout.responses_topic:
                self._take_answer(value or b"")
            else:
                self._dead_letters[_dead_letter.decode(value or b"").reason] += 1
        return None

    def complete(self) -> None:
        """The groups and offsets topics have been read to their ends."""
        with self._lock:
            self._is_complete = True

    def take_batch(self, batch: BatchProgress) -> None:
        """How far the query has read."""
        with self._lock:
            self._read_to.update(batch.end_offsets)

    def take_end_offsets(self, ends: Mapping[Partition, int]) -> None:
        """Where the topics end that were asked about; the backlog is what is between that and the query."""
        with self._lock:
            self._end_offsets = dict(ends)
            behind = [
                end - self._read_to[partition]
                for partition, end in ends.items()
                if partition in self._read_to
            ]
            self._backlog_records = max(sum(behind), 0) if behind else None

    def topics_of_interest(self) -> set[str]:
        """The topics whose ends are wanted: those with a committed offset, and the requests."""
        with self._lock:
            committed = {topic for offsets in self._offsets.values() for topic, _ in offsets}
        return committed | {self._layout.requests_topic}

    def numbers(self) -> Numbers:
        with self._lock:
            numbers = Numbers(
                end_offsets=dict(self._end_offsets),
                backlog_records=self._backlog_records,
                rebalances={g: n for g, n in self._rebalances.items() if g in self._groups},
                entries=dict(self._entries),
                answers=dict(self._answers),
                dead_letters=dict(self._dead_letters),
                offsets_committed=self._committed,
                offsets_expired=self._expired,
                offsets_deleted=self._deleted,
                duplicates=self._history.duplicates,
            )
            if self._is_complete:
                numbers.groups = dict(self._groups)
                numbers.offsets = {group: dict(offsets) for group, offsets in self._offsets.items()}
            return numbers

    def _take_group(self, group_id: str, value: bytes | None) -> None:
        group = _group.decode(value) if value is not None else None
        if group is not None and group.protocol == KAFKA:
            self._groups[group_id] = group
            return
        self._groups.pop(group_id, None)
        self._rebalances.pop(group_id, None)

    def _take_offset(self, key: bytes, value: bytes | None) -> None:
        group_id, topic, partition = _offset_key.decode(key)
        if value is not None:
            offsets = self._offsets.setdefault(group_id, {})
            offsets[topic, partition] = _offset.decode(value).offset
        elif (known := self._offsets.get(group_id)) is not None:
            known.pop((topic, partition), None)
            if not known:
                del self._offsets[group_id]

    def _take_entry(self, value: bytes) -> GroupEvent | None:
        event = decode_entry(value)
        if not isinstance(event, GroupEvent) or not self._history.is_new(event):
            return None
        self._entries[event.type] += 1
        count = sum(map(len, (event.partitions or {}).values()))
        match event.type:
            case EventType.STABLE:
                self._rebalances[event.group_id] += 1
            case EventType.OFFSETS_EXPIRED:
                self._expired += count
            case EventType.OFFSETS_DELETED:
                self._deleted += count
        return event

    def _take_answer(self, value: bytes) -> None:
        answer = _answer.decode(value)
        if answer.error_code is None:
            return
        self._answers[answer.type, _error_name(answer.error_code)] += 1
        if answer.type == "OffsetCommit":
            topics = _commit_answer.decode(value).topics
            outcomes = [partition.error_code for topic in topics for partition in topic.partitions]
            self._committed += outcomes.count(ErrorCode.NONE)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
