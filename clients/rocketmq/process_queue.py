"""A queue that a client has. Source: ProcessQueue.java."""

from dataclasses import dataclass

PULL_MAX_IDLE_MS = 120_000
LOCK_MAX_LIVE_MS = 30_000


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
