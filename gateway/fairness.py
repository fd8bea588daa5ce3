"""Fairness among tenants: a queue in which they take turns, a capacity limiter, and a worker thread."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar

from gateway.limits import UNLIMITED

# In a fair queue a tenant's waiting time depends on the number of waiting tenants, not on how many requests
# one of them sends. A tenant is a principal, or the IP address of anonymous clients. All connections of a
# tenant share its turns. A client with several principals has several turns, as in a queue without tenants.

TENANT: ContextVar[str] = ContextVar("tenant", default="")
"""The tenant whose request the current task serves, empty for work of the gateway itself."""


W = TypeVar("W", bound=Future[Any] | asyncio.Future[Any])
"""An item of a `FairQueue`. It is done if it no longer waits, because its client has gone."""


class Turn(asyncio.Future[None]):
    """The turn of a waiting request: a future that is done when the request may proceed."""

    __slots__ = ("request_bytes",)
    request_bytes: int

    @classmethod
    def of(cls, request_bytes: int) -> "Turn":
        """Return a turn for a request of `request_bytes` bytes."""
        turn = cls(loop=asyncio.get_running_loop())
        turn.request_bytes = request_bytes
        return turn


class FairQueue(Generic[W]):
    """A queue of waiters by tenant. Tenants take turns, in the order in which they began to wait."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[W]] = OrderedDict()

    def __bool__(self) -> bool:
        """Return False if the queue is empty."""
        return bool(self._queues)

    @property
    def waiting(self) -> int:
        """The number of waiters that are not done."""
        return sum(not waiter.done() for queue in self._queues.values() for waiter in queue)

    def append(self, waiter: W) -> None:
        """Add a waiter for the current tenant."""
        self._queues.setdefault(TENANT.get(), deque()).append(waiter)

    def first(self) -> W | None:
        """Return the next waiter, or None if nobody waits. Waiters that are done are dropped, and do not use
        up their tenant's turn.
        """
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            while queue and queue[0].done():
                queue.popleft()
            if queue:
                return queue[0]
            del self._queues[tenant]
        return None

    def popleft(self) -> W:
        """Remove the waiter that `first` has returned, and move its tenant to the end of the queue."""
        tenant, queue = self._queues.popitem(last=False)
        waiter = queue.popleft()
        if queue:
            self._queues[tenant] = queue
        return waiter


class CapacityLimiter:
    """A limiter of concurrent requests. Waiting tenants take turns.

    It admits a request while fewer than `requests` requests hold capacity, with fewer than `total_bytes`
    bytes together. `async with` acquires capacity for a request of 0 bytes.
    """

    def __init__(self, requests: int, total_bytes: int = UNLIMITED) -> None:
        self._requests_left = requests
        self._bytes_left = total_bytes
        self._waiting: FairQueue[Turn] = FairQueue()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for capacity."""
        return self._waiting.waiting

    def try_acquire(self, request_bytes: int = 0) -> bool:
        """Acquire capacity without waiting. Return False if there is none, or if other requests wait for
        it.
        """
        if self._waiting or not self._has_capacity:
            return False
        self._take(request_bytes)
        return True

    async def acquire(self, request_bytes: int = 0) -> None:
        """Acquire capacity for a request, waiting if necessary."""
        if self.try_acquire(request_bytes):
            return
        turn = Turn.of(request_bytes)
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # `release` had given it the capacity before the task was cancelled
                self.release(request_bytes)
            raise

    def release(self, request_bytes: int = 0) -> None:
        """Release the capacity of a request, and give it to waiting requests."""
        self._requests_left += 1
        self._bytes_left += request_bytes
        while self._has_capacity and self._waiting.first() is not None:
            turn = self._waiting.popleft()
            self._take(turn.request_bytes)
            turn.set_result(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    @property
    def _has_capacity(self) -> bool:
        return self._requests_left > 0 and self._bytes_left > 0

    def _take(self, request_bytes: int) -> None:
        """Subtract a request from the capacity. The bytes left may become negative."""
        self._requests_left -= 1
        self._bytes_left -= request_bytes


P = ParamSpec("P")
R = TypeVar("R")


class _Call(Future[Any]):
    """The future of a call of `work` in the thread."""

    work: Callable[[], Any]


class FairThread:
    """A worker thread in which tenants take turns."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._waiting: FairQueue[_Call] = FairQueue()
        self._lock = Lock()

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Call `work` in the thread, and return the future of its result.

        If the future is cancelled before the call starts, there is no call.
        """
        call = _Call()
        call.work = partial(work, *args, **kwargs)
        with self._lock:
            self._waiting.append(call)
        self._executor.submit(self._run_next)
        return asyncio.wrap_future(call)

    def _run_next(self) -> None:
        """Run the call whose turn it is. `run` may have submitted this method for another call."""
        with self._lock:
            if self._waiting.first() is None:
                return  # the call was cancelled
            call = self._waiting.popleft()
        if not call.set_running_or_notify_cancel():  # cancelled just now
            return
        try:
            call.set_result(call.work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the result gets it
            call.set_exception(error)
        finally:
            del call.work, call  # an error's traceback keeps this frame, and would keep these in memory
