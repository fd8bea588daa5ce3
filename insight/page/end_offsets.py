"""The end offsets of partitions over time, by which a lag in records becomes a lag in time."""

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import TypeAlias

Partition: TypeAlias = tuple[str, int]

MAX_SAMPLES = 64
COARSENESS = 3
"""Samples of an age stand up to this part of it apart, so that a lag's time is a third too long at most."""
FORGET_MS = 300_000
"""A partition without an end for so long is forgotten. One whose leader changes has none for seconds."""


class EndOffsets:
    """Takes the end offsets of partitions every few seconds. For one thread at a time.

    A partition has at most MAX_SAMPLES samples. The old ones are further apart than the young ones.
    """

    def __init__(self) -> None:
        self._samples: dict[Partition, _Samples] = {}

    def add(self, ends: Mapping[Partition, int], at_ms: int) -> None:
        """Take the end offsets of all partitions of interest. The others are forgotten after a while."""
        for partition in self._samples.keys() - ends.keys():
            if at_ms - self._samples[partition].last_ms[-1] >= FORGET_MS:
                del self._samples[partition]
        for partition, end in ends.items():
            samples = self._samples.get(partition)
            if samples is None or end < samples.ends[-1]:  # new, or the topic was made anew
                samples = self._samples[partition] = _Samples()
            samples.add(end, at_ms)

    def end(self, partition: Partition) -> int | None:
        """The last known end offset, None if there is none."""
        samples = self._samples.get(partition)
        return None if samples is None else samples.ends[-1]

    def lag(self, partition: Partition, offset: int) -> int | None:
        """The number of records from `offset` to the end, None if the end is not known."""
        end = self.end(partition)
        return None if end is None else max(end - offset, 0)

    def reached_ms(self, partition: Partition, offset: int) -> int | None:
        """When `offset` was last the end of the partition, so that the record there is younger than that.

        None if the end was beyond `offset` at the first sample already, or nothing is known.
        """
        samples = self._samples.get(partition)
        place = 0 if samples is None else bisect_right(samples.ends, offset)
        return samples.last_ms[place - 1] if samples is not None and place else None

    def seen_ms(self, partition: Partition, offset: int) -> int | None:
        """When the record at `offset` was first known to be there, so that it is older than that.

        None if it is not known to be there.
        """
        samples = self._samples.get(partition)
        place = 0 if samples is None else bisect_right(samples.ends, offset)
        return samples.first_ms[place] if samples is not None and place < len(samples.ends) else None


class _Samples:
    """End offsets, ascending, and the first and the last time at which each was seen. Arrays, because there
    may be 100,000 partitions.
    """

    __slots__ = ("ends", "first_ms", "last_ms")

    def __init__(self) -> None:
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
        """Leave out each sample without which its neighbours are still close to each other for their age."""
        kept = [len(self.ends) - 1]
        for place in range(len(self.ends) - 2, 0, -1):
            younger_ms = self.first_ms[kept[-1]]
            if (younger_ms - self.last_ms[place - 1]) * COARSENESS > now_ms - younger_ms:
                kept.append(place)
        kept = [*kept, 0][:MAX_SAMPLES]
        for name in self.__slots__:
            values = getattr(self, name)
            setattr(self, name, array("q", (values[place] for place in reversed(kept))))
