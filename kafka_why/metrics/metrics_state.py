"""The numbers behind the metrics, from the topics' records and the query's batches. No IO, no clock.

One thread reads the topics, another follows the query, and any number of threads scrape concurrently. The
lock is held only for one record or one copy.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar, get_args

import msgspec
from msgspec import Struct

from kafka_why.contract.codec import Reason, unpack
from kafka_why.contract.early_answers import Headers, is_from_query
from kafka_why.contract.history_reader import (
    INCARNATIONS_REMEMBERED,
    CoordinatorStarted,
    HistoryReader,
    decode_any_entry,
    decode_any_snapshot,
)
from kafka_why.contract.kafka.history import BY_EPOCHS, EntryType, HistoryEntry
from kafka_why.contract.kafka.responses import OffsetCommitResponse
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode, GroupType
from kafka_why.contract.rocketmq.history import EntryType as RocketMqEntryType
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqGroup
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.contract.rocketmq.requests import AnyToConnection, ResponseCode
from kafka_why.lag.definitions import UNKNOWN, LogBounds, Ownership, Partition, ownership, troubles
from kafka_why.lag.lag_book import LagBook
from kafka_why.metrics.batch_progress import BatchProgress
from kafka_why.metrics.consumer_groups import EpochCounts
from kafka_why.metrics.series import GroupLags, LagTotals, SeriesBounds, SeriesGroups, SeriesSelection

G = TypeVar("G")

_ENTRIES: tuple[tuple[str, str], ...] = (
    *((GroupType.KAFKA, kind) for kind in EntryType),
    *((GroupType.ROCKETMQ, kind) for kind in RocketMqEntryType),
)
_PUSHES = tuple(str(kind.__struct_config__.tag) for kind in get_args(AnyToConnection))


class _DeadLetterRow(Struct, frozen=True):
    reason: str


class _Answer(Struct, frozen=True):
    """The fields of a response that are counted."""

    type: str
    error_code: int | None = None  # of Kafka's response
    code: int | None = None  # of RocketMQ's response; a message pushed to its clients has none


_dead_letter = msgspec.json.Decoder(_DeadLetterRow)
_answer = msgspec.json.Decoder(_Answer)
_commit_answer = msgspec.json.Decoder(OffsetCommitResponse)


@dataclass(slots=True)
class TopicCounts:
    """Counts since the start of this process.

    Possible labels start with 0: an alert on an increase would miss a series that starts with 1.
    """

    classic_rebalances: int = 0
    of_epochs: EpochCounts = field(default_factory=EpochCounts)
    # By protocol and type.
    entries: Counter[tuple[str, str]] = field(default_factory=lambda: Counter(dict.fromkeys(_ENTRIES, 0)))
    expired_connections: int = 0
    # By type and error code.
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    # Messages pushed to RocketMQ's clients, by type.
    pushes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_PUSHES, 0)))
    dead_letters: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(Reason, 0)))
    offsets_committed: int = 0
    offsets_expired: int = 0
    offsets_deleted: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class MetricsNumbers:
    """A copy of all numbers, for one scrape.

    Until the topics are read to their ends, groups and lags are None and `rebalances` is empty, because a
    partly read topic may show deleted groups.
    """

    counts: TopicCounts
    groups: dict[str, GroupSnapshot] | None = None
    rocketmq_groups: dict[str, RocketMqGroup] | None = None
    selection: SeriesSelection = field(default_factory=SeriesSelection)
    # Of each selected group with a committed offset.
    lags: dict[str, GroupLags] | None = None
    # Of all other groups, or None if there are none.
    other_lags: LagTotals | None = None
    offsets: int = 0
    rebalances: dict[str, int] = field(default_factory=dict)  # of groups with their own series


class MetricsState:
    """The counts of records and batches since the start of this process, and the state of groups."""

    def __init__(self, layout: TopicLayout, bounds: SeriesBounds | None = None) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._history = HistoryReader(from_start=False, remembers=INCARNATIONS_REMEMBERED)
        self._is_complete = False
        self._groups: dict[str, GroupSnapshot] = {}
        self._rocketmq_groups: dict[str, RocketMqGroup] = {}
        self.bounds = bounds or SeriesBounds()
        self._selected = SeriesGroups(self.bounds)
        self._ownerships: dict[str, Ownership] = {}  # a cache: computed from the view when needed
        self._lags = LagBook()
        self._polled_ms = 0
        self._read_to: dict[Partition, int] = {}
        self._backlog_records: int | None = None
        self._rebalances: Counter[str] = Counter()
        self._counts = TopicCounts()

    def apply(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers | None = None
    ) -> HistoryEntry | None:
        """Count one record of a topic.

        Return the entry if it is a new history entry of a Kafka group, else None. Raises one of UNREADABLE.
        """
        layout = self._layout
        with self._lock:
            if topic == layout.groups_topic:
                self._apply_group((key or b"").decode(), value)
            elif topic == layout.offsets_topic:
                self._select(self._lags.apply_commit(key or b"", value))
            elif topic == layout.events_topic:
                return self._apply_entry(value or b"")
            elif topic == layout.responses_topic:
                # A replica's early answer is not counted.
                if is_from_query(headers):
                    for encoded in unpack(value or b""):
                        self._count_answer(encoded)
            else:
                self._counts.dead_letters[_dead_letter.decode(value or b"").reason] += 1
        return None

    def complete(self) -> None:
        """Mark the groups and offsets topics as read to their ends."""
        with self._lock:
            self._is_complete = True

    def observe_batch(self, batch: BatchProgress) -> None:
        """Store how far the query has read."""
        with self._lock:
            self._read_to.update(batch.end_offsets)

    def add_bounds(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        """Add the bounds of logs, and compute the backlog.

        The backlog is the records between the query's position and the end.
        """
        with self._lock:
            self._lags.add_bounds(bounds, at_ms)
            self._polled_ms = at_ms
            behind = [
                log.latest - self._read_to[partition]
                for partition, log in bounds.items()
                if partition in self._read_to
            ]
            self._backlog_records = max(sum(behind), 0) if behind else None

    def topics(self) -> set[str]:
        """Return the topics whose bounds are needed: those with committed offsets, and the query's source."""
        with self._lock:
            return self._lags.topics() | {self._layout.source_topic}

    def wanted_times(self) -> dict[Partition, int]:
        """Return the offsets whose record times are needed (`LagBook.wanted_times`)."""
        with self._lock:
            return self._lags.wanted_times()

    def add_times(self, wanted: Mapping[Partition, int], lags_ms: Mapping[Partition, int]) -> None:
        with self._lock:
            self._lags.add_times(wanted, lags_ms)

    def backlog_records(self) -> int | None:
        """Return the number of records that the query has not read yet, or None if unknown."""
        with self._lock:
            return self._backlog_records

    def numbers(self) -> MetricsNumbers:
        numbers = self._without_lags()
        if numbers.groups is not None:
            chosen, others = numbers.selection.group_ids, LagTotals()
            with self._lock:
                with_offsets = [group_id for group_id in chosen if self._lags.has_offsets(group_id)]
                behind = [group_id for group_id in self._lags.groups_behind() if group_id not in chosen]
            numbers.lags = {group_id: self._group_lags(group_id) for group_id in with_offsets}
            for group_id in behind:
                others.add(self._group_lags(group_id))
            numbers.other_lags = others if numbers.selection.others else None
        return numbers

    def _without_lags(self) -> MetricsNumbers:
        with self._lock:
            self._counts.duplicates = self._history.duplicates
            numbers = MetricsNumbers(deepcopy(self._counts))
            if self._is_complete:
                numbers.groups = dict(self._groups)
                numbers.rocketmq_groups = dict(self._rocketmq_groups)
                numbers.selection = self._selected.selection()
                numbers.offsets = self._lags.offset_count()
                # From 0 on: an increase does not see a count that starts with 1.
                numbers.rebalances = {g: self._rebalances[g] for g, _ in numbers.selection.own(self._groups)}
            return numbers

    def _apply_group(self, group_id: str, value: bytes | None) -> None:
        view = decode_any_snapshot(value) if value is not None else None
        _keep(self._groups, group_id, view if isinstance(view, GroupSnapshot) else None)
        _keep(self._rocketmq_groups, group_id, view if isinstance(view, RocketMqGroup) else None)
        self._ownerships.pop(group_id, None)
        if group_id not in self._groups:
            self._rebalances.pop(group_id, None)
        self._select(group_id)

    def _select(self, group_id: str) -> None:
        views: tuple[Mapping[str, object], ...] = (self._groups, self._rocketmq_groups)
        if self._lags.has_offsets(group_id) or any(group_id in view for view in views):
            self._selected.add(group_id)
        else:
            self._selected.remove(group_id)

    def _group_lags(self, group_id: str) -> GroupLags:
        with self._lock:
            owned = self._ownership(group_id)
            lags = self._lags.lags(group_id, owned.settled_ms)
            view = self._groups.get(group_id)
            # As of the last poll of the brokers.
            found = troubles(lags, owned, self._polled_ms)
        return GroupLags(lags, owned, found, view.members if view is not None else ())

    def _ownership(self, group_id: str) -> Ownership:
        view = self._groups.get(group_id)
        if view is None:
            return UNKNOWN
        if group_id not in self._ownerships:
            self._ownerships[group_id] = ownership(view)
        return self._ownerships[group_id]

    def _apply_entry(self, value: bytes) -> HistoryEntry | None:
        event = decode_any_entry(value)
        if event is None or isinstance(event, CoordinatorStarted) or not self._history.is_new(event):
            return None
        counts = self._counts
        if isinstance(event, RocketMqHistoryEntry):
            counts.entries[GroupType.ROCKETMQ, event.type] += 1
            counts.expired_connections += event.is_expiry
            return None
        counts.entries[GroupType.KAFKA, event.type] += 1
        count = sum(map(len, (event.partitions or {}).values()))
        has_epochs = event.group_type in BY_EPOCHS
        if has_epochs:
            counts.of_epochs.count(event)
        match event.type:
            case EntryType.STABLE if not has_epochs or event.took_ms is not None:
                self._rebalances[event.group_id] += 1
                counts.classic_rebalances += not has_epochs
            case EntryType.GROUP_DELETED if event.group_id not in self._groups:
                self._rebalances.pop(event.group_id, None)
            case EntryType.OFFSETS_EXPIRED:
                counts.offsets_expired += count
            case EntryType.OFFSETS_DELETED:
                counts.offsets_deleted += count
        return event

    def _count_answer(self, value: bytes) -> None:
        answer, counts = _answer.decode(value), self._counts
        if answer.code is not None:
            counts.answers[answer.type, _name(ResponseCode, answer.code)] += 1
            return
        if answer.error_code is None:
            counts.pushes[answer.type] += 1
            return
        counts.answers[answer.type, _name(ErrorCode, answer.error_code)] += 1
        if answer.type == "OffsetCommit":
            topics = _commit_answer.decode(value).topics
            outcomes = [partition.error_code for topic in topics for partition in topic.partitions]
            counts.offsets_committed += outcomes.count(ErrorCode.NONE)


def _keep(table: dict[str, G], group_id: str, group: G | None) -> None:
    if group is None:
        table.pop(group_id, None)
    else:
        table[group_id] = group


def _name(codes: type[IntEnum], code: int) -> str:
    try:
        return codes(code).name
    except ValueError:
        return str(code)
