"""The bounds of logs over time, which convert a lag in records to a lag in time."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from kafka_why.lag.definitions import STEPS, WINDOW_MS, LogBounds, Partition, rises

MAX_SAMPLES = 64
COARSENESS = 3
"""Samples are thinned out until their distance is up to their age divided by this."""
FORGET_MS = 300_000
"""A partition whose end has been unknown for this time is forgotten. A change of leader takes seconds."""


class TimedRecord(NamedTuple):
    """The offset of a record, and a time in ms at which it was on the log."""

    offset: int
    ms: int


class LogHistory:
    """A history of the bounds of logs, sampled every few seconds. For one thread at a time.

    A partition has at most MAX_SAMPLES samples. Old samples are further apart than recent ones.
    """

    def __init__(self) -> None:
        self._samples: dict[Partition, _Samples] = {}

    def add(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        """Add the bounds of all partitions of interest. Other partitions are forgotten after a while."""
        for partition in self._samples.keys() - bounds.keys():
            if at_ms - self._samples[partition].last_ms[-1] >= FORGET_MS:
                del self._samples[partition]
        for partition, log in bounds.items():
            samples = self._samples.get(partition)
            if samples is None or log.latest < samples.ends[-1]:  # new, or the topic was created again
                samples = self._samples[partition] = _Samples()
            samples.earliest = log.earliest
            samples.add(log.latest, at_ms)

    def bounds(self, partition: Partition) -> LogBounds | None:
        """Return the last known bounds, or None if there are none."""
        samples = self._samples.get(partition)
        return None if samples is None else LogBounds(samples.earliest, samples.ends[-1])

    def came(self, partition: Partition, offset: int) -> tuple[TimedRecord | None, TimedRecord] | None:
        """Return two samples between which the record at `offset` arrived: after the first, and at or before
        the second. Return None if the record has not been seen. The first sample is None if the record was
        already there at the first one.
        """
        samples = self._samples.get(partition)
        place = 0 if samples is None else bisect_right(samples.ends, offset)
        if samples is None or place == len(samples.ends):
            return None
        before = TimedRecord(samples.ends[place - 1] - 1, samples.last_ms[place - 1]) if place else None
        return before, TimedRecord(samples.ends[place] - 1, samples.first_ms[place])

    def newest_ms(self, partition: Partition) -> int | None:
        """Return when the newest record was first seen, or None if the partition is unknown."""
        samples = self._samples.get(partition)
        return None if samples is None else samples.first_ms[-1]

    def grew_ms(self, partition: Partition, since_ms: int) -> int | None:
        """Return when a record that arrived after a time was first seen, or None if none is known."""
        samples = self._samples.get(partition)
        if samples is None:
            return None
        place = bisect_left(samples.last_ms, since_ms) + 1
        return samples.first_ms[place] if place < len(samples.ends) else None


class _Samples:
    """End offsets, ascending, and the first and the last time at which each was seen. Arrays, because there
    may be 100,000 partitions.
    """

    __slots__ = ("earliest", "ends", "first_ms", "last_ms")

    def __init__(self) -> None:
        self.earliest = 0
        self.ends, self.first_ms, self.last_ms = array("q"), array("q"), array("q")

    def add(self, end: int, at_ms: int) -> None:
        if self.ends and end == self.ends[-1]:
            self.last_ms[-1] = at_ms
            return
        self.ends.append(end)
        self.first_ms.append(at_ms)
        self.last_ms.append(at_ms)
        if len(self.ends) > MAX_SAMPLES:
            self._thin(at_ms)

    def _thin(self, now_ms: int) -> None:
        """Drop each sample whose neighbours are close enough to each other for their age."""
        kept = [len(self.ends) - 1]
        for place in range(len(self.ends) - 2, 0, -1):
            younger_ms = self.first_ms[kept[-1]]
            if (younger_ms - self.last_ms[place - 1]) * COARSENESS > now_ms - younger_ms:
                kept.append(place)
        kept = [*kept, 0][:MAX_SAMPLES]
        for name in ("ends", "first_ms", "last_ms"):
            values = getattr(self, name)
            setattr(self, name, array("q", (values[place] for place in reversed(kept))))


STEP_MS = WINDOW_MS // STEPS


class Trend:
    """The trend of a lag in records, sampled every few seconds. For one thread at a time. Arrays, because
    there may be 100,000 partitions.
    """

    __slots__ = ("_highs", "_lows", "_step")

    def __init__(self) -> None:
        self._step = 0
        self._lows, self._highs = array("q"), array("q")

    def add(self, records: int, at_ms: int) -> None:
        """Add the lag at a time. A step without a sample, because no broker answered, starts a new window."""
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
        """Return True if the lag rises over the window, which has to be full."""
        return rises(self._lows, self._highs)
