"""When the server reports to an open page that there is something new."""

from collections.abc import Callable
from dataclasses import dataclass

HOLD_S = 5.0
"""A change is held back for at most this time. Then the reader gets the present state."""


@dataclass(eq=False)
class LiveReader:
    """A page that is live, until another one takes its slot."""

    has_ended: bool = False


class HeldVersion:
    """The version of one reader's page. A new one is held back until a page would show what is new: else the
    reader would ask for a page in vain, which keeps the interpreter from making what is awaited.
    """

    def __init__(self) -> None:
        self._told: int | None = None
        self._held_from_s: float | None = None

    def version(self, newest: int | None, is_shown: Callable[[], bool], now_s: float) -> int | None:
        """Return the version to report. `is_shown` is called only for a new one."""
        if self._told is not None and newest != self._told:
            if self._held_from_s is None:
                self._held_from_s = now_s
            if now_s - self._held_from_s < HOLD_S and not is_shown():
                return self._told
        self._held_from_s = None
        self._told = newest
        return newest
