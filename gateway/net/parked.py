"""A bound on the bytes of all requests that the coordinator has parked.

Such a request cannot wait for room, because the requests that end its wait may need the room. So the largest
is given up where all together are too large. A member whose request is no larger than the mean at the bound
is not given up, whatever others send.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Parked:
    """The parked requests of all connections, at most `total_bytes` bytes."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._numbers = count()
        self._by_number: dict[int, tuple[int, Callable[[], None]]] = {}
        self._largest_first: list[tuple[int, int]] = []
        """Negative sizes and numbers. A request that has left may still be in it."""
        self.bytes = 0

    def enter(self, request_bytes: int, give_up: Callable[[], None]) -> int:
        """Count a request until `leave` gets the number that this returns. `give_up` ends a request, and is
        called after that, perhaps for this one. Of several of one size the latest is given up first.
        """
        number = next(self._numbers)
        self._by_number[number] = request_bytes, give_up
        heappush(self._largest_first, (-request_bytes, -number))
        self.bytes += request_bytes
        return number

    def leave(self, number: int) -> None:
        """A request is answered or given up."""
        request_bytes, _ = self._by_number.pop(number)
        self.bytes -= request_bytes
        if len(self._largest_first) > 2 * len(self._by_number) + 1:
            self._largest_first = [one for one in self._largest_first if -one[1] in self._by_number]
            self._largest_first.sort()

    def shrink(self) -> None:
        """Give requests up until the others are within the bound. `give_up` calls `leave`."""
        while self.bytes > self._total_bytes:
            _, negative = heappop(self._largest_first)
            if -negative in self._by_number:
                self._by_number[-negative][1]()
