"""One log line a second for what may happen to every client at once."""

import asyncio

import structlog

log = structlog.get_logger()


class RateLimitedWarning:
    """Says that requests got no answer: at once, then once a second how many more. For the loop's thread."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._unsaid = 0
        self._last = ""
        self._is_waiting = False

    def add(self, error: str) -> None:
        """One more request without an answer."""
        self._unsaid += 1
        self._last = error
        if not self._is_waiting:
            self._say()

    def _say(self) -> None:
        self._is_waiting = self._unsaid > 0
        if self._is_waiting:
            log.warning("no answer from the coordinator", requests=self._unsaid, error=self._last)
            self._unsaid = 0
            asyncio.get_running_loop().call_later(self._interval_s, self._say)
