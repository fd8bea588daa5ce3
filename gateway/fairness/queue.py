"""A queue in which tenants take turns, so that a wait depends on how many tenants wait, and not on how much
one of them sends.

A tenant is a principal, or the address of anonymous clients. Its connections share its turns, in the order in
which they come. Whoever has many principals has many turns, but no more than in a queue without tenants.
"""

import asyncio
from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import Generic, Protocol, TypeVar

TENANT: ContextVar[str] = ContextVar("tenant", default="")
"""The tenant whose request the current task serves, empty for what the gateway does of itself."""


class Waiter(Protocol):
    """An item of a queue."""

    def done(self) -> bool:
        """Return True if it waits no more, because its client is gone."""
        ...


W = TypeVar("W", bound=Waiter)


class Turn(asyncio.Future[None]):
    """The turn of a request, which gets a result when it comes."""

    __slots__ = ("request_bytes",)
    request_bytes: int

    @classmethod
    def of(cls, request_bytes: int) -> "Turn":
        """Return the turn of a request of this size."""
        turn = cls(loop=asyncio.get_running_loop())
        turn.request_bytes = request_bytes
        return turn


class FairQueue(Generic[W]):
    """Waiters by tenant. Tenants take turns, in the order in which they began to wait."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[W]] = OrderedDict()

    def __bool__(self) -> bool:
        """Return False if nobody waits."""
        return bool(self._lines)

    @property
    def waiting(self) -> int:
        """The number of waiters that are not done."""
        return sum(not waiter.done() for line in self._lines.values() for waiter in line)

    def append(self, waiter: W) -> None:
        """Add a waiter of the current tenant."""
        self._lines.setdefault(TENANT.get(), deque()).append(waiter)

    def first(self) -> W | None:
        """Return the waiter whose turn is next, or None if nobody waits. One that is done does not cost its
        tenant the turn.
        """
        while self._lines:
            tenant, line = next(iter(self._lines.items()))
            while line and line[0].done():
                line.popleft()
            if line:
                return line[0]
            del self._lines[tenant]
        return None

    def popleft(self) -> W:
        """Remove the first waiter, and let another tenant be next."""
        tenant, line = self._lines.popitem(last=False)
        waiter = line.popleft()
        if line:
            self._lines[tenant] = line
        return waiter
