"""Limits on the requests of all clients together: parked at the coordinator, large, or at brokers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from gateway.fairness import CapacityLimiter, FairQueue, Turn

# The limit on the bytes of all requests that the coordinator has parked, such as JoinGroups that wait for
# other members.
#
# A request that may be parked does not wait for capacity: it could hold the capacity that the requests which
# end its wait need. So if the parked requests have too many bytes together, the largest one is given up.


class ParkedMemoryLimit:
    """A limit of `total_bytes` on the parked requests of all connections."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._next_numbers = count()
        self._parked: dict[int, tuple[int, Callable[[], None]]] = {}
        """The size and `give_up` of each request, by its number."""
        self._largest_first: list[tuple[int, int]] = []
        """A heap of (-size, -number). Its first entry is the latest of the largest requests. Removed requests
        may still be in it.
        """
        self.bytes = 0
        """The bytes of all parked requests."""

    def add(self, request_bytes: int, give_up: Callable[[], None]) -> int:
        """Count a request until `remove` is called with the returned number.

        `shrink` calls `give_up` to end the request. Of several requests with the same size, the latest is
        given up first.
        """
        number = next(self._next_numbers)
        self._parked[number] = request_bytes, give_up
        heappush(self._largest_first, (-request_bytes, -number))
        self.bytes += request_bytes
        return number

    def remove(self, number: int) -> None:
        """Stop counting a request that is answered or given up."""
        request_bytes, _ = self._parked.pop(number)
        self.bytes -= request_bytes
        # Drop removed requests when they are more than half of the heap. A sorted list is a heap.
        if len(self._largest_first) > 2 * len(self._parked) + 1:
            parked_only = (entry for entry in self._largest_first if -entry[1] in self._parked)
            self._largest_first = sorted(parked_only)

    def shrink(self) -> None:
        """Give up the largest requests until the rest is within the limit. Their `give_up` calls `remove`."""
        while self.bytes > self._total_bytes:
            _, negative_number = heappop(self._largest_first)
            parked = self._parked.get(-negative_number)
            if parked is not None:  # it is not removed
                _, give_up = parked
                give_up()


# The limit on the bytes of large requests that all clients together send to the coordinator in a second.
#
# The log orders all requests, so a heartbeat is handled after every earlier request. Clients that send large
# requests at once could keep the coordinator busy for longer than others' sessions. `CapacityLimiter` does
# not prevent this, because a JoinGroup needs no capacity.


# Smaller requests are not limited. The speed at which the gateway decodes them bounds their number.
SMALL_BYTES = 16 * 1024


class LargeRequestRate:
    """A rate limit on large requests: `rate` bytes a second, after a burst of `burst` bytes.

    Waiting tenants take turns. A client that has gone loses its turn.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._available_bytes = burst
        self._refilled_at_s = -float("inf")
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
        """Acquire the bytes of a request. Return False if no bytes are available yet."""
        now_s = asyncio.get_running_loop().time()
        self._available_bytes = min(
            self._burst, self._available_bytes + self._rate * (now_s - self._refilled_at_s)
        )
        self._refilled_at_s = now_s
        if self._available_bytes <= 0:
            return False
        self._available_bytes -= request_bytes
        return True

    def _wake_later(self) -> None:
        """Set the timer for the next turn, if a request waits."""
        if self._timer is None and self._waiting:
            wait_s = max(0.0, -self._available_bytes / self._rate)
            # Slightly longer, so that at least one byte is available then.
            self._timer = asyncio.get_running_loop().call_later(wait_s + 0.001, self._wake)

    def _wake(self) -> None:
        """Let the waiting requests pass for which bytes are available."""
        self._timer = None
        while (turn := self._waiting.first()) is not None and self._try_acquire(turn.request_bytes):
            self._waiting.popleft()
            turn.set_result(None)
        self._wake_later()


# The limits on the requests of clients at brokers.
#
# A broker handles the requests of one connection one after the other. Those behind the first only wait there,
# so they get at most half of the capacity. The other half is left for connections' first requests, even if
# clients send many at once or a broker is slow.


class ForwardingLimiter:
    """The limiters of all connections' requests at brokers: `all` for each request, and in addition `behind`
    for a request behind others of its connection.
    """

    def __init__(self, requests: int) -> None:
        self.all = CapacityLimiter(requests)
        self.behind = CapacityLimiter(requests // 2)


@dataclass(slots=True, eq=False)
class ForwardedRequests:
    """The requests of one connection at its broker."""

    _forwarding: ForwardingLimiter
    _behind: int = 0  # the number of requests that hold capacity of `ForwardingLimiter.behind`
    requests: int = 0  # the number of unanswered requests

    async def acquire(self, wait_for_earlier: Callable[[], Awaitable[None]]) -> None:
        """Acquire capacity for the next request.

        While other requests of the connection are unanswered, this one also needs capacity of `behind`. If
        there is none, await `wait_for_earlier`, which returns when the others are answered.
        """
        if self.requests:
            if self._forwarding.behind.try_acquire():
                self._behind += 1
            else:
                await wait_for_earlier()
        await self._forwarding.all.acquire()
        self.requests += 1

    def release(self) -> None:
        """Release the capacity of the first request. The next one becomes the first, so it gives up its
        capacity of `behind`.
        """
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
