"""Bounds on the requests of clients at brokers.

A broker handles the requests of one connection one after the other, and those behind the first wait there. So
they have at most half of the places. The other half is for the first requests of connections, however many
requests a client sends at once, and however long its broker takes for them.
"""

from collections.abc import Awaitable, Callable

from gateway.fairness.room import Room


class Forwarding:
    """The places of all connections. A request behind others of its connection takes one of `behind`."""

    def __init__(self, places: int) -> None:
        self.places = Room(places)
        self.behind = Room(places // 2)


class Forwarded:
    """The requests of one connection at its broker."""

    __slots__ = ("_behind", "_forwarding", "requests")

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self._behind = 0
        self.requests = 0

    async def enter(self, answered: Callable[[], Awaitable[None]]) -> None:
        """Take a place for the next request, and wait until the earlier ones are `answered` if it may not be
        behind them.
        """
        if self.requests:
            if self._forwarding.behind.enter_at_once():
                self._behind += 1
            else:
                await answered()
        await self._forwarding.places.enter()
        self.requests += 1

    def leave(self) -> None:
        """Give the place of the first request back. The one behind it is the first then."""
        self.requests -= 1
        self._forwarding.places.leave()
        self._give_behind_back()

    def close(self) -> None:
        """Give all places back."""
        while self.requests:
            self.leave()
        while self._behind:
            self._give_behind_back()

    def _give_behind_back(self) -> None:
        if self._behind:
            self._behind -= 1
            self._forwarding.behind.leave()
