"""Clients' data for log lines: short, and always on one line."""

import asyncio
from typing import Any

import structlog

TEXT_MAX_CHARS = 64


def quoted(text: str | bytes) -> str:
    """Return the beginning of the text in quotes, with all but printable ASCII escaped. A truncated text is
    followed by its length.
    """
    shown = ascii(text[:TEXT_MAX_CHARS])
    if len(text) <= TEXT_MAX_CHARS:
        return shown
    return f"{shown}... ({len(text)} {'characters' if isinstance(text, str) else 'bytes'})"


ERROR_MAX_CHARS = 500

log = structlog.get_logger()

_INTERVAL_S = 1.0


class RateLimitedWarning:
    """A log event that is written at most once a second, the first time at once.

    Each line has the number of events since the previous line, in a field whose name is the value of
    `counted`. The line's other fields describe only the last event. Call `add` on the event loop's thread.
    """

    def __init__(
        self,
        event: str = "no answer from the coordinator",  # the most frequent event
        counted: str = "requests",
        *,
        level: str = "warning",
    ) -> None:
        self._event = event
        self._counted = counted
        self._level = level
        self._unlogged = 0
        self._last: dict[str, Any] = {}
        self._is_timer_set = False

    def add(self, **last: Any) -> None:
        """Count an event. `last` has its fields for the log line, without the count. Texts are truncated to
        ERROR_MAX_CHARS.
        """
        self._unlogged += 1
        self._last = last
        if not self._is_timer_set:
            self._write_line()

    def _write_line(self) -> None:
        """Write a line about the events since the previous line, and set the timer for the next line.
        Without events, do neither.
        """
        self._is_timer_set = self._unlogged > 0  # `add` writes at once if no timer is set
        if self._is_timer_set:
            shown = {k: v[:ERROR_MAX_CHARS] if isinstance(v, str) else v for k, v in self._last.items()}
            getattr(log, self._level)(self._event, **{self._counted: self._unlogged}, **shown)
            self._unlogged, self._last = 0, {}
            asyncio.get_running_loop().call_later(_INTERVAL_S, self._write_line)
