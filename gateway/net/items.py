"""The items of requests about several groups. They cost what as many requests would: `gateway.apis.batch`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.apis.context import RequestContext
from gateway.fairness.room import Room
from gateway.metrics.counts import Counts
from gateway.net.meter import Meter

# An item has no bytes of its own: those of its request are counted once.
_NO_BYTES = 0


class Items:
    """The items of one connection's requests: see `gateway.apis.context.FanOut`. `items` have a place now."""

    __slots__ = ("_counts", "_meter", "_room", "items")

    def __init__(self, room: Room, meter: Meter, counts: Counts) -> None:
        self._room = room
        self._meter = meter
        self._counts = counts
        self.items = 0

    def count(self, context: RequestContext, items: int) -> None:
        """See `FanOut`."""
        self._counts.items[context.header.api_key] += items

    async def pay(self, context: RequestContext) -> None:
        """See `FanOut`."""
        await self._meter.pay(context.principal, context.header.client_id, context.header.api_key)

    def take_one_more(self) -> bool:
        """See `FanOut`."""
        if not self._room.enter_at_once(_NO_BYTES):
            return False
        self.items += 1
        return True

    def leave(self) -> None:
        """See `FanOut`."""
        self.items -= 1
        self._room.leave(_NO_BYTES)

    @asynccontextmanager
    async def place(self, context: RequestContext) -> AsyncIterator[None]:
        """See `FanOut`."""
        await self.pay(context)
        await self._room.enter(_NO_BYTES)
        self.items += 1
        try:
            yield
        finally:
            self.leave()
