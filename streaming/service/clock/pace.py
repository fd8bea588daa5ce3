"""The pace of clock records, by which the ticker attests the time in the log. A round appends at least one of
them to every partition of the requests topic.

Only deadlines wait for clock records. Requests do not, because a request's own append time advances its
group. So clock records may be rare while no deadline comes.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import ceil

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
"""The interval of clock records between deadlines that the replica has announced. The replica answers no
request if no clock record has come for a second (`streaming.replica.state_machine`)."""
# A round attests the append time of the round before it, and a replica that has not acted on a recent time
# counts as silent (`streaming.service.replica.supervision`). So if rounds are further apart than this, a
# second round follows at once.
_ROUNDS_APART_MAX_S = 0.5


class DeadlinePace:
    """The policy for the pauses between rounds of clock records while a replica announces the next deadline:
    they are long, but a round is due at the deadline. Safe for threads.

    While no replica announces deadlines (`knows_deadlines` returns False), rounds are `interval_ms` apart.
    Rounds for deadlines are at least `interval_ms` apart, too. A batch of the query begins at once when each
    partition has `batch_records` new records on average. So if the query has something to write, the next
    round appends that many clock records.
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
        self._wants_batch = False  # True until a round of `batch_records` is appended
        self._round_starts_batch = False  # True while such a round is being appended
        self._is_woken = False  # True from `wake` until a wait has ended
        self._deadline_round_s = float("-inf")  # when the last round for a deadline was due

    @property
    def longest_interval_ms(self) -> int:
        """The longest interval between clock records."""
        return round(self._rest_interval_s * 1000)

    def appended(self, offsets: Sequence[int]) -> None:
        """Record that the ticker has appended a clock record to each partition, with these offsets."""
        with self._changed:
            if self._round_starts_batch:
                self._round_starts_batch = False
                self._wants_batch = False

    def batch_read(self, ends: Mapping[int, int]) -> None:
        """Do nothing. Only `MembersPace` needs the offsets up to which batches have read."""

    def deadline_at(self, at_ms: int) -> None:
        """Record that a deadline fires at this time, in ms of the broker's clock."""
        with self._changed:
            heappush(self._deadlines_ms, at_ms)
            self._changed.notify()

    def want_batch(self) -> None:
        """Record that the query has something to write, so the next round has to start a batch."""
        with self._changed:
            self._wants_batch = True
            self._changed.notify()

    def records(self) -> int:
        """Return the number of clock records that the next round appends to each partition."""
        with self._changed:
            self._round_starts_batch = self._wants_batch
        if self._round_starts_batch:
            return self._batch_records
        if self._knows_deadlines():
            return 1
        # No replica answers, so clients wait for the query. The rounds of a second have the
        # records of two batches.
        return min(ceil(2 * self._batch_records * self._interval_s), self._batch_records)

    def needs_second_round(self, attested_ms: int) -> bool:
        """Return True if a second round has to attest at once the append time of the round that was just
        appended, `attested_ms`.
        """
        with self._changed:
            is_due = bool(self._deadlines_ms) and self._deadlines_ms[0] <= attested_ms
            # The second round makes these deadlines fire.
            while self._deadlines_ms and self._deadlines_ms[0] <= attested_ms:
                heappop(self._deadlines_ms)
        return is_due or not self._knows_deadlines() or self._rest_interval_s > _ROUNDS_APART_MAX_S

    def wait(self, attested_ms: int) -> None:
        """Wait until the next round is due, a batch is wanted, or `wake` is called. `attested_ms` is the
        latest time that the next round can attest.
        """
        began_s = self._now_s()
        until_s = began_s + (self._rest_interval_s if self._knows_deadlines() else self._interval_s)
        with self._changed:
            while not (self._is_woken or self._wants_batch):
                deadline_s = self._next_round_s(began_s, attested_ms)
                if not self._changed.wait(max(0.0, min(until_s, deadline_s) - self._now_s())):
                    if deadline_s < until_s:
                        self._deadline_round_s = self._now_s()
                    return
            self._is_woken = False

    def _next_round_s(self, began_s: float, attested_ms: int) -> float:
        """Return the time, by the clock `now_s`, of the round for the next deadline, or infinity if no
        deadline is announced. At `began_s` the broker's time was about `attested_ms`.
        """
        if not self._deadlines_ms:
            return float("inf")
        # One ms more, because the broker's clock counts whole milliseconds.
        deadline_s = began_s + (self._deadlines_ms[0] + 1 - attested_ms) / 1000
        return max(deadline_s, self._deadline_round_s + self._interval_s)

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()


class MembersPace:
    """The policy for the pauses without a replica: short while a deadline may come, long while no group has a
    member or a client. Safe for threads. After a long pause, offset retention and the expiry of locks and of
    unused member ids are late by one pause at most.

    The groups topic shows if a group has a member. `MembersWatcher` reads it to its end after a batch has
    processed the last request, and reports with `no_member` that no group has one. Any later request makes
    clock records frequent again: the ticker reports the offsets of its records (`appended`) and the query the
    offsets read by batches (`batch_read`), and gaps between them are requests. `interval_ms` is the interval
    while a deadline may come.

    The ticker and the query call the methods that DeadlinePace has, too.
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
        self._woken = threading.Event()
        # By partition: the offset after the last clock record, -1 if unknown.
        self._next_offsets = [-1] * partitions
        # By partition: the offset of a clock record after requests that no batch has read yet.
        self._unread: dict[int, int] = {}
        self._last_request_s = now_s()  # when the last request was noticed, or read by a batch
        self._no_member_s = float("-inf")  # the last time at which no group had a member

    @property
    def longest_interval_ms(self) -> int:
        return round(self._rest_interval_s * 1000)

    def appended(self, offsets: Sequence[int]) -> None:
        with self._lock:
            for partition, offset in enumerate(offsets):
                if offset != self._next_offsets[partition]:  # requests precede this clock record
                    self._unread[partition] = offset
                    self._note_request()
                self._next_offsets[partition] = offset + 1

    def batch_read(self, ends: Mapping[int, int]) -> None:
        with self._lock:
            for partition, end in ends.items():
                unread_before = self._unread.get(partition)
                if unread_before is not None and end >= unread_before:
                    # The batch has read these requests. Only now views can show their groups' members.
                    del self._unread[partition]
                    self._note_request()
                elif end > self._next_offsets[partition]:  # requests follow the last clock record
                    self._note_request()

    def needs_members_check(self) -> bool:
        """Return True if the groups topic has to be read.

        It has to be read once batches have processed all requests and no request has come for a while, unless
        `no_member` was called since the last request.
        """
        with self._lock:
            is_quiet = self._now_s() - self._last_request_s > self._quiet_s
            return is_quiet and not self._unread and self._no_member_s <= self._last_request_s

    def no_member(self, at_s: float) -> None:
        """Record that no group had a member at this time by the clock `now_s`."""
        with self._lock:
            self._no_member_s = at_s

    def is_resting(self) -> bool:
        """Return True if no group has had a member since the last request, so that clock records may be
        rare.
        """
        with self._lock:
            return self._no_member_s > self._last_request_s

    def records(self) -> int:
        """Return 1, because without a replica a batch begins at any new record."""
        return 1

    def needs_second_round(self, attested_ms: int) -> bool:
        """Return True, because a deadline may always be due."""
        return True

    def wait(self, attested_ms: int) -> None:
        self._woken.wait(self._rest_interval_s if self.is_resting() else self._interval_s)
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def _note_request(self) -> None:
        """Record that a request has come now, and end a long pause. The caller holds the lock."""
        was_resting = self._no_member_s > self._last_request_s
        self._last_request_s = self._now_s()
        if was_resting:
            self._woken.set()


Pace = DeadlinePace | MembersPace
