"""The pace of clock records.

Only deadlines wait for clock records. Requests do not, because a request's own append time advances its
group. So clock records may be rare while no deadline comes.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import Protocol

REST_INTERVAL_MS = 2_000
"""The interval of clock records while no group has a member."""
QUIET_S = 3.0
"""After the last request, clock records stay frequent for this long."""
BATCH_RECORDS = 16
"""With a replica a batch begins when each partition has this many new records on average, or after
BATCH_DELAY_MS."""
# Batches begin at whole intervals, which are a second by default, so this is 3 s.
BATCH_DELAY_MS = 2_900
BETWEEN_DEADLINES_MS = 250
"""The interval of clock records between deadlines that the replica has announced. It answers no request if
none has come for a second (`streaming.replica.state_machine`)."""
# A round attests the time of the one before. A replica whose time is later than that counts as silent
# (`streaming.service.replica.supervision`).
_ATTESTED_LATE_S = 0.5


class Pace(Protocol):
    """The policy for the pauses between clock records. Safe for threads."""

    @property
    def longest_interval_ms(self) -> int:
        """The longest interval between clock records."""

    def appended(self, offsets: Sequence[int]) -> None:
        """Record that the ticker has appended a clock record to each partition, with these offsets."""

    def batch_read(self, ends: Mapping[int, int]) -> None:
        """Record that a committed batch has read the partitions up to these offsets."""

    def records(self) -> int:
        """Return the number of clock records that the next round appends to each partition."""

    def attests_at_once(self, attested_ms: int) -> bool:
        """Return True if a second round has to attest the time of the first one, which is `attested_ms`."""

    def wait(self, attested_ms: int) -> None:
        """Wait until the next clock record is due, or until `hurry` is called. The last one was appended at
        `attested_ms`.
        """

    def hurry(self) -> None:
        """End the current wait, or the next one."""


class DeadlinePace:
    """The pace while a replica announces the next deadline: rare until then, and a round at that time. While
    it does not (`knows_deadlines`), clock records are `interval_ms` apart, as are rounds for deadlines that
    follow each other.

    If the query has something to write, a round has enough records for a batch to begin.
    """

    def __init__(
        self,
        interval_ms: int,
        knows_deadlines: Callable[[], bool],
        *,
        batch_records: int = BATCH_RECORDS,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_ms / 1000
        self._rest_interval_s = max(BETWEEN_DEADLINES_MS, interval_ms) / 1000
        self._knows_deadlines = knows_deadlines
        self._batch_records = batch_records
        self._now_s = now_s
        self._changed = threading.Condition()
        self._deadlines_ms: list[int] = []  # a heap
        self._wants_batch = self._gives_batch = False
        self._is_hurried = False
        self._deadline_round_s = float("-inf")

    @property
    def longest_interval_ms(self) -> int:
        return round(self._rest_interval_s * 1000)

    def appended(self, offsets: Sequence[int]) -> None:
        with self._changed:
            if self._gives_batch:
                self._wants_batch = self._gives_batch = False

    def batch_read(self, ends: Mapping[int, int]) -> None: ...

    def deadline_at(self, at_ms: int) -> None:
        """Record that a deadline fires at this time, in ms of the broker's clock."""
        with self._changed:
            heappush(self._deadlines_ms, at_ms)
            self._changed.notify()

    def want_batch(self) -> None:
        """Record that the query has something to write."""
        with self._changed:
            self._wants_batch = True
            self._changed.notify()

    def records(self) -> int:
        with self._changed:
            self._gives_batch = self._wants_batch
        if self._gives_batch:
            return self._batch_records
        # Clients may wait for the query, so each second has more than the records of a batch.
        wanted = 1 if self._knows_deadlines() else ceil(2 * self._batch_records * self._interval_s)
        return min(wanted, self._batch_records)

    def attests_at_once(self, attested_ms: int) -> bool:
        with self._changed:
            is_due = bool(self._deadlines_ms) and self._deadlines_ms[0] <= attested_ms
            while self._deadlines_ms and self._deadlines_ms[0] <= attested_ms:
                heappop(self._deadlines_ms)
        return is_due or not self._knows_deadlines() or self._rest_interval_s > _ATTESTED_LATE_S

    def wait(self, attested_ms: int) -> None:
        began_s = self._now_s()
        until_s = began_s + (self._rest_interval_s if self._knows_deadlines() else self._interval_s)
        with self._changed:
            while not (self._is_hurried or self._wants_batch):
                deadline_s = self._next_round_s(began_s, attested_ms)
                if not self._changed.wait(max(0.0, min(until_s, deadline_s) - self._now_s())):
                    if deadline_s < until_s:
                        self._deadline_round_s = self._now_s()
                    return
            self._is_hurried = False

    def _next_round_s(self, began_s: float, attested_ms: int) -> float:
        """Return the time of the round for the next deadline by the clock `now_s`."""
        if not self._deadlines_ms:
            return float("inf")
        # One ms more, because the broker's clock counts whole ones.
        deadline_s = began_s + (self._deadlines_ms[0] + 1 - attested_ms) / 1000
        return max(deadline_s, self._deadline_round_s + self._interval_s)

    def hurry(self) -> None:
        with self._changed:
            self._is_hurried = True
            self._changed.notify()


class MembersPace:
    """The pace without a replica: frequent while a deadline may come, rare while no group has a member or a
    client. Offset retention and the expiry of locks and of unused member ids are then late by one pause at
    most.

    The groups topic shows if a group has a member. It is read to its end after a batch has processed the last
    request (`streaming.service.clock.ticker`). Any later request makes clock records frequent again. The
    ticker reports the offsets of its records, the supervisor the offsets read by batches, and the members
    watcher that no group has members. `interval_ms` is the interval while a deadline may come.
    """

    def __init__(
        self,
        partitions: int,
        interval_ms: int,
        *,
        rest_interval_ms: int = REST_INTERVAL_MS,
        quiet_s: float = QUIET_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_ms / 1000
        self._rest_interval_s = max(rest_interval_ms, interval_ms) / 1000
        self._quiet_s = quiet_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._sooner = threading.Event()
        # The offset of the next clock record of each partition if no other record comes, -1 if unknown.
        self._next = [-1] * partitions
        # By partition: an offset after requests that no batch has read yet.
        self._unread: dict[int, int] = {}
        self._request_at_s = now_s()
        # The last time at which no group was known to have a member.
        self._no_member_at_s = float("-inf")

    @property
    def longest_interval_ms(self) -> int:
        return round(self._rest_interval_s * 1000)

    def appended(self, offsets: Sequence[int]) -> None:
        with self._lock:
            for partition, offset in enumerate(offsets):
                if offset != self._next[partition]:
                    self._unread[partition] = offset
                    self._see_request()
                self._next[partition] = offset + 1

    def batch_read(self, ends: Mapping[int, int]) -> None:
        with self._lock:
            for partition, end in ends.items():
                unread = self._unread.get(partition)
                if unread is not None and end >= unread:
                    del self._unread[partition]
                    self._see_request()
                elif end > self._next[partition]:
                    self._see_request()

    def needs_members_check(self) -> bool:
        """Return True if the groups topic has to be read.

        It has to be read once batches have processed all requests and no request has come for a while, unless
        `no_member` was called since the last request.
        """
        with self._lock:
            is_quiet = self._now_s() - self._request_at_s > self._quiet_s
            return is_quiet and not self._unread and self._no_member_at_s <= self._request_at_s

    def no_member(self, at_s: float) -> None:
        """Record that no group had a member at this time by the clock `now_s`."""
        with self._lock:
            self._no_member_at_s = at_s

    def is_resting(self) -> bool:
        """Return True if no group can have a deadline that a client waits for."""
        with self._lock:
            return self._no_member_at_s > self._request_at_s

    def records(self) -> int:
        return 1

    def attests_at_once(self, attested_ms: int) -> bool:
        """Return True: a deadline may always be due."""
        return True

    def wait(self, attested_ms: int) -> None:
        self._sooner.wait(self._rest_interval_s if self.is_resting() else self._interval_s)
        self._sooner.clear()

    def hurry(self) -> None:
        self._sooner.set()

    def _see_request(self) -> None:
        was_resting = self._no_member_at_s > self._request_at_s
        self._request_at_s = self._now_s()
        if was_resting:
            self._sooner.set()
