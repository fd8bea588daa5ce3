"""The lag in time by the timestamps of records, found by ListOffsets alone.

ListOffsets returns the first record whose timestamp is at least a given one. The search is for the greatest
time at which this record is not behind the committed offset. Timestamps may be in any order: the time of an
offset is the greatest timestamp up to it.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from insight.lag.definitions import lag_ms
from insight.lag.log import Partition

Found: TypeAlias = tuple[int, int] | None
"""The offset and the timestamp in ms of a record, None if there is no such record."""
Ask: TypeAlias = Callable[[Mapping[Partition, int]], Mapping[Partition, Found]]
"""Looks for the first record of each partition with this timestamp in ms or a greater one; for NEWEST, the
record with the greatest.
"""

NEWEST = -3
"""Kafka's MAX_TIMESTAMP (KIP-734)."""
PRECISION_MS = 1_000
"""A lag in time is too long by less than this."""
MAX_ROUNDS = 64
"""Requests for one partition. The search ends long before, unless timestamps span millennia."""


def timestamp_lags(ask: Ask, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the lags in ms of these committed offsets. A partition without usable timestamps is omitted, as
    is one without records. Whatever `ask` raises goes through.
    """
    newest = ask(dict.fromkeys(offsets, NEWEST))
    first = ask({where: 0 for where, found in newest.items() if found is not None and found[1] >= 0})
    searches = {
        where: _Search(offsets[where], found, last)
        for where, found in first.items()
        if found is not None and (last := newest[where]) is not None
    }
    for number in range(MAX_ROUNDS):
        open_ones = {where: search for where, search in searches.items() if not search.is_over}
        if not open_ones:
            break
        found_now = ask({where: search.probe_ms(number) for where, search in open_ones.items()})
        for where, found in found_now.items():
            open_ones[where].narrow(found)
    return {where: search.lag_ms for where, search in searches.items()}


class _Search:
    """The time of one committed offset is from `_low` on and before `_high`, each an offset and a time."""

    def __init__(self, offset: int, first: tuple[int, int], newest: tuple[int, int]) -> None:
        self._offset = offset
        self._newest_ms = newest[1]
        self._low, self._high = first, newest
        self._probed_ms = 0
        if newest[0] <= offset:  # each record behind it is older
            self._low = newest

    @property
    def is_over(self) -> bool:
        return self._low[0] >= self._offset or self._high[1] - self._low[1] <= PRECISION_MS

    @property
    def lag_ms(self) -> int:
        return lag_ms(self._low[1], self._newest_ms)

    def probe_ms(self, number: int) -> int:
        """Return the next time to ask for: by turns where it should be if the records came evenly, and the
        middle, so that each two rounds halve what is left.
        """
        (low, low_ms), (high, high_ms) = self._low, self._high
        between = (self._offset - low) / max(high - low, 1) if number % 2 == 0 else 0.5
        self._probed_ms = min(max(low_ms + int((high_ms - low_ms) * between), low_ms + 1), high_ms - 1)
        return self._probed_ms

    def narrow(self, found: Found) -> None:
        """Take the first record at the time of the probe."""
        if found is not None and found[0] <= self._offset:
            self._low = found
        else:
            self._high = (self._high[0] if found is None else found[0], self._probed_ms)
