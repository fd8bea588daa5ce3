"""A queue that a client has, and the limits of the messages that the client holds.

Source: ProcessQueue.java, RebalancePushImpl.messageQueueChanged.
"""

from dataclasses import dataclass

PULL_MAX_IDLE_MS = 120_000
LOCK_MAX_LIVE_MS = 30_000
NO_THRESHOLD = -1


@dataclass(slots=True)
class ProcessQueue:
    """The client's state of one queue. `next_offset` is the first unprocessed offset.

    `locked` and `last_lock_ms` count only for orderly consumption. Times are in milliseconds.
    """

    next_offset: int
    last_pull_ms: int
    locked: bool = False
    last_lock_ms: int = 0

    def is_pull_expired(self, now_ms: int) -> bool:
        """Whether the last pull is so long ago that pulling must have stopped."""
        return now_ms - self.last_pull_ms > PULL_MAX_IDLE_MS

    def is_locked(self, now_ms: int) -> bool:
        """Whether the lock is held and was renewed within LOCK_MAX_LIVE_MS."""
        return self.locked and now_ms - self.last_lock_ms <= LOCK_MAX_LIVE_MS

    def lock(self, now_ms: int) -> None:
        """Record that the broker gave this client the lock at `now_ms`."""
        self.locked, self.last_lock_ms = True, now_ms


@dataclass(slots=True)
class PullThresholds:
    """The limits of the messages that wait in a client, by queue and by topic: their number, and MiB of them.

    With a topic's threshold of -1 (none), the threshold of its queues stays as it is.
    """

    for_queue: int = 1_000
    size_mib_for_queue: int = 100
    for_topic: int = NO_THRESHOLD
    size_mib_for_topic: int = NO_THRESHOLD

    def share(self, queues: int) -> None:
        """Divide the topic's thresholds by the number of the group's queues of all topics, as in RocketMQ."""
        if queues == 0:
            return
        if self.for_topic != NO_THRESHOLD:
            self.for_queue = max(1, self.for_topic // queues)
        if self.size_mib_for_topic != NO_THRESHOLD:
            self.size_mib_for_queue = max(1, self.size_mib_for_topic // queues)
