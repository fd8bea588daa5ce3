"""A bound on the bytes of large requests that all clients together send to the coordinator in a second.

The log has one order for all, so a heartbeat is handled behind every request that was written before it.
Clients that send large requests at once would keep the coordinator busy for longer than the sessions of
others last, and with a JoinGroup they need not even wait for the answer.
"""

import asyncio

from gateway.fairness.queue import FairQueue, Turn

# Smaller requests pass at once. Their number is bounded by what the gateway can decode.
SMALL_BYTES = 16 * 1024


class Flow:
    """Lets `rate` bytes a second pass, after `burst` bytes at once. Tenants that wait take turns. A client
    that is gone loses its turn.
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

    async def enter(self, request_bytes: int) -> None:
        """Wait until the request may pass. The last one of a burst may exceed it."""
        if request_bytes <= SMALL_BYTES or (not self._waiting and self._has_taken(request_bytes)):
            return
        turn = Turn.of(request_bytes)
        self._waiting.append(turn)
        self._wake_later()
        await turn

    def _has_taken(self, request_bytes: int) -> bool:
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
            # A little more, so that there is a byte then.
            self._timer = asyncio.get_running_loop().call_later(wait_s + 0.001, self._wake)

    def _wake(self) -> None:
        self._timer = None
        while (turn := self._waiting.first()) is not None and self._has_taken(turn.request_bytes):
            self._waiting.popleft()
            turn.set_result(None)
        self._wake_later()
