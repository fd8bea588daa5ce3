"""The decision when the server notifies an open page of new content."""

from collections.abc import Callable
from dataclasses import dataclass

HOLD_S = 5.0
"""A change is held back for at most this time. Then the reader gets the present state."""


@dataclass(eq=False)
class LiveReader:
    """An open page with live updates. Another page may take its slot."""

    has_ended: bool = False


class HeldVersion:
    """The last version that one open page was notified of.

    A new version is held back until a reloaded page would show it. Otherwise the reader would reload in vain
    and delay the computation.
    """

    def __init__(self) -> None:
        self._sent: int | None = None
        self._held_from_s: float | None = None

    def version(self, newest: int | None, is_shown: Callable[[], bool], now_s: float) -> int | None:
        """Return the version to send to the page. `is_shown` is called only if it is new."""
        if self._sent is not None and newest != self._sent:
            if self._held_from_s is None:
                self._held_from_s = now_s
            if now_s - self._held_from_s < HOLD_S and not is_shown():
                return self._sent
        self._held_from_s = None
        self._sent = newest
        return newest
