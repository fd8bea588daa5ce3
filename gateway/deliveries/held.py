"""The offsets that a member has acquired, as ranges. No IO and no clock here."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple


class Room:
    """A limiter with a fixed number of places."""

    __slots__ = ("free",)

    def __init__(self, places: int) -> None:
        self.free = places

    def take(self) -> bool:
        """Take a place. Returns whether there was one."""
        if self.free <= 0:
            return False
        self.free -= 1
        return True

    def give(self, places: int = 1) -> None:
        """Give places back."""
        self.free += places


Place = tuple[bytes, int]
"""A partition: the id of its topic, and its number."""


class Range(NamedTuple):
    """Offsets of a partition, both included, that a member got together. Their lock ends at `until_ms`."""

    first: int
    last: int
    delivery_count: int
    acquired_ms: int
    until_ms: int

    @property
    def offsets(self) -> int:
        """How many there are."""
        return self.last - self.first + 1


class Held:
    """Ranges by partition, which do not overlap. At most `ranges_max`, and no more than there is `room`."""

    __slots__ = ("_by_place", "_free", "_room", "_until_ms")

    def __init__(self, room: Room, ranges_max: int) -> None:
        self._by_place: dict[Place, list[Range]] = {}
        self._room = room
        self._free = ranges_max
        self._until_ms: int | None = None
        """No lock ends before, None if this has to be found out."""

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def add(self, place: Place, one: Range) -> bool:
        """Add a range that overlaps none. Returns False if there is no room for it."""
        if self._free <= 0 or not self._room.take():
            return False
        self._free -= 1
        ranges = self._by_place.setdefault(place, [])
        if not ranges or ranges[-1].first < one.first:
            ranges.append(one)
        else:
            ranges.insert(bisect_left(ranges, one), one)
        if self._until_ms is not None:
            self._until_ms = min(self._until_ms, one.until_ms)
        return True

    def take(self, place: Place, first: int, last: int) -> list[Range]:
        """Take out what there is of these offsets. What is left of a range of which the middle is taken takes
        a place more, also if there is no room.
        """
        ranges = self._by_place.get(place)
        if ranges is None:
            return []
        begin = bisect_left(ranges, (first,))
        if begin and ranges[begin - 1].last >= first:
            begin -= 1
        end = bisect_left(ranges, (last + 1,), begin)
        if begin == end:
            return []
        taken, left = ranges[begin:end], []
        if taken[0].first < first:
            left.append(taken[0]._replace(last=first - 1))
            taken[0] = taken[0]._replace(first=first)
        if taken[-1].last > last:
            left.append(taken[-1]._replace(first=last + 1))
            taken[-1] = taken[-1]._replace(last=last)
        ranges[begin:end] = left
        self._gave(end - begin - len(left))
        if not ranges:
            del self._by_place[place]
        return taken

    def take_expired(self, now_ms: int) -> list[tuple[Place, Range]]:
        """Take out the ranges of which the lock has ended."""
        if self._until_ms is not None and self._until_ms > now_ms:
            return []
        found = [(place, one) for place, one in self if one.until_ms <= now_ms]
        for place, one in found:
            self.take(place, one.first, one.last)
        self._until_ms = min((one.until_ms for _, one in self), default=None)
        return found

    def take_all(self) -> list[tuple[Place, Range]]:
        """Take out everything."""
        found = list(self)
        self._gave(len(found))
        self._by_place.clear()
        return found

    def __iter__(self) -> Iterator[tuple[Place, Range]]:
        return ((place, one) for place, ranges in self._by_place.items() for one in ranges)

    def _gave(self, places: int) -> None:
        self._free += places
        self._room.give(places)
