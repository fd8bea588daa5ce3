"""The end offsets of partitions over time, by which a lag in records becomes a lag in time."""

from collections.abc import Mapping
from typing import TypeAlias

Partition: TypeAlias = tuple[str, int]

MAX_SAMPLES = 256


class EndOffsets:
    """Takes the end offsets of partitions every few seconds. For one thread at a time.

    A partition has at most MAX_SAMPLES samples: where there are more, every second one of the older half goes.
    """

    def __init__(self) -> None:
        # Per partition: an end offset, and when it was last seen as the end, both ascending.
        self._samples: dict[Partition, list[tuple[int, int]]] = {}

    def take(self, ends: Mapping[Partition, int], at_ms: int) -> None:
        """Take the end offsets of all partitions of interest. The others are forgotten."""
        for gone in self._samples.keys() - ends.keys():
            del self._samples[gone]
        for partition, end in ends.items():
            samples = self._samples.setdefault(partition, [])
            if samples and end <= samples[-1][0]:
                if end < samples[-1][0]:  # the topic was made anew
                    samples.clear()
                else:
                    samples.pop()
            samples.append((end, at_ms))
            if len(samples) > MAX_SAMPLES:
                half = MAX_SAMPLES // 2
                samples[:half] = samples[:half:2]

    def end(self, partition: Partition) -> int | None:
        """The last known end offset, None if there is none."""
        samples = self._samples.get(partition)
        return samples[-1][0] if samples else None

    def lag(self, partition: Partition, offset: int) -> int | None:
        """The number of records from `offset` to the end, None if the end is not known."""
        end = self.end(partition)
        return None if end is None else max(end - offset, 0)

    def reached_ms(self, partition: Partition, offset: int) -> int | None:
        """When `offset` was last the end of the partition, so that the record there is younger than that.

        None if the end was beyond `offset` at the first sample already, or nothing is known.
        """
        found = None
        for end, at_ms in self._samples.get(partition, ()):
            if end > offset:
                break
            found = at_ms
        return found
