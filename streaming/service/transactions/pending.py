"""The transactions whose outcome groups do not know yet, and the markers found for them. No IO, no clock.

Each record of the transactions topic is an open entry: the pending offsets of one group and transaction. A
marker is the brokers' record, on the markers topic, of how a producer's transaction ended. An entry's
position is the end of its markers partition before the offsets were sent. The entry is decided by its
producer's first marker from that position on that does not belong to an earlier transaction. The coordinator
uses the same function for that, `outcome_of` (rows TW1 to TW7).
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from kafka.errors import for_code
from kafka.record import MemoryRecords

from kafka_why.connections import kafka_clients
from kafka_why.connections.broker_requests import FoundTopic, fetch, find_topic
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import PendingTransaction
from kafka_why.contract.kafka.history import MarkerOutcome
from kafka_why.contract.service import TransactionsSummary
from kafka_why.lifetimes import Closeable
from state.kafka.commits import outcome_of
from streaming.service.request_appender import BROKER_TIMEOUT_MS

_FETCH_MAX_BYTES = 512 * 1024
OFFSET_OUT_OF_RANGE = 1
_MAGIC = 2


class Marker(NamedTuple):
    """The outcome of a producer's transaction, at an offset of the markers partition."""

    offset: int
    producer_id: int
    producer_epoch: int
    committed: bool  # False if it was aborted


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a Fetch."""

    markers: list[Marker]
    next_offset: int  # the offset to read from next
    start: int  # the first offset of the log
    end: int  # the high watermark
    is_out_of_range: bool = False  # the requested offset is not in the log


class MarkersReader(Closeable):
    """A reader of the markers topic. For one thread. All methods raise KafkaError.

    It reads the topic that `find_topic` last found, not a recreated one of the same name. After an error, for
    example if a leader has moved, a new reader is needed.
    """

    def __init__(self, client_config: ClientConfig, topic: str) -> None:
        self._topic = topic
        self._admin = kafka_clients.admin(
            client_config,
            bootstrap_timeout_ms=BROKER_TIMEOUT_MS,
            request_timeout_ms=BROKER_TIMEOUT_MS,
        )
        self._found_topic: FoundTopic | None = None

    def find_topic(self) -> UUID:
        """Return the topic's id. Raises UnknownTopicOrPartitionError if the topic does not exist."""
        self._found_topic = found_topic = find_topic(self._admin, self._topic)
        return found_topic.topic_id

    def fetch(self, partition: int, offset: int, max_wait_ms: int) -> Fetched:
        """Read from this offset on. Waits up to `max_wait_ms` for a first record."""
        if self._found_topic is None:
            self._found_topic = find_topic(self._admin, self._topic)
        result = fetch(
            self._admin,
            self._found_topic,
            partition,
            offset,
            by_id=True,
            max_wait_ms=max_wait_ms,
            max_bytes=_FETCH_MAX_BYTES,
        )
        if result.error_code == OFFSET_OUT_OF_RANGE:
            return Fetched([], offset, result.log_start_offset, result.high_watermark, is_out_of_range=True)
        if result.error_code:
            raise for_code(result.error_code)(f"{self._topic}-{partition}")
        markers, next_offset = read_markers(result.records or b"", offset)
        return Fetched(markers, next_offset, result.log_start_offset, result.high_watermark)

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()


def marker_wait_ms(partitions: int, all_ms: int, least_ms: int) -> int:
    """Return the maximum duration of one Fetch.

    The partitions are fetched one after the other and share `all_ms`, but each Fetch gets at least
    `least_ms`, so that brokers are never queried without a pause.
    """
    return max(least_ms, all_ms // max(1, partitions))


def read_markers(records: bytes, offset: int) -> tuple[list[Marker], int]:
    """Return the markers in the bytes of a Fetch response from `offset` on, and the offset to read from
    next.
    """
    markers: list[Marker] = []
    next_offset = offset
    for batch in _batches(records):
        next_offset = max(next_offset, batch.next_offset)
        if not batch.is_control_batch:
            continue
        markers += [
            Marker(record.offset, batch.producer_id, batch.producer_epoch, bool(record.commit))
            for record in batch
            if record.offset >= offset and (record.commit or record.abort)
        ]
    return markers, next_offset


def _batches(records: bytes) -> Iterator[Any]:
    """Yield kafka-python's record batches of the current format. Markers are only in these."""
    memory = MemoryRecords(records)
    while memory.has_next():
        batch = memory.next_batch()
        if batch is not None and batch.magic == _MAGIC:
            yield batch


# The maximum number of markers of a partition that are kept for entries read after their marker.
MARKERS_MAX = 50_000
# A request to a group is repeated until the entry's tombstone is read.
FIRST_REPEAT_S, LONGEST_REPEAT_S = 5.0, 60.0
# Kafka's default of transaction.max.timeout.ms, plus the broker's interval of checks.
TRANSACTION_MAX_TIMEOUT_MS = 900_000
OVERDUE_MS = TRANSACTION_MAX_TIMEOUT_MS + 60_000
_BY_HAND = "see `groups abort-pending`"


class Decision(NamedTuple):
    """A marker that decides entries of one group and producer."""

    group_id: str
    partition: int  # of the markers topic
    first_position: int  # the lowest position of these entries
    marker: Marker


@dataclass(slots=True)
class _Entry:
    """An open entry: the pending offsets of one group and transaction."""

    pending: PendingTransaction
    marker: Marker | None = None  # the marker that decides the entry
    outcome: MarkerOutcome | None = None  # the meaning of the marker
    is_lost: bool = False  # the log no longer has all markers from the entry's position on
    due_s: float = 0.0  # when the request to the group is due
    repeat_s: float = FIRST_REPEAT_S


@dataclass(slots=True)
class _Partition:
    """A partition of the markers topic. `markers` are all of its markers from `first` to `position`."""

    first: int
    position: int  # the offset to read from next
    end: int = 0  # the high watermark at the last Fetch
    markers: deque[Marker] = field(default_factory=deque)


class PendingTransactions:
    """The open entries and their markers. `topic_id` is that of the markers topic. `decided` counts the
    decided entries by outcome.
    """

    def __init__(self, topic_id: UUID, decided: Counter[str]) -> None:
        self.topic_id = topic_id
        self._entries: dict[bytes, _Entry] = {}  # by key on the transactions topic
        self._partitions: dict[int, _Partition] = {}  # by number
        self._decided = decided

    def __bool__(self) -> bool:
        return bool(self._entries)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply the next record of the transactions topic. Raises msgspec.DecodeError."""
        if value is None:
            entry = self._entries.pop(key, None)
            if entry is not None and entry.outcome is not None:
                self._decided[entry.outcome.value] += 1
            self._forget_partitions_without_entries()
            return
        pending = _decoder.decode(value)
        known_entry = self._entries.get(key)
        if known_entry is not None:  # only the number of its partitions has changed
            known_entry.pending = pending
            return
        entry = self._entries[key] = _Entry(pending)
        if self._is_of_topic(pending):
            self._look_up(entry)

    def _is_of_topic(self, pending: PendingTransaction) -> bool:
        """Return True if the entry's position is in this topic, not in an earlier one of the same name."""
        return pending.txn_topic_id in (None, self.topic_id)

    def _look_up(self, entry: _Entry) -> None:
        """Find the marker of a new entry among the markers that were already read.

        If the entry's position is before these, the partition is read again from that position on.
        """
        pending = entry.pending
        partition = self._partitions.get(pending.txn_partition)
        if partition is None:
            position = pending.txn_position
            self._partitions[pending.txn_partition] = _Partition(position, position)
        elif pending.txn_position < partition.first:
            partition.first = pending.txn_position
            partition.position = pending.txn_position
            partition.markers.clear()
        else:
            _decide(entry, _markers_from(pending.txn_position, partition.markers))

    def positions(self) -> dict[int, int]:
        """Return the offset to read from next for each partition that has an entry without a marker."""
        wanted = {
            entry.pending.txn_partition
            for entry in self._entries.values()
            if entry.marker is None and not entry.is_lost and self._is_of_topic(entry.pending)
        }
        return {partition: self._partitions[partition].position for partition in sorted(wanted)}

    def add_fetched(self, number: int, fetched: Fetched) -> None:
        """Add the markers that were fetched from a partition's position on."""
        partition = self._partitions[number]
        partition.end = fetched.end
        if fetched.start > partition.position:
            self._mark_lost(number, fetched.start)
            partition.first = fetched.start
            partition.position = fetched.start
            partition.markers.clear()
        if fetched.is_out_of_range:
            return
        partition.position = max(partition.position, fetched.next_offset)
        partition.markers.extend(fetched.markers)
        while len(partition.markers) > MARKERS_MAX:
            partition.first = partition.markers.popleft().offset + 1
        for entry in self._undecided(number):
            _decide(entry, fetched.markers)

    def due(self, now_s: float) -> list[Decision]:
        """Return the decisions to send to groups now, one for each group and marker."""
        positions: dict[tuple[str, int, Marker], int] = {}
        for entry in self._entries.values():
            if entry.marker is None or entry.due_s > now_s:
                continue
            entry.due_s = now_s + entry.repeat_s
            entry.repeat_s = min(2 * entry.repeat_s, LONGEST_REPEAT_S)
            pending = entry.pending
            key = pending.group_id, pending.txn_partition, entry.marker
            positions[key] = min(pending.txn_position, positions.get(key, pending.txn_position))
        return [
            Decision(group_id, partition, first_position, marker)
            for (group_id, partition, marker), first_position in positions.items()
        ]

    def summary(self, now_ms: int) -> TransactionsSummary:
        """Return the summary for operators at this time of the wall clock."""
        ages_ms = [now_ms - entry.pending.at_ms for entry in self._entries.values()]
        return TransactionsSummary(
            pending=len(self._entries),
            oldest_age_ms=max([0, *ages_ms]),
            lag=sum(max(0, p.end - p.position) for p in self._partitions.values()),
            decided=tuple(sorted(self._decided.items())),
            alarms=tuple(filter(None, (self._alarm(entry, now_ms) for entry in self._entries.values()))),
        )

    def _alarm(self, entry: _Entry, now_ms: int) -> str | None:
        """Return a sentence for operators if the entry stays pending for too long or forever, else None."""
        pending = entry.pending
        age_ms = now_ms - pending.at_ms
        if entry.outcome is not None:
            # Offsets of a decided transaction must not be dropped manually.
            if age_ms <= OVERDUE_MS or entry.repeat_s < LONGEST_REPEAT_S:
                return None
            why = f"ended with {entry.outcome}, but the group has not taken it: see `groups describe`"
        elif not self._is_of_topic(pending):
            why = f"belongs to another topic of markers, which was deleted: {_BY_HAND}"
        elif entry.is_lost:
            why = f"may have had its outcome in the part of the log of markers that was deleted: {_BY_HAND}"
        elif age_ms > OVERDUE_MS:
            why = f"has no outcome for {age_ms // 60_000} minutes: {_BY_HAND}"
        else:
            return None
        return (
            f"transaction {pending.transactional_id!r} of producer {pending.producer_id} in group "
            f"{pending.group_id!r} {why}"
        )

    def _undecided(self, number: int) -> list[_Entry]:
        """Return the entries of this partition whose marker may still come."""
        return [
            entry
            for entry in self._entries.values()
            if entry.marker is None
            and not entry.is_lost
            and entry.pending.txn_partition == number
            and self._is_of_topic(entry.pending)
        ]

    def _mark_lost(self, number: int, log_start: int) -> None:
        """Mark the undecided entries before the start of the log as lost: markers may have been deleted."""
        for entry in self._undecided(number):
            entry.is_lost = entry.pending.txn_position < log_start

    def _forget_partitions_without_entries(self) -> None:
        needed = {entry.pending.txn_partition for entry in self._entries.values()}
        for number in self._partitions.keys() - needed:
            del self._partitions[number]


def _markers_from(position: int, markers: deque[Marker]) -> Iterable[Marker]:
    """Return the markers at and after this position, in order."""
    # Search from the end, because most entries' positions are near it.
    tail = list(takewhile(lambda marker: marker.offset >= position, reversed(markers)))
    return reversed(tail)


def _decide(entry: _Entry, markers: Iterable[Marker]) -> None:
    """Set the marker and the outcome of the entry if one of these markers, in the log's order, decides it."""
    pending = entry.pending
    for marker in markers:
        if marker.producer_id != pending.producer_id or marker.offset < pending.txn_position:
            continue
        outcome = outcome_of(
            pending.txn_version, pending.producer_epoch, marker.producer_epoch, marker.committed
        )
        if outcome is not MarkerOutcome.IGNORED:
            entry.marker, entry.outcome = marker, outcome
            return


_decoder: msgspec.json.Decoder[PendingTransaction] = msgspec.json.Decoder(PendingTransaction)
