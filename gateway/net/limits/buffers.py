"""Limits on the buffers of all clients together: bytes of unanswered requests, and bytes of unread
responses.
"""

import asyncio
from collections.abc import Callable

from gateway.net.lifecycle import ServedClient, SlowReader, SlowSender

# A client with at most this many unanswered bytes is neither counted nor held.
SMALL_BYTES = 16 * 1024
# After reading this many bytes at once, the gateway stops reading from the client for this turn of the event
# loop.
LARGE_READ_BYTES = 128 * 1024
# While the limit is exceeded, the largest clients are searched again after this many more bytes.
_SEARCH_STEP_BYTES = 1024 * 1024
# Above this multiple of the limit the gateway does not read from any counted client.
_ALL_HELD_ABOVE = 1.25


class ReceiveBufferLimit:
    """A limit on the unanswered bytes of all clients. Clients with at most SMALL_BYTES are not counted.

    Above `total_bytes` the gateway stops reading from the clients whose bytes are at least the mean of all
    counted clients, until enough is answered. From a quarter above the limit it stops reading from all
    counted clients. Clients from which it does not read are *held*. They cannot complete their frames, so if
    the limit is exceeded for `patience_s`, held clients with an incomplete frame are disconnected. Source:
    Kafka's `queued.max.request.bytes` and `SimpleMemoryPool`. In Kafka one client can use up the whole pool.
    """

    def __init__(self, total_bytes: int, patience_s: float) -> None:
        self._total_bytes = total_bytes
        self._patience_s = patience_s
        self._unanswered_bytes: dict[ServedClient, int] = {}
        self._held: set[ServedClient] = set()
        # Above this the largest clients are held. It is the limit, or more after a search (`_hold_largest`).
        self._search_above_bytes = total_bytes
        self._timer: asyncio.TimerHandle | None = None  # set while clients are held
        self.bytes = 0
        """The unanswered bytes of all counted clients."""

    @property
    def held(self) -> int:
        """The number of held clients."""
        return len(self._held)

    def count(self, client: ServedClient, number: int) -> bool:
        """Account for the unanswered bytes of a client. Return False if they are too few to be counted."""
        if number <= SMALL_BYTES:
            self.forget(client)
            return False
        self.bytes += number - self._unanswered_bytes.get(client, 0)
        self._unanswered_bytes[client] = number
        if self.bytes > self._search_above_bytes:
            self._hold_largest()
        elif self.bytes <= self._total_bytes:
            self._resume_held()
        return True

    def forget(self, client: ServedClient) -> None:
        """Stop counting a client that is disconnected or has few unanswered bytes."""
        self.bytes -= self._unanswered_bytes.pop(client, 0)
        if client in self._held:
            self._held.remove(client)
            client.set_held(held=False)
        if self.bytes <= self._total_bytes:
            self._resume_held()

    def pause_one_turn(self, client: ServedClient) -> None:
        """Pause reading from a client for one turn of the event loop, so that others are served.

        libuv reads up to 32 times, or 8 MiB, before it turns to another connection. With 40 clients at full
        speed, other clients waited for 0.8 s.
        """
        if client not in self._held:
            client.set_held(held=True)
            asyncio.get_running_loop().call_soon(self._end_pause, client)

    def _end_pause(self, client: ServedClient) -> None:
        if client not in self._held:
            client.set_held(held=False)

    def _hold_largest(self) -> None:
        """Hold the clients with the most bytes. The next search is after `_SEARCH_STEP_BYTES` more, because
        each search goes through all clients.
        """
        self._search_above_bytes = self.bytes + _SEARCH_STEP_BYTES
        holds_all = self.bytes > _ALL_HELD_ABOVE * self._total_bytes
        min_bytes = 0 if holds_all else self.bytes / len(self._unanswered_bytes)
        for client in [client for client, number in self._unanswered_bytes.items() if number >= min_bytes]:
            self._held.add(client)
            client.set_held(held=True)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._disconnect_incomplete)

    def _resume_held(self) -> None:
        """Read from the held clients again. The next search is as soon as the limit is exceeded again."""
        if self._timer is None:
            return  # no client is held
        self._search_above_bytes = self._total_bytes
        self._timer.cancel()
        self._timer = None
        held, self._held = self._held, set()
        for client in held:
            client.set_held(held=False)

    def _disconnect_incomplete(self) -> None:
        """Disconnect the held clients with an incomplete frame. `forget` is called when they close."""
        self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._disconnect_incomplete)
        for client in [client for client in self._held if client.has_incomplete_frame]:
            sent = self._unanswered_bytes[client]
            client.end(SlowSender(f"all clients had sent too much, and {sent} bytes of it are incomplete"))


Disconnect = Callable[[Exception], None]


class WriteBufferLimit:
    """A limit on the bytes of responses that clients have not read. Above `total_bytes` the client with the
    most unread bytes is disconnected. The key of a client is the function that disconnects it.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._unread_bytes: dict[Disconnect, int] = {}
        self.bytes = 0

    def add(self, disconnect: Disconnect, number: int) -> None:
        """Count bytes that are written to a client, which `disconnect` identifies."""
        self._unread_bytes[disconnect] = self._unread_bytes.get(disconnect, 0) + number
        self.bytes += number
        while self.bytes > self._total_bytes:
            disconnect_largest = max(self._unread_bytes, key=self._unread_bytes.__getitem__)
            unread = self.forget(disconnect_largest)
            disconnect_largest(SlowReader(f"it had not read {unread} bytes, the most of all clients"))

    def remove(self, disconnect: Disconnect, number: int) -> None:
        """Subtract counted bytes that the client has read."""
        unread = self._unread_bytes.get(disconnect, 0)
        if unread > number:
            self._unread_bytes[disconnect] = unread - number
            self.bytes -= number
        else:  # all are read, or the client was disconnected meanwhile
            self.forget(disconnect)

    def forget(self, disconnect: Disconnect) -> int:
        """Stop counting a disconnected client, and return its counted bytes."""
        unread = self._unread_bytes.pop(disconnect, 0)
        self.bytes -= unread
        return unread
