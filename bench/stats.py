"""Quantiles, and the warm-up before a measurement."""

import time
from collections.abc import Sequence

LAST = 3  # the number of values that are compared
SPREAD = 0.1  # their largest difference, as a fraction of their median


def percentile(values: Sequence[float], q: float) -> float:
    """Return the value at quantile q of the measured values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * q), len(ordered) - 1)]


def is_stable(values: Sequence[float]) -> bool:
    """Return True if the last LAST values differ by no more than SPREAD of their median."""
    last = values[-LAST:]
    return len(last) == LAST and max(last) - min(last) <= SPREAD * percentile(last, 0.5)


class WarmUp:
    """The values of a warm-up, which continues until they are stable, but not longer than `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._values: list[float] = []

    @property
    def should_continue(self) -> bool:
        """True until the values are stable or the time limit is reached."""
        return not is_stable(self._values) and self._took_s < self._limit_s

    @property
    def _took_s(self) -> float:
        return time.monotonic() - self._began_s

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def note(self) -> str:
        """Return a sentence with the outcome."""
        state = "stable" if is_stable(self._values) else "not yet stable"
        return f"{state} after {self._took_s:.0f} s of warm-up"
