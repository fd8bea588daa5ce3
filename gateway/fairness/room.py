"""A bound on what all connections together have under way. A connection that finds no room waits, and the
gateway reads nothing more of it. So the clients of an overloaded coordinator wait at their sockets.
"""

import asyncio

from gateway.fairness.queue import FairQueue, Turn
from gateway.limits import UNLIMITED


class Room:
    """Room for `requests` requests at one time, while they have fewer than `total_bytes` bytes: the last one
    may exceed these. Tenants that wait get room by turns. `async with` takes room for a request whose bytes
    do not count.
    """

    def __init__(self, requests: int, total_bytes: int = UNLIMITED) -> None:
        self._requests_left = requests
        self._bytes_left = total_bytes
        self._waiting: FairQueue[Turn] = FairQueue()

    @property
    def waiting(self) -> int:
        """The number of connections that wait for room."""
        return self._waiting.waiting

    def enter_at_once(self, request_bytes: int = 0) -> bool:
        """Take room for a request, unless there is none or a connection waits for it. Returns whether it is
        taken.
        """
        if self._waiting or not self._has_room:
            return False
        self._take(request_bytes)
        return True

    async def enter(self, request_bytes: int = 0) -> None:
        """Take room for a request when there is some."""
        if self.enter_at_once(request_bytes):
            return
        turn = Turn.of(request_bytes)
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just got the room
                self.leave(request_bytes)
            raise

    def leave(self, request_bytes: int = 0) -> None:
        """Give the room of a request back."""
        self._requests_left += 1
        self._bytes_left += request_bytes
        while self._has_room and self._waiting.first() is not None:
            turn = self._waiting.popleft()
            self._take(turn.request_bytes)
            turn.set_result(None)

    async def __aenter__(self) -> None:
        await self.enter()

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    @property
    def _has_room(self) -> bool:
        return self._requests_left > 0 and self._bytes_left > 0

    def _take(self, request_bytes: int) -> None:
        self._requests_left -= 1
        self._bytes_left -= request_bytes
