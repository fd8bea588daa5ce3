"""The queue locks that the coordinator has granted to one connection.

A client waits 1,000 ms for the answer to LOCK_BATCH_MQ, and drops a later answer. With the coordinator's
answers alone, no queue of an orderly group would be consumed while the coordinator is slower than that. So
late answers are stored, and the client's next request is answered from them.

A client consumes a queue for 30 s after the answer to its lock (rocketmq.client.rebalance.lockMaxLiveTime),
and the coordinator keeps a lock for 60 s after the request. So an answer from a grant is safe for less than
30 s after the request that led to it. Source: ProcessQueue.java, RebalanceLockManager.java.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_why.contract.rocketmq.requests import MessageQueue

GRANT_VALID_S = 25.0
"""More than the 20 s between two renewals of a client, so that renewals do not wait for the coordinator."""


class LockHolder(NamedTuple):
    """The client that locks queues for a group."""

    group_id: str
    client_id: str


@dataclass(slots=True, eq=False)
class PendingLock:
    """A lock request that the coordinator has not answered. `queues` are the requested queues that the client
    has not unlocked since.
    """

    holder: LockHolder
    queues: dict[MessageQueue, None]
    requested_at_s: float


@dataclass(slots=True)
class QueueGrants:
    """The locks granted to one connection, each with the time of its request. Times are in seconds of one
    clock.
    """

    _requested_at_s: dict[tuple[LockHolder, MessageQueue], float] = field(default_factory=dict)
    """The time of the request for each granted lock, in the order of the grants."""
    _pending: dict[PendingLock, None] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        """The number of lock requests that the coordinator has not answered."""
        return len(self._pending)

    def granted(
        self, holder: LockHolder, queues: Iterable[MessageQueue], now_s: float
    ) -> tuple[MessageQueue, ...]:
        """Return those of the queues whose grants are still valid."""
        valid_since_s = now_s - GRANT_VALID_S
        # A queue without a grant counts as just expired.
        return tuple(
            queue
            for queue in dict.fromkeys(queues)
            if self._requested_at_s.get((holder, queue), valid_since_s) > valid_since_s
        )

    def start_request(self, holder: LockHolder, queues: Iterable[MessageQueue], now_s: float) -> PendingLock:
        """Record a lock request that is sent to the coordinator now. Pass its answer to `settle`."""
        lock = PendingLock(holder, dict.fromkeys(queues), now_s)
        self._pending[lock] = None
        return lock

    def settle(self, lock: PendingLock, locked: Collection[MessageQueue] | None) -> None:
        """Record the coordinator's answer to a lock request, however late it comes.

        `locked` are the queues that the client holds now, or None if there is no answer.
        """
        self._pending.pop(lock, None)
        if locked is None:
            return
        locked_queues = frozenset(locked)
        for queue in lock.queues:
            # A grant that is renewed moves to the end, because `_expire` relies on the order.
            earlier_requested_at_s = self._requested_at_s.pop((lock.holder, queue), lock.requested_at_s)
            if queue in locked_queues:
                self._requested_at_s[lock.holder, queue] = max(earlier_requested_at_s, lock.requested_at_s)
        self._expire(lock.requested_at_s - GRANT_VALID_S)

    def release(self, holder: LockHolder, queues: Collection[MessageQueue]) -> None:
        """Forget the grants of these queues, because the client unlocks them. Answers to earlier lock
        requests no longer grant these queues.
        """
        for queue in queues:
            self._requested_at_s.pop((holder, queue), None)
        for lock in self._pending:
            if lock.holder == holder:
                for queue in queues:
                    lock.queues.pop(queue, None)

    def _expire(self, until_s: float) -> None:
        """Forget the grants that were requested up to this time."""
        while self._requested_at_s:
            oldest = next(iter(self._requested_at_s))
            if self._requested_at_s[oldest] > until_s:
                break
            del self._requested_at_s[oldest]
