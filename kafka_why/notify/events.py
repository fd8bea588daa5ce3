"""The threads that follow history entries from the saved position, find the rebalances that have ended, and
put messages about them into the outbox.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import structlog
from kafka import KafkaAdminClient, TopicPartition

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.history_reader import INCARNATIONS_REMEMBERED, HistoryReader
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.notify.messages import Filter, Link, Outbox, Position, rebalance_message
from kafka_why.now import now_ms
from kafka_why.page.cluster_followers import OffsetsFollower, PollingFollower
from kafka_why.page.fleet import WINDOW_MS, Fleet
from kafka_why.stored_groups import GroupNews
from kafka_why.stored_log import StoredLog
from kafka_why.topic_reader import FollowerThread, Record, TopicReader
from kafka_why.why.history import entry_in
from kafka_why.why.model import Rebalance
from kafka_why.why.report import analyze
from kafka_why.wording import Names

KEPT_REBALANCES = 3
"""The number of a group's last rebalances whose entries are kept, because the moves of the next one depend on
earlier assignments.
"""
KEPT_ENTRIES = 500
"""The minimum number of a group's entries that are kept, because the assignment in force may be old."""
MAX_GROUP_ENTRIES = 20_000
"""The maximum number of entries kept for one group. A rebalance with more loses its beginning."""
MAX_ENTRIES = 120_000
"""The maximum number of entries kept for all groups, at some 1.8 kB each. The groups that rebalanced longest
ago are forgotten first.
"""

_Name: TypeAlias = tuple[str, int | None, int | None]


class Ended(NamedTuple):
    """A rebalance that has ended, with the names of the group's members."""

    group_id: str
    rebalance: Rebalance
    names: Names


@dataclass(slots=True)
class _Group:
    """The recent entries of a group."""

    entries: deque[HistoryEntry] = field(default_factory=deque)
    # Rebalances that `take_ended` need not return; None until an entry may end another one.
    sent: set[_Name] | None = None


class Rebalances:
    """The recent entries of all groups, in which `take_ended` finds ended rebalances. For use by one thread.

    The entries of a group must come in order. A repeated entry has no effect.
    """

    def __init__(self) -> None:
        self._reader = HistoryReader(from_start=False, remembers=INCARNATIONS_REMEMBERED)
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._changed: dict[str, None] = {}
        self._entries = 0

    def add(self, entry: HistoryEntry, *, is_sent: bool) -> None:
        """Add an entry. If `is_sent`, a rebalance that it ends is not returned."""
        if not self._reader.is_new(entry):
            return
        group = self._groups.setdefault(entry.group_id, _Group())
        self._groups.move_to_end(entry.group_id)
        if not is_sent:
            if group.sent is None:
                group.sent = set(map(_name, _ended(group.entries)))
            self._changed[entry.group_id] = None
        group.entries.append(entry)
        self._entries += 1
        if len(group.entries) > MAX_GROUP_ENTRIES:
            group.entries.popleft()
            self._entries -= 1

    def take_ended(self) -> list[Ended]:
        """Return the rebalances that ended since the last call, in order within each group."""
        found = []
        for group_id in self._changed:
            found += self._ended_of(group_id, self._groups[group_id])
        self._changed.clear()
        while self._entries > MAX_ENTRIES and len(self._groups) > 1:
            _, forgotten = self._groups.popitem(last=False)
            self._entries -= len(forgotten.entries)
        return found

    def _ended_of(self, group_id: str, group: _Group) -> list[Ended]:
        assert group.sent is not None, "only changed groups are read"
        analysis = analyze(group.entries, from_start=False)
        ended = [r for r in analysis.rebalances if r.ended_ms is not None]
        new = [r for r in ended if _name(r) not in group.sent]
        group.sent = set(map(_name, ended))
        self._forget(group, analysis.rebalances)
        return [Ended(group_id, r, analysis.names) for r in new]

    def _forget(self, group: _Group, found: list[Rebalance]) -> None:
        if len(found) < KEPT_REBALANCES:
            return
        kept_ms = found[-KEPT_REBALANCES].began_ms
        while len(group.entries) > KEPT_ENTRIES and group.entries[0].at_ms < kept_ms:
            group.entries.popleft()
            self._entries -= 1


def _ended(entries: Iterable[HistoryEntry]) -> list[Rebalance]:
    known = list(entries)
    return [r for r in analyze(known).rebalances if r.ended_ms is not None] if known else []


def _name(r: Rebalance) -> _Name:
    """Return a key that stays the same when a rebalance's first entries are forgotten."""
    return r.incarnation, r.ended_ms, r.generation_to


_BROKER_TIMEOUT_MS = 5_000
_POLL_MS = 500

log = structlog.get_logger()


def ends_of(client_config: ClientConfig, topic: str) -> dict[int, Position]:
    """Return the ends of a topic's partitions. Raises KafkaError."""
    with TopicReader(client_config, timeout_ms=_BROKER_TIMEOUT_MS) as reader:
        ends = reader.ends(reader.partitions_of(topic))
    return {partition.partition: Position(end, now_ms()) for partition, end in ends.items()}


class EndedRebalances:
    """The source of messages about ended rebalances, which go into the outbox if they are wanted.

    For one thread. `sent` are the ids of messages already sent.
    """

    def __init__(self, outbox: Outbox, wanted: Filter, link: Link, sent: Collection[str]) -> None:
        self._outbox = outbox
        self._wanted = wanted
        self._link = link
        self._sent = sent
        self._rebalances = Rebalances()

    def add(self, entry: object, *, is_sent: bool) -> None:
        """Apply an entry of a Kafka group, and ignore others. If `is_sent`, the entry is only context."""
        if isinstance(entry, HistoryEntry):
            self._rebalances.add(entry, is_sent=is_sent)

    def add_news(self, news: Iterable[GroupNews]) -> None:
        """Apply the new entries of groups."""
        for group in news:
            for entry in group.entries:
                self.add(entry, is_sent=False)

    def add_first(self, news: Iterable[GroupNews], positions: Mapping[int, Position], since_ms: int) -> None:
        """Apply the entries of the first read since `since_ms`.

        Entries before `positions` are only context.
        """
        for group in news:
            position = positions.get(group.partition)
            for entry, offset in zip(group.entries, group.entry_offsets, strict=True):
                if entry.at_ms >= since_ms:
                    self.add(entry, is_sent=position is not None and offset < position.offset)

    def put(self, positions: Mapping[int, Position]) -> bool:
        """Put messages about ended rebalances into the outbox, with `positions`.

        Wait while the outbox is full. Return False if the outbox was closed.
        """
        found = (rebalance_message(*ended, self._link) for ended in self._rebalances.take_ended())
        at_ms = now_ms()
        messages = [one for one in found if self._wanted.wants(one, at_ms) and one.id not in self._sent]
        return self._outbox.put(messages, dict(positions))


class EventsFollower(FollowerThread):
    """The thread that reads the events topic from `positions` on.

    It passes entries and positions to `ended`. A partition without a position is new, and is read from its
    beginning. The entries of the hour before the positions are read, too, because they have the rebalances'
    causes and earlier assignments. The thread retries while no broker is available.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        ended: EndedRebalances,
        positions: Mapping[int, Position],
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._ended = ended
        self._positions = dict(positions)
        self._has_context = False
        super().__init__("notify-events", "reading the events topic for notify")

    def _connect_and_follow(self) -> None:
        with TopicReader(
            self._client_config,
            max_record_bytes=self._layout.response_record_max_bytes,
            timeout_ms=_BROKER_TIMEOUT_MS,
        ) as reader:
            self._start(reader)
            is_open = self._ended.put(self._positions)
            while is_open and not self._stopped.is_set():
                records = reader.poll(_POLL_MS)
                if records:
                    is_open = self._take(records)
                self._worked()
            if not is_open:
                self._stopped.set()  # nothing more can be sent

    def _start(self, reader: TopicReader) -> None:
        """Find all partitions' positions, and start reading there or, the first time, an hour before."""
        partitions = reader.partitions_of(self._layout.events_topic)
        beginnings, ends = reader.beginnings(partitions), reader.ends(partitions)
        at = {}
        for partition in partitions:
            begin, end = beginnings[partition], ends[partition]
            kept = self._positions.get(partition.partition, Position(begin, now_ms()))
            self._positions[partition.partition] = kept = within(partition, kept, begin, end)
            at[partition] = kept.offset
            if not self._has_context:
                found = reader.offsets_at([partition], kept.at_ms - WINDOW_MS)[partition]
                at[partition] = kept.offset if found is None else min(found, kept.offset)
        reader.start(at=at)
        self._has_context = True

    def _take(self, records: Iterable[Record]) -> bool:
        for record in records:
            position = self._positions[record.partition]
            is_sent = record.offset < position.offset
            for entry in entry_in(record.value or b"", (record.key or b"").decode(errors="replace")):
                self._ended.add(entry, is_sent=is_sent)
            if not is_sent:
                self._positions[record.partition] = Position(record.offset + 1, record.timestamp)
        return self._ended.put(self._positions)


class OffsetsEvents(OffsetsFollower):
    """The thread that reads `__consumer_offsets` for a fleet, and passes the resulting entries to `ended`.

    Rebalances before the fleet's window are not sent. A warning is then logged.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        fleet: Fleet,
        ended: EndedRebalances,
        positions: Mapping[int, Position],
    ) -> None:
        super().__init__(client_config, fleet, "notify")
        self._ended = ended
        self._first_positions = dict(positions)
        self._held_back: dict[str, list[GroupNews]] = {}
        kept_ms = min((position.at_ms for position in positions.values()), default=now_ms())
        if kept_ms < now_ms() - WINDOW_MS:
            log.warning("rebalances that ended more than an hour ago are not sent", last_read_ms=kept_ms)

    def _step(self, stored: StoredLog, admin: KafkaAdminClient) -> None:
        was_complete = self._fleet.is_complete
        super()._step(stored, admin)
        if not self._fleet.is_complete:
            return
        if not was_complete:
            for news in self._held_back.values():
                self._ended.add_first(news, self._first_positions, now_ms() - WINDOW_MS)
            self._held_back.clear()
        if not self._ended.put({p: Position(read.next, now_ms()) for p, read in self._partitions.items()}):
            self._stopped.set()  # nothing more can be sent

    def _take(self, news: Iterable[GroupNews]) -> None:
        """Pass on the new entries, but hold them back until the fleet has read its whole window."""
        found = list(news)
        super()._take(found)
        if self._fleet.is_complete:
            self._ended.add_news(found)
            return
        for group in found:
            if group.anew:
                self._held_back.pop(group.group_id, None)
            self._held_back.setdefault(group.group_id, []).append(group)


class PolledEvents(PollingFollower):
    """The thread that polls groups for a fleet, and passes the resulting entries to `ended`."""

    def __init__(self, client_config: ClientConfig, fleet: Fleet, ended: EndedRebalances) -> None:
        super().__init__(client_config, fleet, "notify")
        self._ended = ended

    def _take(self, news: Iterable[GroupNews]) -> None:
        found = list(news)
        super()._take(found)
        self._ended.add_news(found)
        if not self._ended.put({}):
            self._stopped.set()  # nothing more can be sent


def within(partition: TopicPartition, kept: Position, begin: int, end: int) -> Position:
    """Return the saved position, or the beginning of the partition if it no longer has that position."""
    if kept.offset > end:
        log.warning(
            "the events topic was recreated: it is read from its beginning", partition=partition.partition
        )
        return Position(begin, kept.at_ms)
    if kept.offset < begin:
        log.warning(
            "entries of the events topic were deleted before they were read: rebalances in them are not sent",
            partition=partition.partition,
            entries=begin - kept.offset,
        )
        return Position(begin, kept.at_ms)
    return kept
