"""The bytes of one client's connection. Requests are read whole, a bounded number at a time, and responses
are written.

No task waits for bytes: a request costs one wake-up of the task that serves it.
"""

import asyncio
from asyncio import BaseTransport, Future, TimerHandle, Transport
from collections import deque
from collections.abc import Callable
from typing import cast

from gateway.wire.framing import FrameBuffer, ProtocolError, framed
from gateway.wire.limits import Limits


class ClientGone(ConnectionError):
    """The client closed the connection, or was idle for too long. Not worth a report."""


class SlowReader(ConnectionError):
    """The client does not read its responses."""


class ClientStream(asyncio.Protocol):
    """One client's bytes, both ways. `made` is called with the stream when the client is connected.

    With `authenticated` False the bounds of `Limits` for such a client hold until `authenticate` is called.
    `ended` is the reason why no more requests come: ClientGone or ProtocolError. It does not close the
    connection. `unanswered` is the number of requests under way.
    """

    def __init__(
        self, limits: Limits, made: Callable[["ClientStream"], None], *, authenticated: bool = True
    ) -> None:
        self._limits = limits
        self._made = made
        self._is_authenticated = authenticated
        self._loop = asyncio.get_running_loop()
        self.ended: Future[Exception] = self._loop.create_future()
        self.unanswered = 0
        self._buffer = FrameBuffer(
            limits.frame_bytes if authenticated else limits.unauthenticated_frame_bytes
        )
        self._in_flight_max = limits.in_flight_per_connection if authenticated else 1
        self._authentication_timer: TimerHandle | None = None
        self._requests: deque[bytes] = deque()
        self._is_reading = True
        self._wanted: Future[None] | None = None
        """The future of the task that waits for a request, or for room to take one."""
        self._unsent: Future[None] | None = None
        """Done when the kernel has all responses. None if it has them now."""
        self._heard_at_s = self._loop.time()

    def connection_made(self, transport: BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(Transport, transport)
        # A response counts as given when the kernel has all of it, so that closing loses none. A TLS
        # transport pauses at its limit already, so with 0 it would never be ready.
        is_plain = transport.get_extra_info("ssl_object") is None
        self._transport.set_write_buffer_limits(high=0 if is_plain else 1)
        self._idle_timer = self._loop.call_later(self._limits.idle_timeout_s, self._end_if_idle)
        if not self._is_authenticated:
            self._authentication_timer = self._loop.call_later(
                self._limits.authentication_timeout_s, self._end_unauthenticated
            )
        self._made(self)

    def authenticate(self) -> None:
        """Lift the bounds for clients that have not authenticated."""
        if self._is_authenticated:
            return
        self._is_authenticated = True
        self._end_authentication_timer()
        self._buffer.max_bytes = self._limits.frame_bytes
        self._in_flight_max = self._limits.in_flight_per_connection
        self._go_on()

    @property
    def peer(self) -> str:
        """The client's IP address."""
        return str((self._transport.get_extra_info("peername") or ("unknown", 0))[0])

    @property
    def own_host(self) -> str:
        """The gateway's IP address of this connection."""
        return str(self._transport.get_extra_info("sockname")[0])

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._heard_at_s = self._loop.time()
        try:
            self._requests += self._buffer.feed(data)
        except ProtocolError as error:
            self._end(error)
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`. It is also called after the client's end of file."""
        self._idle_timer.cancel()
        self._end_authentication_timer()
        self._end(ClientGone("the client ended the connection"))

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._unsent = self._loop.create_future()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._unsent is not None:
            self._unsent.set_result(None)
            self._unsent = None

    async def take(self) -> bytes:
        """Return the next request, when one more may be under way."""
        while not self._requests or self.unanswered >= self._in_flight_max:
            self._wanted = self._loop.create_future()
            await self._wanted
        self.unanswered += 1
        return self._requests.popleft()

    async def answer(self, message: bytes) -> None:
        """Send a response to the client. Raises SlowReader if the client reads nothing for too long."""
        self._transport.write(framed(message))
        if self._unsent is not None:
            await self._sent()
        self.done()

    def done(self) -> None:
        """A request is no longer under way."""
        self.unanswered -= 1
        self._go_on()

    def abort(self) -> None:
        """Close the connection. Bytes that the client has not read by now are lost."""
        self._transport.abort()

    async def _sent(self) -> None:
        left = self._transport.get_write_buffer_size()
        while self._unsent is not None:
            sent, _ = await asyncio.wait([self._unsent], timeout=self._limits.write_timeout_s)
            left, before = self._transport.get_write_buffer_size(), left
            if not sent and left >= before:
                raise SlowReader(f"it took none of {left} bytes for {self._limits.write_timeout_s:.0f} s")

    def _go_on(self) -> None:
        """Wake the waiting task, and pause reading while the maximum of requests is under way."""
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
        is_reading = len(self._requests) + self.unanswered < self._in_flight_max
        if is_reading is not self._is_reading:
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _end_if_idle(self) -> None:
        left_s = self._heard_at_s + self._limits.idle_timeout_s - self._loop.time()
        if self._requests or self.unanswered:
            left_s = self._limits.idle_timeout_s
        if left_s <= 0:
            self._end(ClientGone("the client sent no request for too long"))
        else:
            self._idle_timer = self._loop.call_later(left_s, self._end_if_idle)

    def _end_unauthenticated(self) -> None:
        self._end(ProtocolError(f"no authentication within {self._limits.authentication_timeout_s:g} s"))

    def _end_authentication_timer(self) -> None:
        if self._authentication_timer is not None:
            self._authentication_timer.cancel()

    def _end(self, why: Exception) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
