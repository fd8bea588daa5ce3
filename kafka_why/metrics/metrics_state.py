"""The numbers behind the metrics, from the topics' records and the query's batches. No IO, no clock.

One thread reads the topics, another follows the query, and any number of threads scrape concurrently. The
lock is held only for one record or one copy.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar, get_args

import msgspec
import prometheus_client
from msgspec import Struct
from prometheus_client import CollectorRegistry

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
from kafka_why.lag.definitions import UNKNOWN, Ownership, Partition, harmful_lags, ownership
from kafka_why.lag.lag_book import LagBook
from kafka_why.metrics.batch_progress import BatchProgress
from kafka_why.metrics.consumer_groups import EpochCounts
from kafka_why.metrics.series import OWN, GroupLags, LagTotals, SeriesBounds, SeriesGroups, SeriesSelection

G = TypeVar("G")

# The possible labels of counters.
_ENTRIES: tuple[tuple[str, str], ...] = (
    *((GroupType.KAFKA, kind) for kind in EntryType),
    *((GroupType.ROCKETMQ, kind) for kind in RocketMqEntryType),
)
_PUSHES = tuple((str(kind.__struct_config__.tag),) for kind in get_args(AnyToConnection))
_REASONS = tuple((reason,) for reason in Reason)


class _DeadLetter(Struct, frozen=True):
    """The field of a dead letter that is counted."""

    reason: str


class _Answer(Struct, frozen=True):
    """The fields of a response that are counted."""

    type: str
    error_code: int | None = None  # of Kafka's response
    code: int | None = None  # of RocketMQ's response; a message pushed to its clients has none


_dead_letter = msgspec.json.Decoder(_DeadLetter)
_answer = msgspec.json.Decoder(_Answer)
_commit_answer = msgspec.json.Decoder(OffsetCommitResponse)


class TopicCounts:
    """Counts since the start of this process.

    `registry` has the counters and histograms. The numbers outside of it are for Kafka's untyped counts.
    Possible labels start with 0: an alert on an increase would miss a series that starts with 1.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.groups_with_epochs = EpochCounts(self.registry)
        self.entries = self._counter(
            "history_entries", "Entries of the events topic.", ("protocol", "type"), _ENTRIES
        )
        self.dead_letters = self._counter(
            "dead_letters", "Records of the dead-letter topic.", ("reason",), _REASONS
        )
        self.answers = self._counter(
            "responses", "Responses by type of request and error code.", ("type", "error_code")
        )
        self.pushes = self._counter(
            "rocketmq_pushes", "Messages pushed to RocketMQ's clients.", ("type",), _PUSHES
        )
        self.expired_connections = self._counter(
            "rocketmq_expired_connections",
            "Consumers' connections that a scan removed because they were silent.",
        )
        self.classic_rebalances = 0
        self.offsets_committed = self.offsets_expired = self.offsets_deleted = 0

    def _counter(
        self, name: str, description: str, labels: Sequence[str] = (), possible: Iterable[Sequence[str]] = ()
    ) -> prometheus_client.Counter:
        """Return a new counter. Its series with the `possible` label values start with 0."""
        counter = prometheus_client.Counter(f"{OWN}_{name}", description, labels, registry=self.registry)
        for values in possible:
            counter.labels(*values)
        return counter


@dataclass(slots=True)
class MetricsNumbers:
    """A copy of all numbers, for one scrape.

    Until the topics are read to their ends, groups and lags are None and `rebalances` is empty, because a
    partly read topic may show deleted groups.
    """

    counts: TopicCounts  # not a copy, because a count alone is always right
    duplicates: int
    groups: dict[str, GroupSnapshot] | None = None
    rocketmq_groups: dict[str, RocketMqGroup] | None = None
    selection: SeriesSelection = field(default_factory=SeriesSelection)
    # Of each selected group with a committed offset.
    lags: dict[str, GroupLags] | None = None
    # Of all other groups, or None if there are none.
    other_lags: LagTotals | None = None
    offsets: int = 0  # number of committed offsets
    rebalances: dict[str, int] = field(default_factory=dict)  # of groups with their own series


class MetricsState:
    """The counts of records and batches since the start of this process, and the state of groups."""

    def __init__(self, layout: TopicLayout, bounds: SeriesBounds | None = None) -> None:
        self._layout = layout
        self.lags = LagBook(layout.source_topic)
        """The offsets of the groups, and the ends of the query's source."""
        self._lock = self.lags.lock
        self._history = HistoryReader(from_start=False, remembers=INCARNATIONS_REMEMBERED)
        self._is_complete = False
        self._groups: dict[str, GroupSnapshot] = {}
        self._rocketmq_groups: dict[str, RocketMqGroup] = {}
        self.bounds = bounds or SeriesBounds()
        self._series_groups = SeriesGroups(self.bounds)
        self._ownerships: dict[str, Ownership] = {}  # a cache: computed from the view when needed
        self._read_to: dict[Partition, int] = {}  # the offsets after the records that the query has read
        self._rebalances: Counter[str] = Counter()  # by group id
        self._counts = TopicCounts()

    def apply(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers | None = None
    ) -> HistoryEntry | None:
        """Count one record of a topic.

        Return the entry if it is a new history entry of a Kafka group, else None. Raises one of UNREADABLE
        (`contract.codec`) if the record cannot be decoded.
        """
        layout = self._layout
        with self._lock:
            if topic == layout.groups_topic:
                self._apply_group((key or b"").decode(), value)
            elif topic == layout.offsets_topic:
                self._update_selection(self.lags.apply_commit(key or b"", value))
            elif topic == layout.events_topic:
                return self._apply_entry(value or b"")
            elif topic == layout.responses_topic:
                # A replica's early answer is not counted.
                if is_from_query(headers):
                    for encoded in unpack(value or b""):
                        self._count_answer(encoded)
            else:
                self._counts.dead_letters.labels(_dead_letter.decode(value or b"").reason).inc()
        return None

    def mark_complete(self) -> None:
        """Mark the groups and offsets topics as read to their ends."""
        with self._lock:
            self._is_complete = True

    def observe_batch(self, batch: BatchProgress) -> None:
        """Store how far the query has read."""
        with self._lock:
            self._read_to.update(batch.end_offsets)

    def backlog_records(self) -> int | None:
        """Return the number of records that the query has not read yet, or None if unknown."""
        with self._lock:
            bounds = {partition: self.lags.logs.bounds(partition) for partition in self._read_to}
            unread = [log.latest - self._read_to[p] for p, log in bounds.items() if log is not None]
        return max(sum(unread), 0) if unread else None  # the bounds may be older than `_read_to`

    def numbers(self) -> MetricsNumbers:
        """Return a copy of all numbers."""
        # The lags are computed group by group, so that the lock is never held for long.
        numbers = self._numbers_without_lags()
        if numbers.groups is not None:
            selected, other_lags = numbers.selection.group_ids, LagTotals()
            with self._lock:
                with_offsets = [group_id for group_id in selected if self.lags.has_offsets(group_id)]
                others_behind = [g for g in self.lags.groups_behind() if g not in selected]
            numbers.lags = {group_id: self._group_lags(group_id) for group_id in with_offsets}
            for group_id in others_behind:
                other_lags.add(self._group_lags(group_id))
            numbers.other_lags = other_lags if numbers.selection.others else None
        return numbers

    def _numbers_without_lags(self) -> MetricsNumbers:
        with self._lock:
            numbers = MetricsNumbers(self._counts, self._history.duplicates)
            if self._is_complete:
                numbers.groups = dict(self._groups)
                numbers.rocketmq_groups = dict(self._rocketmq_groups)
                numbers.selection = self._series_groups.selection()
                numbers.offsets = self.lags.offset_count()
                # Counts start with 0, because PromQL's `increase` misses a series that starts with 1.
                numbers.rebalances = {g: self._rebalances[g] for g, _ in numbers.selection.own(self._groups)}
            return numbers

    def _apply_group(self, group_id: str, value: bytes | None) -> None:
        view = decode_any_snapshot(value) if value is not None else None
        _put_or_remove(self._groups, group_id, view if isinstance(view, GroupSnapshot) else None)
        _put_or_remove(self._rocketmq_groups, group_id, view if isinstance(view, RocketMqGroup) else None)
        self._ownerships.pop(group_id, None)
        if group_id not in self._groups:
            self._rebalances.pop(group_id, None)
        self._update_selection(group_id)

    def _update_selection(self, group_id: str) -> None:
        """Make a group a candidate for its own series while it has a view or a committed offset."""
        views: tuple[Mapping[str, object], ...] = (self._groups, self._rocketmq_groups)
        if self.lags.has_offsets(group_id) or any(group_id in view for view in views):
            self._series_groups.add(group_id)
        else:
            self._series_groups.remove(group_id)

    def _group_lags(self, group_id: str) -> GroupLags:
        with self._lock:
            owned = self._ownership(group_id)
            lags = self.lags.lags(group_id, owned.settled_ms)
            view = self._groups.get(group_id)
            # Harmful lags are as of the last poll of the brokers, because the partitions' ends are from it.
            harmful = harmful_lags(lags, owned, self.lags.polled_ms)
        return GroupLags(lags, owned, harmful, view.members if view is not None else ())

    def _ownership(self, group_id: str) -> Ownership:
        view = self._groups.get(group_id)
        if view is None:
            return UNKNOWN
        if group_id not in self._ownerships:
            self._ownerships[group_id] = ownership(view)
        return self._ownerships[group_id]

    def _apply_entry(self, value: bytes) -> HistoryEntry | None:
        """Count a history entry. Return it if it is new and of a Kafka group, else None."""
        event = decode_any_entry(value)
        if event is None or isinstance(event, CoordinatorStarted) or not self._history.is_new(event):
            return None
        counts = self._counts
        if isinstance(event, RocketMqHistoryEntry):
            counts.entries.labels(GroupType.ROCKETMQ, event.type).inc()
            counts.expired_connections.inc(int(event.is_expiry))
            return None
        counts.entries.labels(GroupType.KAFKA, event.type).inc()
        partition_count = sum(map(len, (event.partitions or {}).values()))
        has_epochs = event.group_type in BY_EPOCHS
        if has_epochs:
            counts.groups_with_epochs.count(event)
        match event.type:
            # A group with epochs also becomes stable without a rebalance. The entry then has no duration.
            case EntryType.STABLE if not has_epochs or event.took_ms is not None:
                self._rebalances[event.group_id] += 1
                counts.classic_rebalances += 0 if has_epochs else 1
            # The groups topic may already have a new group with the same id.
            case EntryType.GROUP_DELETED if event.group_id not in self._groups:
                self._rebalances.pop(event.group_id, None)
            case EntryType.OFFSETS_EXPIRED:
                counts.offsets_expired += partition_count
            case EntryType.OFFSETS_DELETED:
                counts.offsets_deleted += partition_count
        return event

    def _count_answer(self, value: bytes) -> None:
        """Count a response of either protocol, or a message pushed to RocketMQ's clients."""
        answer, counts = _answer.decode(value), self._counts
        if answer.code is not None:
            counts.answers.labels(answer.type, _code_name(ResponseCode, answer.code)).inc()
            return
        if answer.error_code is None:  # a pushed message has no code
            counts.pushes.labels(answer.type).inc()
            return
        counts.answers.labels(answer.type, _code_name(ErrorCode, answer.error_code)).inc()
        if answer.type == "OffsetCommit":
            topics = _commit_answer.decode(value).topics
            error_codes = [partition.error_code for topic in topics for partition in topic.partitions]
            counts.offsets_committed += error_codes.count(ErrorCode.NONE)


def _put_or_remove(table: dict[str, G], group_id: str, group: G | None) -> None:
    if group is None:
        table.pop(group_id, None)
    else:
        table[group_id] = group


def _code_name(codes: type[IntEnum], code: int) -> str:
    """Return the name of a code, or its number if it is unknown."""
    try:
        return codes(code).name
    except ValueError:
        return str(code)
