"""The state of one share group: the offsets that members hold, their counts, and the suspects, without IO and
clock. A suspect is a record that may be poison: members fail to process it.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_why.contract.telemetry import ACCEPTED, GONE, OPEN, REJECTED, Counted, Suspect


@dataclass(slots=True)
class CapacityCounter:
    """A counting limiter without waiting."""

    free: int

    def try_acquire(self) -> bool:
        """Acquire one unit of capacity. Return False if there is none."""
        if self.free <= 0:
            return False
        self.free -= 1
        return True

    def release(self, number: int = 1) -> None:
        """Release units of capacity."""
        self.free += number


PartitionKey = tuple[bytes, int]
"""A partition: the id of its topic, and its number."""


class OffsetRange(NamedTuple):
    """The offsets `first` to `last` of a partition, which a member acquired together. Their lock ends at
    `until_ms`.
    """

    first: int
    last: int
    delivery_count: int  # the number of this delivery, 1 for the first
    acquired_ms: int  # by the gateway's monotonic clock, as `until_ms`
    until_ms: int

    @property
    def offsets(self) -> int:
        """The number of offsets."""
        return self.last - self.first + 1


class HeldRanges:
    """A member's offset ranges, by partition. They do not overlap. `ranges_max` and `capacity` limit their
    number.
    """

    __slots__ = ("_by_partition", "_capacity", "_first_end_ms", "_free")

    def __init__(self, capacity: CapacityCounter, ranges_max: int) -> None:
        self._by_partition: dict[PartitionKey, list[OffsetRange]] = {}
        """The ranges of each partition, in the order of their offsets."""
        self._capacity = capacity
        self._free = ranges_max  # the number of further ranges
        self._first_end_ms: int | None = None
        """No lock ends before this time. None if unknown."""

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def add(self, partition: PartitionKey, span: OffsetRange) -> bool:
        """Add a range, which must not overlap another range. Return False if there is no capacity for it."""
        if self._free <= 0 or not self._capacity.try_acquire():
            return False
        self._free -= 1
        ranges = self._by_partition.setdefault(partition, [])
        if not ranges or ranges[-1].first < span.first:
            ranges.append(span)
        else:
            ranges.insert(bisect_left(ranges, span), span)
        if self._first_end_ms is not None:
            self._first_end_ms = min(self._first_end_ms, span.until_ms)
        return True

    def take(self, partition: PartitionKey, first: int, last: int) -> list[OffsetRange]:
        """Remove the offsets from `first` to `last`, and return them as ranges."""
        ranges = self._by_partition.get(partition)
        if ranges is None:
            return []
        begin = bisect_left(ranges, (first,))
        if begin and ranges[begin - 1].last >= first:  # a range that begins earlier includes `first`
            begin -= 1
        end = bisect_left(ranges, (last + 1,), begin)
        if begin == end:
            return []
        # A range that loses its middle becomes two ranges, even if there is no capacity for the second range.
        taken, remaining = ranges[begin:end], []
        if taken[0].first < first:
            remaining.append(taken[0]._replace(last=first - 1))
            taken[0] = taken[0]._replace(first=first)
        if taken[-1].last > last:
            remaining.append(taken[-1]._replace(first=last + 1))
            taken[-1] = taken[-1]._replace(last=last)
        ranges[begin:end] = remaining
        self._release(end - begin - len(remaining))
        if not ranges:
            del self._by_partition[partition]
        return taken

    def take_expired(self, now_ms: int) -> list[tuple[PartitionKey, OffsetRange]]:
        """Remove and return the ranges whose lock has ended."""
        if self._first_end_ms is not None and self._first_end_ms > now_ms:
            return []
        expired = [(partition, span) for partition, span in self if span.until_ms <= now_ms]
        for partition, span in expired:
            self.take(partition, span.first, span.last)
        self._first_end_ms = min((span.until_ms for _, span in self), default=None)
        return expired

    def take_all(self) -> list[tuple[PartitionKey, OffsetRange]]:
        """Remove and return all ranges."""
        ranges = list(self)
        self._release(len(ranges))
        self._by_partition.clear()
        return ranges

    def __iter__(self) -> Iterator[tuple[PartitionKey, OffsetRange]]:
        return ((partition, span) for partition, ranges in self._by_partition.items() for span in ranges)

    def _release(self, number: int) -> None:
        """Release the capacity of removed ranges. A negative number acquires it."""
        self._free += number
        self._capacity.release(number)


# Records of one group that may be poison.


SUSPECTS_MAX = 1_000
"""The maximum number of suspects of a group. The oldest suspects are forgotten."""
RANGE_MAX = 1_000
"""The maximum number of offsets of a range that are examined, beginning with the first."""
RELEASED_BY_MAX = 4
"""The maximum number of members that are stored as having released a record."""

Key = tuple[bytes, int, int]
"""A topic id, a partition, an offset."""


def is_suspected(suspect: Suspect) -> bool:
    """Return True if a record is probably poison: a member rejected it, its final delivery was released or
    not acknowledged (GONE), or several members released it.
    """
    is_released_by_several = suspect.outcome != ACCEPTED and len(suspect.released_by) > 1
    return suspect.outcome in (REJECTED, GONE) or is_released_by_several


@dataclass(slots=True, eq=False)
class Suspects:
    """The suspects of a group: offsets that were released or rejected, or whose final delivery has ended.
    `is_suspected` selects those that are probably poison.
    """

    _capacity: CapacityCounter
    _suspects: dict[Key, Suspect] = field(default_factory=dict)
    _changed: dict[Key, None] = field(default_factory=dict)
    """The suspects that have changed since the last `take_changed`. The latest change is last."""
    _awaited: set[Key] = field(default_factory=set)
    """The offsets that were released and will be delivered again."""
    suspected: int = 0
    """The number of offsets that became suspected since the start."""

    def record_acquired(self, partition: PartitionKey, span: OffsetRange) -> None:
        """Record that a range was delivered again. Its suspects become OPEN, even those that seemed to be
        archived (GONE).
        """
        for key in self._suspect_keys_in(partition, span):
            suspect = self._suspects[key]
            was_suspected = is_suspected(suspect)
            suspect.deliveries = max(suspect.deliveries, span.delivery_count)
            suspect.outcome = OPEN
            self._awaited.discard(key)
            self._mark_changed(key, was_suspected=was_suspected)

    def record_accepted(self, partition: PartitionKey, span: OffsetRange) -> None:
        """Record that a range was processed successfully."""
        for key in self._suspect_keys_in(partition, span):
            if is_suspected(self._suspects[key]):
                self._suspects[key].outcome = ACCEPTED
                self._awaited.discard(key)
                self._mark_changed(key, was_suspected=True)
            else:
                self._forget(key)
                self._capacity.release()

    def record_end(
        self, what: str, partition: PartitionKey, span: OffsetRange, member_id: str, limit: int
    ) -> None:
        """Record how the delivery of a range to a member ended.

        `what` is "released" or "rejected" if the member did so, "ended" if the lock expired or the member's
        session ended. "ended" is recorded only if this was the final delivery: the broker archives records
        that were delivered `limit` times, and delivers others again.
        """
        is_last = span.delivery_count >= limit
        if what == "ended" and not is_last:
            return  # a member that is stopped or slow does not make its records suspects
        for key, suspect in self._suspects_to_update(partition, span):
            was_suspected = is_suspected(suspect)
            suspect.is_last = is_last
            suspect.outcome = GONE if is_last else OPEN
            if is_last or what == "rejected":
                self._awaited.discard(key)
            else:
                self._awaited.add(key)
            if what == "rejected":
                suspect.rejected_by, suspect.outcome = member_id, REJECTED
            elif what == "released":
                suspect.releases += 1
                if member_id not in suspect.released_by and len(suspect.released_by) < RELEASED_BY_MAX:
                    suspect.released_by += (member_id,)
            self.suspected += is_suspected(suspect) and not was_suspected
            self._mark_changed(key, was_suspected=was_suspected)

    def set_limit(self, limit: int) -> None:
        """Set the brokers' delivery limit. The brokers have archived released records with at least `limit`
        deliveries.
        """
        for key in [key for key in self._awaited if self._suspects[key].deliveries >= limit]:
            suspect = self._suspects[key]
            was_suspected = is_suspected(suspect)
            suspect.is_last, suspect.outcome = True, GONE
            self._awaited.discard(key)
            self.suspected += not was_suspected
            self._mark_changed(key, was_suspected=was_suspected)

    def take_changed(self, max_count: int) -> list[tuple[Key, Suspect]]:
        """Return the latest suspects that changed since the last call, at most `max_count`."""
        changed = [(key, self._suspects[key]) for key in self._changed]
        self._changed.clear()
        return changed[-max_count:]

    def clear(self) -> None:
        """Remove all suspects, and release their capacity."""
        self._capacity.release(len(self._suspects))
        self._suspects.clear()
        self._changed.clear()
        self._awaited.clear()

    def _mark_changed(self, key: Key, *, was_suspected: bool) -> None:
        """Make a suspect the latest of the changed ones, if it is or was probably poison."""
        if was_suspected or is_suspected(self._suspects[key]):
            self._changed.pop(key, None)
            self._changed[key] = None

    def _suspect_keys_in(self, partition: PartitionKey, span: OffsetRange) -> list[Key]:
        """Return the known suspects in a range."""
        if not self._suspects or span.delivery_count <= 1:
            # A first delivery has no suspects.
            return []
        # Iterate over the smaller set: the offsets of the range, or the suspects.
        if span.offsets < len(self._suspects):
            keys: list[Key] = [(*partition, offset) for offset in range(span.first, span.last + 1)]
            return [key for key in keys if key in self._suspects]
        return [
            (topic_id, index, offset)
            for topic_id, index, offset in self._suspects
            if (topic_id, index) == partition and span.first <= offset <= span.last
        ]

    def _suspects_to_update(
        self, partition: PartitionKey, span: OffsetRange
    ) -> Iterator[tuple[Key, Suspect]]:
        """Yield a suspect for each of the first RANGE_MAX offsets, and make it the newest of the group.

        An offset without capacity is left out.
        """
        for offset in range(span.first, min(span.last, span.first + RANGE_MAX - 1) + 1):
            key: Key = (*partition, offset)
            suspect = self._suspects.pop(key, None)
            if suspect is None:
                suspect = Suspect(partition=partition[1], offset=offset)
                if not self._make_space():
                    continue
            self._suspects[key] = suspect
            suspect.deliveries = max(suspect.deliveries, span.delivery_count)
            yield key, suspect

    def _make_space(self) -> bool:
        """Return True if there is capacity for a new suspect, perhaps that of the oldest one, which is
        forgotten.
        """
        if len(self._suspects) < SUSPECTS_MAX and self._capacity.try_acquire():
            return True
        if not self._suspects:
            return False
        oldest = next(iter(self._suspects))
        self._forget(oldest)
        return True

    def _forget(self, key: Key) -> None:
        """Remove a suspect, but do not release its capacity."""
        del self._suspects[key]
        self._changed.pop(key, None)
        self._awaited.discard(key)


ROWS_MAX = 1_000
"""The maximum number of (partition, member) pairs that are counted separately per group and minute. The
counts of other pairs are added up.
"""
DEFAULT_LIMIT = 5
"""Kafka's default of group.share.delivery.count.limit."""


class DeliveryCounts:
    """The delivery counts of one share group since the last `take`, and its `suspects`.

    `limit` is `share.delivery.count.limit`: Kafka's default, or the brokers' value if `is_limit_known`.
    `lock_ms` is 0 until a broker has reported it. `sessions` is the number of connections of members.
    """

    __slots__ = (
        "_capacity",
        "_others",
        "_rows",
        "_since_ms",
        "group_id",
        "is_limit_known",
        "limit",
        "limit_queried_ms",
        "lock_ms",
        "sessions",
        "suspects",
    )  # fmt: skip

    def __init__(self, group_id: str, rows: CapacityCounter, suspects: CapacityCounter, now_ms: int) -> None:
        self.group_id = group_id
        self.limit = DEFAULT_LIMIT
        self.is_limit_known = False
        self.limit_queried_ms = -math.inf
        self.lock_ms = 0
        self.sessions = 0
        self.suspects = Suspects(suspects)
        self._rows: dict[tuple[bytes, int, str], Counted] = {}
        self._others: Counted | None = None
        self._capacity = rows
        self._since_ms = now_ms

    def row(self, partition: PartitionKey, member_id: str) -> Counted:
        """Return the counts of this member and this partition. Without capacity for them, return the sum for
        all pairs that are not counted separately.
        """
        key = (*partition, member_id)
        existing = self._rows.get(key)
        if existing is not None:
            return existing
        if len(self._rows) < ROWS_MAX and self._capacity.try_acquire():
            self._rows[key] = row = Counted(partition=partition[1], member_id=member_id)
            return row
        if self._others is None:
            self._others = Counted()
        return self._others

    def take(self, now_ms: int) -> "TakenCounts | None":
        """Remove and return the counts, or return None if there are none."""
        if not self._rows and self._others is None:
            self._since_ms = now_ms
            return None
        taken = TakenCounts(self._rows, self._others, now_ms - self._since_ms)
        self._capacity.release(len(self._rows))
        self._rows, self._others, self._since_ms = {}, None, now_ms
        return taken

    def clear(self) -> None:
        """Remove all counts and suspects, and release their capacity."""
        self.take(self._since_ms)
        self.suspects.clear()


@dataclass(slots=True)
class TakenCounts:
    """The counts of a group in a period of `took_ms`, by topic id, partition and member."""

    counts: dict[tuple[bytes, int, str], Counted]
    others: Counted | None  # the sum for all (partition, member) pairs that are not in `counts`
    took_ms: int

    def rows(self, max_count: int) -> Iterator[tuple[bytes, Counted]]:
        """Return topic ids and rows, first the rows with the most deliveries and acknowledgements. Rows
        beyond `max_count` are added to `others`.
        """
        ordered = sorted(self.counts.items(), key=lambda item: -item[1].delivered - item[1].acknowledged)
        for _, row in ordered[max_count:]:
            if self.others is None:
                self.others = Counted()
            self.others.add(row)
        return ((key[0], row) for key, row in ordered[:max_count])
