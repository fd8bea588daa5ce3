"""Lags of one partition over a window: the least and the greatest of each step."""

from array import array

from kafka_why.lag.definitions import STEPS, WINDOW_MS, rises

STEP_MS = WINDOW_MS // STEPS


class Trend:
    """Takes a lag in records every few seconds. For one thread at a time. Arrays, because there may be
    100,000 partitions.
    """

    __slots__ = ("_highs", "_lows", "_step")

    def __init__(self) -> None:
        self._step = 0
        self._lows, self._highs = array("q"), array("q")

    def add(self, records: int, at_ms: int) -> None:
        """Take the lag at a time. A step without any, when no broker answered, begins the window anew."""
        step = at_ms // STEP_MS
        if self._lows and step == self._step:
            self._lows[-1] = min(self._lows[-1], records)
            self._highs[-1] = max(self._highs[-1], records)
            return
        if step != self._step + 1:
            self._lows, self._highs = array("q"), array("q")
        self._step = step
        for lags in (self._lows, self._highs):
            lags.append(records)
            del lags[:-STEPS]

    @property
    def rises(self) -> bool:
        """Whether the lag rises over the window, which has to be full."""
        return rises(self._lows, self._highs)
