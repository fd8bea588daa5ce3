"""Limits on the buffers of all clients together: bytes of unanswered requests, and bytes of unread
responses.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.net.lifecycle import SlowReader, SlowSender

# A client with at most this many bytes is neither counted nor held.
SMALL_BYTES = 16 * 1024
# After this many bytes at once, the gateway stops reading from the client for this turn of the event loop.
LARGE_READ_BYTES = 128 * 1024
# While the limit is exceeded, the largest clients are searched again after this many more bytes.
_STEP_BYTES = 1024 * 1024
# Above this multiple of the limit the gateway does not read from any counted client.
_ALL_HELD_ABOVE = 1.25


class CountedClient(Protocol):
    """A client whose bytes are counted."""

    @property
    def has_incomplete_frame(self) -> bool:
        """True if a part of the client's last frame has not arrived."""

    def hold(self, *, held: bool) -> None:
        """Stop reading from the client, or continue."""

    def end(self, why: Exception) -> None: ...


class ReceiveBufferLimit:
    """A limit on the unanswered bytes of all clients. Clients with at most SMALL_BYTES are not counted.

    Above `total_bytes` the gateway stops reading from the clients that have at least the mean, until enough
    is answered. From a quarter above the limit it stops reading from all counted clients. Clients from which
    it does not read are *held*. They cannot complete their frames, so if the limit is exceeded for
    `patience_s`, held clients with an incomplete frame are disconnected. Source: Kafka's
    `queued.max.request.bytes` and its `SimpleMemoryPool`, where one client can use up everything.
    """

    def __init__(self, total_bytes: int, patience_s: float) -> None:
        self._total_bytes = total_bytes
        self._patience_s = patience_s
        self._by_client: dict[CountedClient, int] = {}
        self._held: set[CountedClient] = set()
        self._search_above_bytes = total_bytes
        self._timer: asyncio.TimerHandle | None = None
        self.bytes = 0

    @property
    def held(self) -> int:
        """The number of held clients."""
        return len(self._held)

    def count(self, client: CountedClient, number: int) -> bool:
        """Account for the unanswered bytes of a client. Return False if they are too few to be counted."""
        if number <= SMALL_BYTES:
            self.forget(client)
            return False
        self.bytes += number - self._by_client.get(client, 0)
        self._by_client[client] = number
        if self.bytes > self._search_above_bytes:
            self._hold_largest()
        elif self.bytes <= self._total_bytes:
            self._resume_held()
        return True

    def forget(self, client: CountedClient) -> None:
        """Stop counting a client that is disconnected or has few unanswered bytes."""
        self.bytes -= self._by_client.pop(client, 0)
        if client in self._held:
            self._held.remove(client)
            client.hold(held=False)
        if self.bytes <= self._total_bytes:
            self._resume_held()

    def skip_turn(self, client: CountedClient) -> None:
        """Pause reading from a client for one turn of the event loop, so that others are served.

        libuv reads up to 32 times, or 8 MiB, before it turns to another connection. With 40 clients at full
        speed, other clients waited for 0.8 s.
        """
        if client not in self._held:
            client.hold(held=True)
            asyncio.get_running_loop().call_soon(self._end_skip, client)

    def _end_skip(self, client: CountedClient) -> None:
        if client not in self._held:
            client.hold(held=False)

    def _hold_largest(self) -> None:
        self._search_above_bytes = self.bytes + _STEP_BYTES
        is_high = self.bytes > _ALL_HELD_ABOVE * self._total_bytes
        least_bytes = 0 if is_high else self.bytes / len(self._by_client)
        for client in [client for client, number in self._by_client.items() if number >= least_bytes]:
            self._held.add(client)
            client.hold(held=True)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._disconnect_incomplete)

    def _resume_held(self) -> None:
        if self._timer is None:
            return  # no client is held
        self._search_above_bytes = self._total_bytes
        self._timer.cancel()
        self._timer = None
        held, self._held = self._held, set()
        for client in held:
            client.hold(held=False)

    def _disconnect_incomplete(self) -> None:
        """Disconnect the held clients with an incomplete frame. `forget` is called when they close."""
        self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._disconnect_incomplete)
        for client in [client for client in self._held if client.has_incomplete_frame]:
            sent = self._by_client[client]
            client.end(SlowSender(f"all clients had sent too much, and {sent} bytes of it are incomplete"))


Disconnect = Callable[[Exception], None]


class WriteBufferLimit:
    """A limit on the bytes of responses that clients have not read. Above `total_bytes` the client with the
    most unread bytes is disconnected.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._by_client: dict[Disconnect, int] = {}
        self.bytes = 0

    def add(self, disconnect: Disconnect, number: int) -> None:
        """Count bytes that are written to a client. `disconnect` ends its connection."""
        self._by_client[disconnect] = self._by_client.get(disconnect, 0) + number
        self.bytes += number
        while self.bytes > self._total_bytes:
            disconnect_largest = max(self._by_client, key=self._by_client.__getitem__)
            left = self.forget(disconnect_largest)
            disconnect_largest(SlowReader(f"it had not read {left} bytes, the most of all clients"))

    def remove(self, disconnect: Disconnect, number: int) -> None:
        """Subtract counted bytes that the client has read."""
        left = self._by_client.get(disconnect, 0)
        if left > number:
            self._by_client[disconnect] = left - number
            self.bytes -= number
        else:  # all are read, or the client was disconnected meanwhile
            self.forget(disconnect)

    def forget(self, disconnect: Disconnect) -> int:
        """Stop counting a disconnected client, and return its counted bytes."""
        left = self._by_client.pop(disconnect, 0)
        self.bytes -= left
        return left
