"""Decides when the next request may be sent: the rate limit, and the pauses after failures."""

from collections import deque
from collections.abc import Callable

MINUTE_S = 60.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LONGEST_RETRY_AFTER_S = 600.0
"""A receiver that asks for a longer pause gets this one."""


class RateLimit:
    """At most so many requests in any minute. Times are seconds of a clock that does not go back."""

    def __init__(self, per_minute: int) -> None:
        self._sent_s: deque[float] = deque(maxlen=per_minute)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next request may be sent, 0 if it may be now."""
        if len(self._sent_s) < (self._sent_s.maxlen or 1):
            return 0.0
        return max(self._sent_s[0] + MINUTE_S - now_s, 0.0)

    def sent(self, now_s: float) -> None:
        """Count a request that was sent."""
        self._sent_s.append(now_s)


class BackOff:
    """The pauses after failures: each twice the one before up to LONGEST_PAUSE_S, less up to a half by
    chance, so that many senders do not come back at the same time. `chance` returns a number from 0 to 1.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._next_s = FIRST_PAUSE_S

    def failed(self, retry_after_s: float | None = None) -> float:
        """Return the seconds to wait after a failure: at least what the receiver asked for."""
        pause_s = self._next_s * (1 - self._chance() / 2)
        self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)
        return max(pause_s, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))

    def worked(self) -> None:
        """Begin anew with the shortest pause, because a request did not fail."""
        self._next_s = FIRST_PAUSE_S
