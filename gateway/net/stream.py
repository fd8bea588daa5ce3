"""The stream of one client's connection. Requests are read whole, a limited number at a time. Responses are
written in the order of the requests.

`RequestReader` finds the requests in the bytes, `Dispatcher` starts them, `ResponseWriter` writes the
responses, `Timers` has the deadlines, and `Lifecycle` the state. `ClientStream` joins them to one protocol.
"""

import asyncio
from asyncio import Future, Transport
from collections.abc import Callable

from gateway import apis
from gateway.apis.api import Screened
from gateway.apis.slices import Slices
from gateway.fairness import CapacityLimiter
from gateway.limits import Limits
from gateway.metrics.numbers import GatewayCounts
from gateway.net.lifecycle import (
    ClientGone,
    ConnectionEvent,
    ConnectionState,
    Deadline,
    Drained,
    Lifecycle,
    Timers,
)
from gateway.net.limits.buffers import LARGE_READ_BYTES, SMALL_BYTES, ReceiveBufferLimit, WriteBufferLimit
from gateway.net.tls_entry import Endpoint
from gateway.net.writing import (
    FULL,
    HELD,
    MUTED,
    WAITING,
    Dispatcher,
    PauseReason,
    RequestReader,
    ResponseSlot,
    ResponseWriter,
)
from gateway.upstream.connections import READ_BYTES, Upstream, UpstreamLost
from gateway.wire.fetch_messages import WITH_RECORDS, tail_of
from gateway.wire.framing import ProtocolError, RequestHeader, correlation_id_of, size_prefix

_FINISHING = ConnectionState.FINISHING  # looked up once: an attribute of an enum takes 0.15 us


class ClientStream(Endpoint):
    """The asyncio protocol of one client's connection. `on_connected` is called with the stream when the
    client is connected.

    If `authenticated` is False, the tighter limits of `Limits` apply until `authenticate` is called. `ended`
    is done when the connection ends. The socket is closed by `abort`.
    """

    __slots__ = (
        "_counts", "_is_authenticated", "_is_counted", "_life", "_limits", "_loop", "_on_connected",
        "_reading", "_receive_buffers", "_timers", "_writing", "dispatcher",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        on_connected: Callable[["ClientStream"], None],
        counts: GatewayCounts,
        write_buffers: WriteBufferLimit,
        receive_buffers: ReceiveBufferLimit,
        turns: CapacityLimiter,
        *,
        authenticated: bool = True,
    ) -> None:
        super().__init__()
        self._limits = limits
        self._on_connected = on_connected
        self._counts = counts
        self._receive_buffers = receive_buffers
        self._is_authenticated = authenticated
        self._is_counted = False
        """True if `ReceiveBufferLimit` counts the bytes of unanswered requests."""
        # The following objects do not refer to the stream, so it is freed with its owner.
        self._loop = loop = asyncio.get_running_loop()
        self._timers = Timers(limits, loop)
        self._life = Lifecycle(self._timers, loop.create_future())
        self._reading = RequestReader(limits.unauthenticated_frame_bytes)
        self._writing = ResponseWriter(self._life, counts, write_buffers)
        self.dispatcher = Dispatcher(limits, self._life, self._reading, self._writing, loop, Slices(turns))

    # Requests and responses.

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and dispatch the requests in them."""
        if not self._life.state.reads:
            return  # dropped: the client sends the request again, on another connection
        self._timers.heard_at_s = self._loop.time()
        self._counts.received_bytes += len(data)
        if len(data) >= LARGE_READ_BYTES:
            self._receive_buffers.pause_one_turn(self)
        try:
            self._reading.feed(data)
        except ProtocolError as error:
            self.end(error)
        self._update()

    def answer(self, slot: ResponseSlot, *frame: bytes) -> None:
        """Send a response to the client, after the responses to all earlier requests."""
        writing = self._writing
        writing.put(slot, frame)
        if writing.slots[0] is not slot:
            return
        if len(writing.slots) == 1 and not self._reading.requests:
            self._flush()
        elif not writing.is_flush_scheduled:
            # The next responses are often ready in the same turn of the event loop.
            writing.is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    async def answer_in_part(self, slot: ResponseSlot, part: bytes) -> None:
        """Send a part of a response in its turn, and wait until the kernel has it. `answer` sends the last
        part.
        """
        await self.drain()
        if unread_bytes := self._writing.write_part(slot, part):
            await self.drain()
            self._writing.finish_part(unread_bytes)

    async def drain(self) -> None:
        """Wait until the kernel has the responses that are ready."""
        if self._writing.is_flush_scheduled:
            self._flush()
        while (unsent := self._writing.unsent) is not None:
            await asyncio.wait([unsent])

    def pause_writing(self) -> None:
        """Stop dispatching while the transport accepts no bytes."""
        self._writing.unsent = self._loop.create_future()
        self._timers.watch_writing(self)

    def resume_writing(self) -> None:
        """Write and dispatch again, because the kernel has all bytes."""
        self._timers.cancel(Deadline.WRITE)
        self._writing.on_all_sent()
        self._update()
        self._flush()

    def _flush(self) -> None:
        if self._writing.flush():
            self._update()

    def _update(self) -> None:
        """React to a change of the waiting requests, the slots or the state of the connection.

        Count the bytes of unanswered requests, dispatch the waiting requests for which there is capacity, and
        pause reading if too many requests or bytes are unanswered. After the last response of a connection
        that finishes, begin to linger.
        """
        reading, writing = self._reading, self._writing
        unanswered_bytes = reading.bytes + writing.dispatched_bytes + reading.buffer.partial_bytes
        may_change_count = unanswered_bytes > SMALL_BYTES or self._is_counted
        if may_change_count and not self._transport.is_closing():
            self._is_counted = self._receive_buffers.count(self, unanswered_bytes)
        self.dispatcher.resume()
        if self._life.state.reads:
            unanswered = len(reading.requests) + len(writing.slots)
            is_full = self.dispatcher.is_full(unanswered, reading.bytes + writing.dispatched_bytes)
            reading.set_paused(FULL, paused=is_full)
        elif self._life.state is _FINISHING and not writing.slots:
            self._begin_linger()

    # The lifecycle of the connection.

    def connected(self, transport: Transport, socket: Transport) -> None:
        super().connected(transport, socket)
        self._reading.transport = self._writing.transport = transport
        # A response counts as sent when the kernel has all of it, so that closing loses none.
        socket.set_write_buffer_limits(high=0)
        self._life.on(ConnectionEvent.CONNECTED)
        self._timers.watch_silence(self)
        if self._is_authenticated:
            self.authenticate()
        else:
            self._timers.watch_authentication(self)
        self._on_connected(self)

    def authenticate(self) -> None:
        """Replace the limits of an unauthenticated client with the usual ones."""
        self._life.on(ConnectionEvent.AUTHENTICATED)
        self._timers.cancel(Deadline.AUTHENTICATION)
        self._reading.buffer.max_bytes = self._limits.frame_bytes
        self.dispatcher.in_flight_max = self._limits.in_flight_per_connection
        self._update()

    def finish(self) -> None:
        """Dispatch no more requests, and end when all dispatched ones are answered."""
        if self._life.on(ConnectionEvent.FINISH) is _FINISHING:
            self._reading.clear_pauses()  # bytes are read only to see the client's end, and dropped
            self._update()

    def _begin_linger(self) -> None:
        """Close the sending side, and give the client time to read its responses.

        If the gateway closed at once, a request just sent would make the kernel drop unread responses.
        """
        self._life.on(ConnectionEvent.ANSWERED)
        self._timers.watch_linger(self)
        if self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def end(self, why: Exception) -> None:
        """End the connection for this reason: dispatch no more requests."""
        self._life.end(why)

    def abort(self) -> None:
        """Close the connection. Bytes that the client has not read yet are lost."""
        self._life.on(ConnectionEvent.END)
        self._writing.cancel()
        self._transport.abort()
        self.dispatcher.end()

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection, which also follows the client's end of file."""
        self._writing.forget()
        self._receive_buffers.forget(self)
        is_drained = self._life.state in (ConnectionState.FINISHING, ConnectionState.LINGERING)
        why = Drained("drained") if is_drained else ClientGone("the client ended the connection")
        self._life.end(why, ConnectionEvent.LOST)

    # Pauses.

    def set_waiting(self, *, waiting: bool) -> None:
        """Stop reading from the client if `waiting` for its admission or for capacity, else resume."""
        self._set_paused(WAITING, paused=waiting)

    def set_held(self, *, held: bool) -> None:
        """Stop reading from the client if `held` back by the limit on receive buffers, else resume."""
        self._set_paused(HELD, paused=held)

    def mute(self) -> None:
        """Dispatch no more requests until `unmute_after`."""
        self._set_paused(MUTED, paused=True)

    def unmute_after(self, seconds: float) -> None:
        """Dispatch requests again after this time."""
        self._timers.unmute_after(seconds, self._unmute)

    def _unmute(self) -> None:
        self._set_paused(MUTED, paused=False)
        self._update()

    def _set_paused(self, reason: PauseReason, *, paused: bool) -> None:
        if self._life.state.reads:
            self._reading.set_paused(reason, paused=paused)

    # State for others.

    @property
    def ended(self) -> Future[Exception]:
        """A future that is done when the connection ends. Its result is the reason."""
        return self._life.ended

    @property
    def is_muted(self) -> bool:
        """True if the client is throttled, so that no more of its requests are dispatched."""
        return MUTED in self._reading.reasons

    @property
    def is_busy(self) -> bool:
        """True if requests wait or are under way."""
        return bool(self._reading.requests or self._writing.slots)

    @property
    def unanswered(self) -> int:
        """The number of requests that are under way."""
        return len(self._writing.slots)

    @property
    def has_incomplete_frame(self) -> bool:
        """True if a part of the last frame has not arrived."""
        return self._reading.buffer.has_partial


HELD_MAX_BYTES = READ_BYTES
"""Smaller responses are received whole, because one write costs less than two."""

# The bytes of a response that are needed first: the correlation id, and a Fetch's session id.
_HEAD_BYTES = 16


def passes_undecoded(header: RequestHeader, screened: Screened | None) -> bool:
    """Return True if a large response to this request may pass undecoded."""
    if screened is not None and screened.changes_response:
        return False
    api = apis.PASSED.get(header.api_key)
    # `relay` hides the brokers' addresses in large responses with records, so they need no `rewrite`.
    return api is None or api.rewrite is None or header.api_key in WITH_RECORDS


def _ignore(_: bytes) -> None:
    pass


async def relay(
    upstream: Upstream,
    client: ClientStream,
    header: RequestHeader,
    slot: ResponseSlot,
    screened: Screened | None,
) -> None:
    """Pass the broker's next response to the client in parts. Raises UpstreamLost, ProtocolError."""
    missing_bytes = await upstream.next_response_size()
    prefix = size_prefix(missing_bytes)  # is sent with the first part
    part = await upstream.receive_part()
    while len(part) < _HEAD_BYTES:
        part += await upstream.receive_part()
    if correlation_id_of(part) != header.correlation_id:
        raise UpstreamLost("the broker answered another request")
    on_part = _ignore if screened is None or screened.on_part is None else screened.on_part
    if screened is not None and screened.on_start is not None:
        screened.on_start(part)
    on_part(part)
    missing_bytes -= len(part)
    tail = tail_of(header)  # hides addresses at the end of the response
    while missing_bytes:
        part_to_pass = part if tail is None else tail.feed(part)
        await client.answer_in_part(slot, prefix + part_to_pass)
        prefix = b""
        part = await upstream.receive_part()
        missing_bytes -= len(part)
        on_part(part)
    last_part = part if tail is None else tail.feed(part) + tail.end()
    client.answer(slot, prefix + last_part if prefix else last_part)
