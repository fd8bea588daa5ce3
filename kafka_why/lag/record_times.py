"""Finds the lag in time by the timestamps of records, with ListOffsets only.

ListOffsets returns the first record whose timestamp is at least a given time. The search finds the greatest
time for which that record is not after the committed offset. Timestamps may be in any order: the time of an
offset is the greatest timestamp up to it.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from kafka_why.lag.definitions import Partition, lag_ms

Found: TypeAlias = tuple[int, int] | None
"""The offset and the timestamp in ms of a record, or None if there is no such record."""
Ask: TypeAlias = Callable[[Mapping[Partition, int]], Mapping[Partition, Found]]
"""A function that returns each partition's first record with at least the given timestamp in ms or, for
NEWEST, the record with the greatest timestamp.
"""

NEWEST = -3
"""Kafka's MAX_TIMESTAMP (KIP-734)."""
PRECISION_MS = 1_000
"""The maximum error of a lag in time, which may be too long by less than this."""
MAX_ROUNDS = 64
"""The maximum number of requests for one partition. The search ends long before, unless timestamps span
millennia.
"""


def timestamp_lags(ask: Ask, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the lags in ms of these committed offsets. A partition without records or without usable
    timestamps is omitted. Raises what `ask` raises.
    """
    search = TimestampSearch(offsets)
    while not search.step(ask):
        pass
    return search.lags_ms


class TimestampSearch:
    """A search for the times of several offsets, one request at a time."""

    def __init__(self, offsets: Mapping[Partition, int]) -> None:
        self._offsets = dict(offsets)
        self._newest: Mapping[Partition, Found] | None = None
        self._searches: dict[Partition, _Search] | None = None
        self._rounds = 0

    def step(self, ask: Ask) -> bool:
        """Call `ask` once, for all partitions. Return True if the search is over. Raises what `ask`
        raises.
        """
        if self._newest is None:
            self._newest = ask(dict.fromkeys(self._offsets, NEWEST))
            return False
        if self._searches is None:
            newest = self._newest
            first = ask({where: 0 for where, found in newest.items() if found is not None and found[1] >= 0})
            self._searches = {
                where: _Search(self._offsets[where], found, last)
                for where, found in first.items()
                if found is not None and (last := newest[where]) is not None
            }
        else:
            probes = {where: one.probe_ms(self._rounds) for where, one in self._open().items()}
            for where, found in ask(probes).items():
                self._searches[where].narrow(found)
            self._rounds += 1
        return not self._open() or self._rounds >= MAX_ROUNDS

    def _open(self) -> "dict[Partition, _Search]":
        return {where: one for where, one in (self._searches or {}).items() if not one.is_over}

    @property
    def lags_ms(self) -> dict[Partition, int]:
        """The lags that were found."""
        return {where: one.lag_ms for where, one in (self._searches or {}).items()}


class _Search:
    """The search for the time of one committed offset, which is at or after `_low` and before `_high`. Both
    are an offset and a time.
    """

    def __init__(self, offset: int, first: tuple[int, int], newest: tuple[int, int]) -> None:
        self._offset = offset
        self._newest_ms = newest[1]
        self._low, self._high = first, newest
        self._probed_ms = 0
        if newest[0] <= offset:  # all records at and after the committed offset have lower timestamps
            self._low = newest

    @property
    def is_over(self) -> bool:
        return self._low[0] >= self._offset or self._high[1] - self._low[1] <= PRECISION_MS

    @property
    def lag_ms(self) -> int:
        return lag_ms(self._low[1], self._newest_ms)

    def probe_ms(self, number: int) -> int:
        """Return the next time to request. It alternates between an interpolation, which assumes that records
        came evenly, and the middle, so that two rounds at least halve the interval.
        """
        (low, low_ms), (high, high_ms) = self._low, self._high
        between = (self._offset - low) / max(high - low, 1) if number % 2 == 0 else 0.5
        self._probed_ms = min(max(low_ms + int((high_ms - low_ms) * between), low_ms + 1), high_ms - 1)
        return self._probed_ms

    def narrow(self, found: Found) -> None:
        """Narrow the interval by the first record at or after the probed time."""
        if found is not None and found[0] <= self._offset:
            self._low = found
        else:
            self._high = (self._high[0] if found is None else found[0], self._probed_ms)
