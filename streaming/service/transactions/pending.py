"""The transactions whose outcome groups do not know yet, and the markers found for them. No IO, no clock.

Rows TW1 to TW7. The records of the transactions topic are the open entries. An entry is decided by its
producer's first marker at or above the entry's position that does not belong to an earlier transaction
(`outcome_of`, which the coordinator also uses).
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

# A reader of the outcomes of transactions, from the markers topic.


_FETCH_MAX_BYTES = 512 * 1024
OFFSET_OUT_OF_RANGE = 1
_MAGIC = 2


class Marker(NamedTuple):
    """The outcome of a producer's transaction, at an offset of the markers partition."""

    offset: int
    producer_id: int
    producer_epoch: int
    committed: bool


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
        self._found: FoundTopic | None = None

    def find_topic(self) -> UUID:
        """Return the topic's id. Raises UnknownTopicOrPartitionError if there is no such topic."""
        self._found = found = find_topic(self._admin, self._topic)
        return found.topic_id

    def fetch(self, partition: int, offset: int, max_wait_ms: int) -> Fetched:
        """Read from this offset on. Waits up to `max_wait_ms` for a first record."""
        if self._found is None:
            self._found = find_topic(self._admin, self._topic)
        found = fetch(
            self._admin,
            self._found,
            partition,
            offset,
            by_id=True,
            max_wait_ms=max_wait_ms,
            max_bytes=_FETCH_MAX_BYTES,
        )
        if found.error_code == OFFSET_OUT_OF_RANGE:
            return Fetched([], offset, found.log_start_offset, found.high_watermark, is_out_of_range=True)
        if found.error_code:
            raise for_code(found.error_code)(f"{self._topic}-{partition}")
        markers, next_offset = read_markers(found.records or b"", offset)
        return Fetched(markers, next_offset, found.log_start_offset, found.high_watermark)

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
    memory = MemoryRecords(records)
    while memory.has_next():
        batch = memory.next_batch()
        if batch is not None and batch.magic == _MAGIC:
            yield batch


# The transactions whose outcome groups do not know yet, and the markers found for them.


# The maximum number of markers of a partition that are kept for entries read after their marker.
MARKERS_MAX = 50_000
# A request to a group is repeated until the entry's tombstone is read.
FIRST_REPEAT_S, LONGEST_REPEAT_S = 5.0, 60.0
# Kafka's default of transaction.max.timeout.ms, plus the broker's interval of checks.
TRANSACTION_MAX_TIMEOUT_MS = 900_000
OVERDUE_MS = TRANSACTION_MAX_TIMEOUT_MS + 60_000
_BY_HAND = "see `groups abort-pending`"


class Decision(NamedTuple):
    """The marker that decides a group's entries of one producer, from the position `first_position` on."""

    group_id: str
    partition: int
    first_position: int
    marker: Marker


@dataclass(slots=True)
class _Entry:
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
    position: int
    end: int = 0
    markers: deque[Marker] = field(default_factory=deque)


class PendingTransactions:
    """The open entries and their markers. `topic_id` is that of the markers topic. `decided` counts the
    decided entries by outcome.
    """

    def __init__(self, topic_id: UUID, decided: Counter[str]) -> None:
        self.topic_id = topic_id
        self._entries: dict[bytes, _Entry] = {}
        self._partitions: dict[int, _Partition] = {}
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
        known = self._entries.get(key)
        if known is not None:  # the entry has fewer partitions left
            known.pending = pending
            return
        entry = self._entries[key] = _Entry(pending)
        if self._is_of_topic(pending):
            self._look_up(entry)

    def _is_of_topic(self, pending: PendingTransaction) -> bool:
        """Return True if the entry's position is in this topic, not in an earlier one of the same name."""
        return pending.txn_topic_id in (None, self.topic_id)

    def _look_up(self, entry: _Entry) -> None:
        """Find the marker of a new entry among the markers already read, or read again from the entry on."""
        pending = entry.pending
        partition = self._partitions.get(pending.txn_partition)
        if partition is None:
            position = pending.txn_position
            self._partitions[pending.txn_partition] = _Partition(position, position)
        elif pending.txn_position < partition.first:
            partition.first = partition.position = pending.txn_position
            partition.markers.clear()
        else:
            _find_marker(entry, _since(pending.txn_position, partition.markers))

    def positions(self) -> dict[int, int]:
        """Return the offset to read from next for each partition that has an entry without a marker."""
        wanted = {
            entry.pending.txn_partition
            for entry in self._entries.values()
            if entry.marker is None and not entry.is_lost and self._is_of_topic(entry.pending)
        }
        return {partition: self._partitions[partition].position for partition in sorted(wanted)}

    def read(self, number: int, fetched: Fetched) -> None:
        """Add the markers that were read from a partition's position on."""
        partition = self._partitions[number]
        partition.end = fetched.end
        missing_to = max(fetched.start, 0)
        if missing_to > partition.position:
            self._mark_lost(number, missing_to)
            partition.first = partition.position = missing_to
            partition.markers.clear()
        if fetched.is_out_of_range:
            return
        partition.position = max(partition.position, fetched.next_offset)
        partition.markers.extend(fetched.markers)
        while len(partition.markers) > MARKERS_MAX:
            partition.first = partition.markers.popleft().offset + 1
        for entry in self._undecided(number):
            _find_marker(entry, fetched.markers)

    def due(self, now_s: float) -> list[Decision]:
        """Return the requests that are due now, one for each group, producer and marker."""
        first: dict[tuple[str, int, Marker], int] = {}
        for entry in self._entries.values():
            if entry.marker is None or entry.due_s > now_s:
                continue
            entry.due_s = now_s + entry.repeat_s
            entry.repeat_s = min(2 * entry.repeat_s, LONGEST_REPEAT_S)
            pending = entry.pending
            key = pending.group_id, pending.txn_partition, entry.marker
            first[key] = min(pending.txn_position, first.get(key, pending.txn_position))
        return [Decision(group, number, lowest, marker) for (group, number, marker), lowest in first.items()]

    def summary(self, now_ms: int) -> TransactionsSummary:
        """Return the summary for operators at this time of the wall clock."""
        ages_ms = [now_ms - entry.pending.at_ms for entry in self._entries.values()]
        return TransactionsSummary(
            len(self._entries),
            max(0, max(ages_ms, default=0)),
            sum(max(0, p.end - p.position) for p in self._partitions.values()),
            tuple(sorted(self._decided.items())),
            tuple(filter(None, (self._alarm(entry, now_ms) for entry in self._entries.values()))),
        )

    def _alarm(self, entry: _Entry, now_ms: int) -> str | None:
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
        return [
            entry
            for entry in self._entries.values()
            if entry.marker is None
            and not entry.is_lost
            and entry.pending.txn_partition == number
            and self._is_of_topic(entry.pending)
        ]

    def _mark_lost(self, number: int, missing_to: int) -> None:
        """Mark the undecided entries before this offset as lost, because their markers were deleted."""
        for entry in self._undecided(number):
            entry.is_lost = entry.pending.txn_position < missing_to

    def _forget_partitions_without_entries(self) -> None:
        needed = {entry.pending.txn_partition for entry in self._entries.values()}
        for number in self._partitions.keys() - needed:
            del self._partitions[number]


def _since(position: int, markers: deque[Marker]) -> Iterable[Marker]:
    # Most entries are near the end.
    tail = list(takewhile(lambda marker: marker.offset >= position, reversed(markers)))
    return reversed(tail)


def _find_marker(entry: _Entry, markers: Iterable[Marker]) -> None:
    """Find the marker that decides the entry, in the order of the log."""
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
