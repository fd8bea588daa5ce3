"""A bound on what all connections together have under way. A connection that finds no room waits, and the
gateway reads nothing more of it. So the clients of an overloaded coordinator wait at their sockets.
"""

import asyncio
from collections import deque


class Room:
    """Room for `requests` requests at one time, while they have fewer than `total_bytes` bytes: the last one
    may exceed these. Connections that wait get room in the order in which they began to wait.
    """

    def __init__(self, requests: int, total_bytes: int) -> None:
        self._requests_left = requests
        self._bytes_left = total_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """The number of connections that wait for room."""
        return len(self._waiting)

    def enter_at_once(self, request_bytes: int) -> bool:
        """Take room for a request, unless there is none or a connection waits for it. Returns whether it is
        taken.
        """
        if self._waiting or not self._has_room:
            return False
        self._take(request_bytes)
        return True

    async def enter(self, request_bytes: int) -> None:
        """Take room for a request when there is some."""
        if self.enter_at_once(request_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((request_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just got the room
                self.leave(request_bytes)
            raise

    def leave(self, request_bytes: int) -> None:
        """Give the room of a request back."""
        self._requests_left += 1
        self._bytes_left += request_bytes
        while self._waiting and self._has_room:
            waiting_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self._take(waiting_bytes)
                turn.set_result(None)

    @property
    def _has_room(self) -> bool:
        return self._requests_left > 0 and self._bytes_left > 0

    def _take(self, request_bytes: int) -> None:
        self._requests_left -= 1
        self._bytes_left -= request_bytes
