"""A queue that a client has, and how much of it the client may hold. Source: ProcessQueue.java,
RebalancePushImpl.messageQueueChanged.
"""

from dataclasses import dataclass

PULL_MAX_IDLE_MS = 120_000
LOCK_MAX_LIVE_MS = 30_000
NO_THRESHOLD = -1


@dataclass(slots=True)
class ProcessQueue:
    """`next_offset` is the first that is not yet processed; the lock is for orderly use. Times in ms."""

    next_offset: int
    last_pull_ms: int
    locked: bool = False
    last_lock_ms: int = 0

    def is_pull_expired(self, now_ms: int) -> bool:
        """Whether nothing was pulled for so long that pulling must have stopped."""
        return now_ms - self.last_pull_ms > PULL_MAX_IDLE_MS

    def is_locked(self, now_ms: int) -> bool:
        """Whether the lock is held, and was renewed lately enough to be relied on."""
        return self.locked and now_ms - self.last_lock_ms <= LOCK_MAX_LIVE_MS

    def lock(self, now_ms: int) -> None:
        """The broker says that the lock is this client's."""
        self.locked, self.last_lock_ms = True, now_ms


@dataclass(slots=True)
class PullThresholds:
    """How many messages, and how many MiB of them, may wait in a client: of a topic, and so of each queue.

    A topic's threshold of -1 leaves that of its queues alone.
    """

    for_queue: int = 1_000
    size_mib_for_queue: int = 100
    for_topic: int = NO_THRESHOLD
    size_mib_for_topic: int = NO_THRESHOLD

    def share(self, queues: int) -> None:
        """Deal a topic's thresholds out to the queues of a group, of all topics together as RocketMQ does."""
        if queues == 0:
            return
        if self.for_topic != NO_THRESHOLD:
            self.for_queue = max(1, self.for_topic // queues)
        if self.size_mib_for_topic != NO_THRESHOLD:
            self.size_mib_for_queue = max(1, self.size_mib_for_topic // queues)
