"""The bytes of one client's connection. Requests are read whole, a bounded number at a time. Responses are
written in the order of the requests, whatever the order in which they are ready."""

import asyncio
import time
from asyncio import BaseTransport, Future, TimerHandle, Transport
from collections import deque
from collections.abc import Callable
from typing import cast

from gateway.metrics.counts import Counts
from gateway.net.endpoint import Endpoint
from gateway.net.ends import ClientGone as ClientGone
from gateway.net.ends import Drained, Idle, SlowReader
from gateway.net.place import Place as Place
from gateway.net.received import SMALL_BYTES, Received
from gateway.net.unread import Unread
from gateway.wire.framing import FrameBuffer, ProtocolError
from gateway.wire.limits import Limits

# Smaller responses are not counted as unread. A connection has at most `in_flight_per_connection` of them.
_SMALL_BYTES = 4096
# The time in which a client has to close its side after the gateway has closed its own.
_LINGER_S = 1.0


class ClientStream(Endpoint, asyncio.Protocol):
    """One client's bytes, both ways. `made` is called with the stream when the client is connected.

    `start_at_once` gets each request when it may be taken up, and the place of its response. If it returns
    False, `take` returns the request. No request is taken up before the caller of `take` calls it again.

    With `authenticated` False the bounds of `Limits` for such a client hold until `authenticate` is called.
    `ended` is the reason why no more requests come. It does not close the connection.
    """

    # With more than 30 attributes and no slots, CPython 3.11 gives each object a dictionary of its own.
    __slots__ = (
        "_authentication_timer", "_being_sent", "_buffer", "_bytes", "_counts", "_heard_at_s",
        "_idle_timer", "_in_flight_max", "_is_authenticated", "_is_counted", "_is_finishing",
        "_is_flush_due", "_is_held", "_is_paused", "_is_reading", "_is_starting", "_is_taking", "_limits",
        "_linger_timer", "_loop", "_made", "_mute_timer", "_places", "_received", "_requests",
        "_taken", "_taken_bytes", "_unread", "_unsent", "_wanted", "_write_timer", "ended", "is_muted",
        "start_at_once",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        made: Callable[["ClientStream"], None],
        counts: Counts,
        unread: Unread,
        received: Received,
        *,
        authenticated: bool = True,
    ) -> None:
        self._limits = limits
        self._unread = unread
        self._received = received
        self._is_counted = self._is_held = False
        self._counts = counts
        self._made = made
        self._is_authenticated = authenticated
        self._loop = asyncio.get_running_loop()
        self.ended: Future[Exception] = self._loop.create_future()
        self._buffer = FrameBuffer(
            limits.frame_bytes if authenticated else limits.unauthenticated_frame_bytes
        )
        self._in_flight_max = limits.in_flight_per_connection if authenticated else 1
        self._authentication_timer: TimerHandle | None = None
        self._requests: deque[bytes] = deque()
        self._places: deque[Place] = deque()
        self._bytes = 0
        """The bytes of all requests that are read and not answered."""
        self._taken_bytes = 0
        """The part of these that belongs to `_places`."""
        self._is_paused = False
        self.is_muted = False
        """Whether the client is throttled: no more requests of it are taken up."""
        self._mute_timer: TimerHandle | None = None
        self._is_finishing = False
        self._linger_timer: TimerHandle | None = None
        self._is_reading = True
        self.start_at_once: Callable[[bytes, Place], bool] = lambda message, place: False
        self._wanted: Future[None] | None = None
        """The future of the task that waits for a request, or for its turn."""
        self._is_starting = False
        self._is_taking = False
        """Whether that task waits in `take`."""
        self._taken: tuple[bytes, Place] | None = None
        """What `take` is to return."""
        self._is_flush_due = False
        self._being_sent = 0
        """The first places whose responses are written. The kernel does not have all of them yet."""
        self._write_timer: TimerHandle | None = None
        self._unsent: Future[None] | None = None
        """Done when the kernel has all responses. None if it has them now."""
        self._heard_at_s = self._loop.time()

    def connection_made(self, transport: BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.connected(cast(Transport, transport), cast(Transport, transport))

    def connected(self, transport: Transport, socket: Transport) -> None:
        """The client is there. `socket` is the transport below TLS."""
        self._transport, self._socket = transport, socket
        # A response counts as given when the kernel has all of it, so that closing loses none.
        socket.set_write_buffer_limits(high=0)
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
    def unanswered(self) -> int:
        """The number of requests that are under way."""
        return len(self._places)

    @property
    def lacks_a_part(self) -> bool:
        """Whether a part of the last frame is missing."""
        return self._buffer.partial

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._is_finishing:
            return  # the client sends it again, over another connection
        self._heard_at_s = self._loop.time()
        self._counts.received_bytes += len(data)
        try:
            requests = self._buffer.feed(data)
        except ProtocolError as error:
            self.end(error)
        else:
            self._requests += requests
            self._bytes += sum(map(len, requests))
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`. It is also called after the client's end of file."""
        self._unread.forget(self.end)
        self._received.forget(self)
        self._idle_timer.cancel()
        self._end_authentication_timer()
        self._end_write_timer()
        for timer in (self._mute_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self.end(Drained("drained") if self._is_finishing else ClientGone("the client ended the connection"))

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._unsent = self._loop.create_future()
        self._watch_writing(self.held_bytes)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._end_write_timer()
        if self._unsent is not None:
            self._unsent.set_result(None)
            self._unsent = None
        self._sent()
        self._flush()

    async def take(self) -> tuple[bytes, Place]:
        """Return the next request that does not start at once, and the place of its response."""
        self._start_all()
        while (taken := self._taken) is None:
            self._is_taking = True
            await self._wait()
            self._is_taking = False
        self._taken = None
        return taken

    async def turn(self, place: Place) -> None:
        """Wait until all earlier requests are answered."""
        while self._places and self._places[0] is not place:
            await self._wait()

    async def answered(self) -> None:
        """Wait until all requests that were taken are answered."""
        while self._places:
            await self._wait()

    def answer(self, place: Place, *frame: bytes) -> None:
        """Send a response to the client, after the responses to all earlier requests."""
        place.frame, place.waits_for = frame, None
        if frame and len(frame[-1]) > _SMALL_BYTES and not self._transport.is_closing():
            place.response_bytes = len(frame[-1])
            self._unread.add(self.end, place.response_bytes)
        self._counts.answer(place.api_key, time.monotonic() - place.began_s)
        if self._places[0] is not place:
            return
        if len(self._places) == 1:
            self._flush()
        elif not self._is_flush_due:
            # The next responses are often ready in the same turn of the event loop.
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    async def answer_in_part(self, place: Place, part: bytes) -> None:
        """Send a part of a response in its turn, until the kernel has it. `answer` sends the last part."""
        await self.drain()
        if self._transport.is_closing():
            return
        assert self._places[0] is place
        self._counts.sent_bytes += len(part)
        self._transport.write(part)
        if self._unsent is not None:
            self._unread.add(self.end, len(part))
            await self.drain()
            self._unread.remove(self.end, len(part))

    async def drain(self) -> None:
        """Wait until the kernel has the responses that are ready."""
        if self._is_flush_due:
            self._flush()
        while self._unsent is not None:
            await asyncio.wait([self._unsent])

    def pause(self, *, paused: bool) -> None:
        """Read nothing of the client, or go on."""
        self._is_paused = paused
        self._go_on()

    def hold(self, *, held: bool) -> None:
        """The same, for `Received`."""
        self._is_held = held
        self._read_or_not()

    def mute(self) -> None:
        """Take up no more requests until `unmute_after`."""
        self.is_muted = True
        self._go_on()

    def unmute_after(self, seconds: float) -> None:
        """Take requests up again after this time."""
        self._mute_timer = self._loop.call_later(seconds, self._unmute)

    def finish(self) -> None:
        """Take up no more requests, and end when all that were taken up are answered."""
        self._is_finishing = True
        self._go_on()

    def end(self, why: Exception) -> None:
        """Take no more requests."""
        if not self.ended.done():
            self.ended.set_result(why)

    def abort(self) -> None:
        """Close the connection. Bytes that the client has not read by now are lost."""
        for place in self._places:
            if place.waits_for is not None:
                place.waits_for.cancel()
        self._transport.abort()

    def _may_take(self) -> bool:
        if not self._requests or len(self._places) >= self._in_flight_max or self._unsent is not None:
            return False  # a client that does not read its responses gets no more of them
        if self.is_muted or self._is_finishing:
            return False
        return not self._places or self._taken_bytes < self._limits.in_flight_bytes_per_connection

    def _start_all(self) -> None:
        """Take requests up, until one of them does not start at once."""
        if self._is_starting:
            return  # this loop has called `answer`
        self._is_starting = True
        while self._taken is None and self._may_take():
            message = self._requests.popleft()
            place = Place(len(message))
            self._taken_bytes += place.request_bytes
            self._places.append(place)
            if not self.start_at_once(message, place):
                self._taken = message, place
        self._is_starting = False

    async def _wait(self) -> None:
        self._wanted = self._loop.create_future()
        await self._wanted

    def _flush(self) -> None:
        """Write the responses that are ready and have no unanswered request before them."""
        self._is_flush_due = False
        if self._being_sent or self._transport.is_closing():
            return
        parts: list[bytes] = []
        for place in self._places:
            if place.frame is None:
                break
            parts += place.frame
            self._being_sent += 1
        if len(parts) == 1:
            self._counts.sent_bytes += len(parts[0])
            self._transport.write(parts[0])
        elif parts:
            self._counts.sent_bytes += sum(map(len, parts))
            self._transport.writelines(parts)
        if self._unsent is None:
            self._sent()

    def _sent(self) -> None:
        for _ in range(self._being_sent):
            place = self._places.popleft()
            if place.response_bytes:
                self._unread.remove(self.end, place.response_bytes)
            self._bytes -= place.request_bytes
            self._taken_bytes -= place.request_bytes
        self._being_sent = 0
        self._go_on()

    def _watch_writing(self, left: int) -> None:
        """Wait until the kernel has all responses, as long as the client reads some of them."""
        self._write_timer = self._loop.call_later(
            self._limits.write_timeout_s, self._end_if_nothing_is_read, left
        )

    def _end_if_nothing_is_read(self, before: int) -> None:
        left = self.held_bytes
        if left >= before:
            self.end(SlowReader(f"it took none of {left} bytes for {self._limits.write_timeout_s:.0f} s"))
        else:
            self._watch_writing(left)

    def _end_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _go_on(self) -> None:
        """Start requests, or wake the waiting task. Pause reading while too much is under way."""
        bytes_here = self._bytes + self._buffer.partial_bytes
        if (bytes_here > SMALL_BYTES or self._is_counted) and not self._transport.is_closing():
            self._is_counted = self._received.count(self, bytes_here)
        if self._is_taking:
            self._start_all()
        is_needed = not self._is_taking or self._taken is not None
        if is_needed and self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
        self._read_or_not()
        if self._is_finishing and not self._places and self._linger_timer is None:
            self._say_end()

    def _read_or_not(self) -> None:
        is_reading = (
            len(self._requests) + len(self._places) < self._in_flight_max
            and self._bytes < self._limits.in_flight_bytes_per_connection
            and not (self._is_paused or self._is_held or self.is_muted)
        ) or self._is_finishing  # to see the client's end; what it sends is dropped
        if is_reading is not self._is_reading and not self._transport.is_closing():
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _say_end(self) -> None:
        """Tell the client that no more responses come, and give it time to read them. If the gateway closed
        at once, a request that the client has just sent would make the kernel drop what is not read yet.
        """
        self._linger_timer = self._loop.call_later(_LINGER_S, self.end, Drained("drained"))
        if self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _unmute(self) -> None:
        self.is_muted = False
        self._go_on()

    def _end_if_idle(self) -> None:
        left_s = self._heard_at_s + self._limits.idle_timeout_s - self._loop.time()
        if self._requests or self._places:
            left_s = self._limits.idle_timeout_s
        if left_s <= 0:
            self.end(Idle("the client sent no request for too long"))
        else:
            self._idle_timer = self._loop.call_later(left_s, self._end_if_idle)

    def _end_unauthenticated(self) -> None:
        self.end(ProtocolError(f"no authentication within {self._limits.authentication_timeout_s:g} s"))

    def _end_authentication_timer(self) -> None:
        if self._authentication_timer is not None:
            self._authentication_timer.cancel()
