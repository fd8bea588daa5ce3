"""The times at which a client rebalances. Source: RebalanceService.java, ServiceThread.java."""

DEFAULT_WAIT_INTERVAL_MS = 20_000
DEFAULT_MIN_INTERVAL_MS = 1_000


class Schedule:
    """A round is due `wait_interval_ms` after the last one, or `min_interval_ms` after an unbalanced one.

    A wake-up makes a round due at once. Wake-ups coalesce. A wake-up within `min_interval_ms` of the last
    round waits for the rest of that time. Times are in milliseconds of one clock.
    """

    def __init__(
        self,
        now_ms: int,
        wait_interval_ms: int = DEFAULT_WAIT_INTERVAL_MS,
        min_interval_ms: int = DEFAULT_MIN_INTERVAL_MS,
    ) -> None:
        self._wait_interval_ms = wait_interval_ms
        self._min_interval_ms = min_interval_ms
        self._last_ms = now_ms
        self.due_ms = now_ms + wait_interval_ms

    def wake(self, at_ms: int) -> None:
        """Make a round due at `at_ms`, unless one is due earlier."""
        self.due_ms = min(self.due_ms, max(at_ms, self._last_ms + self._min_interval_ms))

    def ran(self, now_ms: int, *, balanced: bool) -> None:
        """Record that a round ended at `now_ms`, and schedule the next one."""
        self._last_ms = now_ms
        self.due_ms = now_ms + (self._wait_interval_ms if balanced else self._min_interval_ms)
