"""Limits on the requests of all clients together: parked at the coordinator, large, or at brokers."""

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count

from gateway.fairness import CapacityLimiter, FairQueue, Turn

# The limit on the bytes of all requests that the coordinator has parked.
#
# A parked request cannot wait for capacity, because the requests that end its wait may need it. So the
# largest parked request is given up when their total is too large. It is never smaller than the mean.


class ParkedMemoryLimit:
    """A limit of `total_bytes` on the parked requests of all connections."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._numbers = count()
        self._by_number: dict[int, tuple[int, Callable[[], None]]] = {}
        self._largest_first: list[tuple[int, int]] = []
        """A heap of negative sizes and numbers. Removed requests may still be in it."""
        self.bytes = 0

    def add(self, request_bytes: int, give_up: Callable[[], None]) -> int:
        """Count a request until `remove` is called with the returned number.

        `shrink` calls `give_up` to end the request. Of several requests with the same size, the latest is
        given up first.
        """
        number = next(self._numbers)
        self._by_number[number] = request_bytes, give_up
        heappush(self._largest_first, (-request_bytes, -number))
        self.bytes += request_bytes
        return number

    def remove(self, number: int) -> None:
        """Stop counting a request that is answered or given up."""
        request_bytes, _ = self._by_number.pop(number)
        self.bytes -= request_bytes
        if len(self._largest_first) > 2 * len(self._by_number) + 1:
            self._largest_first = [one for one in self._largest_first if -one[1] in self._by_number]
            self._largest_first.sort()

    def shrink(self) -> None:
        """Give up the largest requests until the rest is within the limit. Their `give_up` calls `remove`."""
        while self.bytes > self._total_bytes:
            _, negative = heappop(self._largest_first)
            if -negative in self._by_number:
                self._by_number[-negative][1]()


# The limit on the bytes of large requests that all clients together send to the coordinator in a second.
#
# The log orders all requests, so a heartbeat is handled after every earlier request. Clients that send large
# requests at once could keep the coordinator busy for longer than others' sessions, and after a JoinGroup
# they need not even wait for the answer.


# Smaller requests are not limited. The speed at which the gateway decodes them bounds their number.
SMALL_BYTES = 16 * 1024


class LargeRequestRate:
    """A rate limit on large requests: `rate` bytes a second, after a burst of `burst` bytes.

    Waiting tenants take turns. A client that has gone loses its turn.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at_s = -float("inf")
        self._waiting: FairQueue[Turn] = FairQueue()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return self._waiting.waiting

    async def acquire(self, request_bytes: int) -> None:
        """Wait until the request may pass. The last request of a burst may exceed the burst."""
        if request_bytes <= SMALL_BYTES or (not self._waiting and self._try_acquire(request_bytes)):
            return
        turn = Turn.of(request_bytes)
        self._waiting.append(turn)
        self._wake_later()
        await turn

    def _try_acquire(self, request_bytes: int) -> bool:
        now_s = asyncio.get_running_loop().time()
        self._left = min(self._burst, self._left + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        if self._left <= 0:
            return False
        self._left -= request_bytes
        return True

    def _wake_later(self) -> None:
        if self._timer is None and self._waiting:
            wait_s = max(0.0, -self._left / self._rate)
            # Slightly longer, so that at least one byte is available then.
            self._timer = asyncio.get_running_loop().call_later(wait_s + 0.001, self._wake)

    def _wake(self) -> None:
        self._timer = None
        while (turn := self._waiting.first()) is not None and self._try_acquire(turn.request_bytes):
            self._waiting.popleft()
            turn.set_result(None)
        self._wake_later()


# The limits on the requests of clients at brokers.
#
# A broker handles the requests of one connection one after the other, so those behind the first wait there.
# They get at most half of the capacity. The other half is for connections' first requests, even if clients
# send many at once or a broker is slow.


class ForwardingLimiter:
    """The limiters of requests at brokers, for all connections. A request behind others of its connection
    also needs capacity of `behind`.
    """

    def __init__(self, requests: int) -> None:
        self.all = CapacityLimiter(requests)
        self.behind = CapacityLimiter(requests // 2)


class ForwardedRequests:
    """The requests of one connection at its broker."""

    __slots__ = ("_behind", "_forwarding", "requests")

    def __init__(self, forwarding: ForwardingLimiter) -> None:
        self._forwarding = forwarding
        self._behind = 0
        self.requests = 0

    async def acquire(self, answered: Callable[[], Awaitable[None]]) -> None:
        """Acquire capacity for the next request. If there is none behind earlier requests, call `answered`,
        which waits until these are answered.
        """
        if self.requests:
            if self._forwarding.behind.try_acquire():
                self._behind += 1
            else:
                await answered()
        await self._forwarding.all.acquire()
        self.requests += 1

    def release(self) -> None:
        """Release the capacity of the first request. The next one is then the first."""
        self.requests -= 1
        self._forwarding.all.release()
        self._release_behind()

    def close(self) -> None:
        """Release the capacity of all requests."""
        while self.requests:
            self.release()
        while self._behind:
            self._release_behind()

    def _release_behind(self) -> None:
        if self._behind:
            self._behind -= 1
            self._forwarding.behind.release()
