"""When a client rebalances. Source: RebalanceService.java, ServiceThread.java."""

DEFAULT_WAIT_INTERVAL_MS = 20_000
DEFAULT_MIN_INTERVAL_MS = 1_000


class Schedule:
    """Every `wait_interval_ms`, or `min_interval_ms` after a round that left something unbalanced.

    A wake-up asks for a round now. Wake-ups coalesce, and one that comes sooner than `min_interval_ms` after
    the last round waits for the rest of that time. Times in milliseconds of one clock.
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
        """Rebalance at that time, or earlier where a round is due already."""
        self.due_ms = min(self.due_ms, max(at_ms, self._last_ms + self._min_interval_ms))

    def ran(self, now_ms: int, *, balanced: bool) -> None:
        """A round is over."""
        self._last_ms = now_ms
        self.due_ms = now_ms + (self._wait_interval_ms if balanced else self._min_interval_ms)
