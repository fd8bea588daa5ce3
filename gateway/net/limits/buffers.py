"""Bounds on the bytes in memory of all clients together: received requests, and responses that are not
read.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.net.lifecycle import SlowReader, SlowSender

# A bound on what all clients together have sent and the gateway has not answered: whole requests, and
# frames of which a part is missing.


# A client that has sent no more than this is neither counted nor held.
SMALL_BYTES = 16 * 1024
# Of a client that has sent so much at once nothing more is read in this turn of the event loop.
MUCH_BYTES = 128 * 1024
# Where the bound is exceeded, the greatest clients are looked for again after so many bytes more.
_STEP_BYTES = 1024 * 1024
# So far above the bound nothing is read of any client that is counted.
_HIGH = 1.25


class CountedClient(Protocol):
    """A client whose requests are counted."""

    @property
    def lacks_a_part(self) -> bool:
        """Whether a part of its last frame is missing."""

    def hold(self, *, held: bool) -> None:
        """Read nothing of it, or go on."""

    def end(self, why: Exception) -> None: ...


class ReceiveBufferLimit:
    """The bytes that clients have sent and that are not answered. Clients with SMALL_BYTES are not counted.

    Where there are more than `total_bytes`, nothing is read of the clients that have the mean or more, until
    enough is answered; from a quarter above it, of no client that is counted. A held client cannot complete
    its frame. So where there are more for `patience_s`, those of the held clients whose frame lacks a part
    are disconnected.

    Source: Kafka's `queued.max.request.bytes` and its `SimpleMemoryPool`, where one client can take all.
    """

    def __init__(self, total_bytes: int, patience_s: float) -> None:
        self._total_bytes = total_bytes
        self._patience_s = patience_s
        self._by_client: dict[CountedClient, int] = {}
        self._held: set[CountedClient] = set()
        self._looks_at_bytes = total_bytes
        self._timer: asyncio.TimerHandle | None = None
        self.bytes = 0

    @property
    def held(self) -> int:
        """The number of clients of which nothing is read."""
        return len(self._held)

    def count(self, client: CountedClient, number: int) -> bool:
        """A client has sent so many bytes that are not answered. Returns whether they are counted."""
        if number <= SMALL_BYTES:
            self.forget(client)
            return False
        self.bytes += number - self._by_client.get(client, 0)
        self._by_client[client] = number
        if self.bytes > self._looks_at_bytes:
            self._hold_the_greatest()
        elif self.bytes <= self._total_bytes:
            self._let_go()
        return True

    def forget(self, client: CountedClient) -> None:
        """A client is gone, or has little under way."""
        self.bytes -= self._by_client.pop(client, 0)
        if client in self._held:
            self._held.remove(client)
            client.hold(held=False)
        if self.bytes <= self._total_bytes:
            self._let_go()

    def rest(self, client: CountedClient) -> None:
        """Let the others have their turn.

        libuv reads up to 32 times, so 8 MiB, before it turns to another connection. While 40 clients sent as
        much as they could, others waited for 0.8 s.
        """
        if client not in self._held:
            client.hold(held=True)
            asyncio.get_running_loop().call_soon(self._go_on, client)

    def _go_on(self, client: CountedClient) -> None:
        if client not in self._held:
            client.hold(held=False)

    def _hold_the_greatest(self) -> None:
        self._looks_at_bytes = self.bytes + _STEP_BYTES
        is_high = self.bytes > _HIGH * self._total_bytes
        least = 0 if is_high else self.bytes / len(self._by_client)
        for client in [client for client, number in self._by_client.items() if number >= least]:
            self._held.add(client)
            client.hold(held=True)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._end_the_incomplete)

    def _let_go(self) -> None:
        if self._timer is None:
            return  # none is held
        self._looks_at_bytes = self._total_bytes
        self._timer.cancel()
        self._timer = None
        held, self._held = self._held, set()
        for client in held:
            client.hold(held=False)

    def _end_the_incomplete(self) -> None:
        """Disconnect them. They are forgotten when their connections are closed."""
        self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._end_the_incomplete)
        for client in [client for client in self._held if client.lacks_a_part]:
            sent = self._by_client[client]
            client.end(SlowSender(f"all clients had sent too much, and it {sent} bytes without an end"))


End = Callable[[Exception], None]


class WriteBufferLimit:
    """The bytes of responses that clients have not read, at most `total_bytes`. Where there are more, the
    client with the most is disconnected.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._by_client: dict[End, int] = {}
        self.bytes = 0

    def add(self, end: End, number: int) -> None:
        """Count bytes that are for a client. `end` disconnects it."""
        self._by_client[end] = self._by_client.get(end, 0) + number
        self.bytes += number
        while self.bytes > self._total_bytes:
            most = max(self._by_client, key=self._by_client.__getitem__)
            left = self.forget(most)
            most(SlowReader(f"it had not read {left} bytes, the most of all clients"))

    def remove(self, end: End, number: int) -> None:
        """A client has read bytes that were counted."""
        left = self._by_client.get(end, 0)
        if left > number:
            self._by_client[end] = left - number
            self.bytes -= number
        else:  # all are read, or what was counted before it was disconnected
            self.forget(end)

    def forget(self, end: End) -> int:
        """A client is gone. Returns the bytes that were counted for it."""
        left = self._by_client.pop(end, 0)
        self.bytes -= left
        return left
