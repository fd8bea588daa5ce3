"""The threads that follow history entries from the saved position, find the rebalances that have ended, and
put messages about them into the outbox.

At a start, they also read earlier entries, for context. These entries are marked `is_sent`: messages about
the rebalances that they end were sent before, or are not wanted.
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
from kafka_why.stored_groups import GroupUpdate
from kafka_why.stored_log import StoredLog
from kafka_why.topic_reader import Record, TopicReader, TopicsFollower
from kafka_why.why.history import entry_in
from kafka_why.why.model import Rebalance
from kafka_why.why.report import analyze
from kafka_why.wording import Names

KEPT_REBALANCES = 3
"""The number of a group's last rebalances whose entries are kept, because the moves of the next one depend on
earlier assignments.
"""
KEPT_ENTRIES = 500
"""The minimum number of a group's entries that are kept, because its current assignment may be old."""
MAX_GROUP_ENTRIES = 20_000
"""The maximum number of entries kept for one group. A rebalance with more loses its beginning."""
MAX_ENTRIES = 120_000
"""The maximum number of entries kept for all groups, at some 1.8 kB each. The groups that rebalanced longest
ago are forgotten first.
"""

_RebalanceKey: TypeAlias = tuple[str, int | None, int | None]
"""The incarnation, the time at which the rebalance ended, and its new generation."""


class EndedRebalance(NamedTuple):
    """A rebalance that has ended, with the names of the group's members."""

    group_id: str
    rebalance: Rebalance
    names: Names


@dataclass(slots=True)
class _Group:
    """The recent entries of a group."""

    entries: deque[HistoryEntry] = field(default_factory=deque)
    # The ended rebalances that the previous process sent, or that were already returned. None until the first
    # entry that is not `is_sent`.
    handled: set[_RebalanceKey] | None = None


class RebalanceFinder:
    """A finder of ended rebalances in the recent entries of all groups. For use by one thread.

    The entries of a group must come in order. A repeated entry has no effect.
    """

    def __init__(self) -> None:
        self._reader = HistoryReader(from_start=False, remembers=INCARNATIONS_REMEMBERED)
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._changed_groups: dict[str, None] = {}  # since the last call of `take_ended`, in order
        self._total_entries = 0

    def add(self, entry: HistoryEntry, *, is_sent: bool) -> None:
        """Add an entry. If `is_sent`, `take_ended` does not return a rebalance that this entry ends."""
        if not self._reader.is_new(entry):
            return
        group = self._groups.setdefault(entry.group_id, _Group())
        self._groups.move_to_end(entry.group_id)
        if not is_sent:
            if group.handled is None:
                group.handled = set(map(_rebalance_key, _ended_rebalances(group.entries)))
            self._changed_groups[entry.group_id] = None
        group.entries.append(entry)
        self._total_entries += 1
        if len(group.entries) > MAX_GROUP_ENTRIES:
            group.entries.popleft()
            self._total_entries -= 1

    def take_ended(self) -> list[EndedRebalance]:
        """Return the rebalances that ended since the last call, in order within each group."""
        ended: list[EndedRebalance] = []
        for group_id in self._changed_groups:
            ended += self._newly_ended(group_id, self._groups[group_id])
        self._changed_groups.clear()
        while self._total_entries > MAX_ENTRIES and len(self._groups) > 1:
            _, oldest_group = self._groups.popitem(last=False)
            self._total_entries -= len(oldest_group.entries)
        return ended

    def _newly_ended(self, group_id: str, group: _Group) -> list[EndedRebalance]:
        """Return the rebalances of a group that have ended since the last call, and drop its old entries."""
        assert group.handled is not None, "`add` sets it for every changed group"
        analysis = analyze(group.entries, from_start=False)
        ended = [r for r in analysis.rebalances if r.ended_ms is not None]
        new = [r for r in ended if _rebalance_key(r) not in group.handled]
        group.handled = set(map(_rebalance_key, ended))
        self._drop_old_entries(group, analysis.rebalances)
        return [EndedRebalance(group_id, r, analysis.names) for r in new]

    def _drop_old_entries(self, group: _Group, rebalances: list[Rebalance]) -> None:
        """Remove a group's entries before its last KEPT_REBALANCES rebalances, but keep KEPT_ENTRIES."""
        if len(rebalances) < KEPT_REBALANCES:
            return
        kept_from_ms = rebalances[-KEPT_REBALANCES].began_ms
        while len(group.entries) > KEPT_ENTRIES and group.entries[0].at_ms < kept_from_ms:
            group.entries.popleft()
            self._total_entries -= 1


def _ended_rebalances(entries: Iterable[HistoryEntry]) -> list[Rebalance]:
    history = list(entries)
    return [r for r in analyze(history).rebalances if r.ended_ms is not None] if history else []


def _rebalance_key(r: Rebalance) -> _RebalanceKey:
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


class RebalanceMessages:
    """A source of messages about ended rebalances. It puts messages that `wanted` selects into the outbox.

    For one thread. `sent` has the ids of messages that the previous process sent.
    """

    def __init__(self, outbox: Outbox, wanted: Filter, link: Link, sent: Collection[str]) -> None:
        self._outbox = outbox
        self._wanted = wanted
        self._link = link
        self._sent = sent
        self._finder = RebalanceFinder()

    def add(self, entry: object, *, is_sent: bool) -> None:
        """Apply an entry of a Kafka group, and ignore other entries. If `is_sent`, it is only context."""
        if isinstance(entry, HistoryEntry):
            self._finder.add(entry, is_sent=is_sent)

    def add_updates(self, updates: Iterable[GroupUpdate]) -> None:
        """Apply the new entries of groups."""
        for group in updates:
            for entry in group.entries:
                self.add(entry, is_sent=False)

    def add_first_updates(
        self, updates: Iterable[GroupUpdate], positions: Mapping[int, Position], since_ms: int
    ) -> None:
        """Apply the entries of the first read, without those before `since_ms`.

        Entries before `positions` are only context.
        """
        for group in updates:
            position = positions.get(group.partition)
            for entry, offset in zip(group.entries, group.entry_offsets, strict=True):
                if entry.at_ms >= since_ms:
                    self.add(entry, is_sent=position is not None and offset < position.offset)

    def put_messages(self, positions: Mapping[int, Position]) -> bool:
        """Put messages about ended rebalances into the outbox, with `positions`.

        Wait while the outbox is full. Return False if the outbox was closed.
        """
        messages = (
            rebalance_message(ended.group_id, ended.rebalance, ended.names, self._link)
            for ended in self._finder.take_ended()
        )
        at_ms = now_ms()
        to_send = [one for one in messages if self._wanted.wants(one, at_ms) and one.id not in self._sent]
        return self._outbox.put(to_send, dict(positions))


class EventsFollower(TopicsFollower):
    """The thread that reads the events topic from `positions` on.

    It passes entries and positions to `messages`. A partition without a position is new, and is read from its
    beginning. The entries of the hour before the positions are read, too, because they have the rebalances'
    causes and earlier assignments. The thread retries while no broker is available.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        messages: RebalanceMessages,
        positions: Mapping[int, Position],
    ) -> None:
        self._messages = messages
        self._positions = dict(positions)
        self._has_context = False  # True once the entries before the positions need not be read again
        super().__init__("notify-events", "reading the events topic for notify", client_config, layout)

    def _connect_and_follow(self) -> None:
        with TopicReader(
            self._client_config,
            max_record_bytes=self._layout.response_record_max_bytes,
            timeout_ms=_BROKER_TIMEOUT_MS,
        ) as reader:
            self._start(reader)
            is_outbox_open = self._messages.put_messages(self._positions)
            while is_outbox_open and not self._stopped.is_set():
                records = reader.poll(_POLL_MS)
                if records:
                    is_outbox_open = self._apply(records)
                self._worked()
            if not is_outbox_open:
                self._stopped.set()  # nothing more can be sent

    def _start(self, reader: TopicReader) -> None:
        """Start reading at the saved positions. The first time, start an hour earlier, for context."""
        partitions = reader.partitions_of(self._layout.events_topic)
        beginnings, ends = reader.beginnings(partitions), reader.ends(partitions)
        start_at = {}
        for partition in partitions:
            begin, end = beginnings[partition], ends[partition]
            saved = self._positions.get(partition.partition, Position(begin, now_ms()))
            position = self._positions[partition.partition] = restart_position(partition, saved, begin, end)
            start_at[partition] = position.offset
            if not self._has_context:
                hour_earlier = reader.offsets_at([partition], position.at_ms - WINDOW_MS)[partition]
                if hour_earlier is not None:
                    start_at[partition] = min(hour_earlier, position.offset)
        reader.start(at=start_at)
        self._has_context = True

    def _apply(self, records: Iterable[Record]) -> bool:
        """Pass on the records' entries and advance the positions. Return False if the outbox was closed."""
        for record in records:
            is_sent = record.offset < self._positions[record.partition].offset
            for entry in entry_in(record.value or b"", (record.key or b"").decode(errors="replace")):
                self._messages.add(entry, is_sent=is_sent)
            if not is_sent:
                self._positions[record.partition] = Position(record.offset + 1, record.timestamp)
        return self._messages.put_messages(self._positions)


class OffsetsEvents(OffsetsFollower):
    """The thread that reads `__consumer_offsets` for a fleet, and passes the resulting entries to `messages`.

    The fleet is all groups with their entries of the last hour, the window. Rebalances before the window are
    not sent. The constructor logs a warning if there may be any.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        fleet: Fleet,
        messages: RebalanceMessages,
        positions: Mapping[int, Position],
    ) -> None:
        super().__init__(client_config, fleet, "notify")
        self._messages = messages
        self._first_positions = dict(positions)
        self._held_back: dict[str, list[GroupUpdate]] = {}  # by group, until the fleet is complete
        last_read_ms = min((position.at_ms for position in positions.values()), default=now_ms())
        if last_read_ms < now_ms() - WINDOW_MS:
            log.warning("rebalances that ended more than an hour ago are not sent", last_read_ms=last_read_ms)

    def _step(self, stored: StoredLog, admin: KafkaAdminClient) -> None:
        was_complete = self._fleet.is_complete
        super()._step(stored, admin)
        if not self._fleet.is_complete:
            return
        if not was_complete:
            for updates in self._held_back.values():
                self._messages.add_first_updates(updates, self._first_positions, now_ms() - WINDOW_MS)
            self._held_back.clear()
        positions = {
            number: Position(partition.next_offset, now_ms())
            for number, partition in self._partitions.items()
        }
        if not self._messages.put_messages(positions):
            self._stopped.set()  # nothing more can be sent

    def _update_fleet(self, updates: Iterable[GroupUpdate]) -> None:
        """Pass on the new entries. While the fleet has not read its whole window, hold them back.

        Until then, older records may replace a group's entries.
        """
        updates = list(updates)
        super()._update_fleet(updates)
        if self._fleet.is_complete:
            self._messages.add_updates(updates)
            return
        for group in updates:
            if group.replaces_entries:  # its earlier entries are void
                self._held_back.pop(group.group_id, None)
            self._held_back.setdefault(group.group_id, []).append(group)


class PolledEvents(PollingFollower):
    """The thread that polls groups for a fleet (all groups), and passes new entries to `messages`."""

    def __init__(self, client_config: ClientConfig, fleet: Fleet, messages: RebalanceMessages) -> None:
        super().__init__(client_config, fleet, "notify")
        self._messages = messages

    def _update_fleet(self, update: GroupUpdate) -> None:
        super()._update_fleet(update)
        self._messages.add_updates([update])
        if not self._messages.put_messages({}):
            self._stopped.set()  # nothing more can be sent


def restart_position(partition: TopicPartition, kept: Position, begin: int, end: int) -> Position:
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
