"""A client's connection joined with a connection to the server behind the gateway: two streams, and a relay
for each direction, which passes most frames on and holds those that the gateway handles itself.
"""

import asyncio
import socket as sockets
from asyncio import Future, Transport
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gateway.limits import MIB, Limits
from gateway.net.lifecycle import ClientGone, Deadline, SlowReader, Timers
from gateway.net.limits.buffers import LARGE_READ_BYTES, SMALL_BYTES, ReceiveBufferLimit, WriteBufferLimit
from gateway.net.tls_entry import Endpoint
from gateway.rocketmq.frame_relay import FrameHandling, FrameRelay
from gateway.rocketmq.metrics import RocketmqCounts, counted_code
from gateway.upstream.connections import UpstreamLost
from kafka_why.contract.rocketmq.requests import ResponseCode
from kafka_why.remoting.frames import Header, encode_frame, response_to
from kafka_why.remoting.strict_json import MalformedFrame

WINDOW_BYTES = MIB
"""The gateway stops reading from one side while the other has not read more than this."""
OWN_RESPONSES_MAX_BYTES = 16 * MIB
"""A client is disconnected if it leaves more bytes of the gateway's own frames unread."""

# A peer that has vanished is noticed after 30 s.
_KEEP_ALIVE_OPTIONS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
# The time in which a side has to read the remaining bytes after the other side has ended.
_FLUSH_S = 5.0


class UpstreamEnded(ConnectionError):
    """The server behind the gateway ended the connection. `reason` is for metrics."""

    reason = "upstream"


@dataclass(slots=True)
class JoinedParts:
    """The objects that all connections of a gateway share. `background` are tasks that may outlive their
    connection.
    """

    limits: Limits
    counts: RocketmqCounts
    write_buffers: WriteBufferLimit
    receive_buffers: ReceiveBufferLimit
    background: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, work: Awaitable[None]) -> None:
        """Run `work` in a background task."""
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)


class JoinedStream(Endpoint):
    """One of the two streams of a connection. While `pauses` has reasons, nothing is read from the stream.
    `is_full` is True while its transport accepts no more bytes, because the other end does not read.
    """

    __slots__ = ("_joined", "is_connected", "is_full", "pauses", "relay")

    relay: FrameRelay
    """The relay of what this stream receives."""

    def __init__(self, joined: "JoinedConnection") -> None:
        super().__init__()
        self._joined = joined
        self.pauses: set[str] = set()
        self.is_connected = self.is_full = False

    def connected(self, transport: Transport, socket: Transport) -> None:
        super().connected(transport, socket)
        self.is_connected = True
        socket.set_write_buffer_limits(high=WINDOW_BYTES)
        _set_keep_alive(socket.get_extra_info("socket"))
        if self.pauses:
            transport.pause_reading()
            # uvloop starts to read after `connection_made`, although reading was paused there.
            asyncio.get_running_loop().call_soon(self._pause_again)
        self._joined.stream_connected(self)

    def _pause_again(self) -> None:
        """Pause reading if there still is a reason."""
        if self.pauses and not self._transport.is_closing():
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Relay received bytes."""
        self._joined.received(self, data)

    def pause_writing(self) -> None:
        """Stop reading from the other side, because this side does not read."""
        self.is_full = True
        self._joined.writing_changed(self)

    def resume_writing(self) -> None:
        """Read from the other side again."""
        self.is_full = False
        self._joined.writing_changed(self)

    def connection_lost(self, _: Exception | None) -> None:
        """End the other side, too."""
        self._joined.stream_lost(self)

    def write(self, data: bytes) -> None:
        """Write to this side."""
        self._transport.write(data)

    def set_paused(self, reason: str, *, paused: bool) -> None:
        """Add or remove a reason to pause reading. Reading continues when there is no reason left."""
        was_paused = bool(self.pauses)
        if paused:
            self.pauses.add(reason)
        else:
            self.pauses.discard(reason)
        has_changed = was_paused != bool(self.pauses)
        if not self.is_connected or not has_changed or self._transport.is_closing():
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """Write the remaining bytes, for a short time, and close."""
        if self.is_connected:
            self._transport.close()
            asyncio.get_running_loop().call_later(_FLUSH_S, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self.is_connected:
            self._transport.abort()


def _set_keep_alive(socket: sockets.socket) -> None:
    socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE_OPTIONS.items():
        if hasattr(sockets, name):  # not on every system
            socket.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)


# Reasons to pause reading: the server is not connected yet, the limit on receive buffers is exceeded, the
# other side does not read, the client is overloaded.
_JOINING, _HELD, _FULL, _BUSY = "joining", "held", "full", "busy"


class JoinedConnection:
    """A client's connection, and the connection to the server behind the gateway. If either ends, both end.

    `accept` is called when the client is connected. It ends the connection, or arranges that `join` is
    called. `ended` has the reason of the end.

    A frame is *held* if a `decide` method returns `FrameHandling.HOLD`. It is not written to the other side,
    and the `handle` method gets it when it is complete.
    """

    role = ""
    """The kind of server that the gateway stands in for, for metrics and logs."""

    def __init__(self, parts: JoinedParts, accept: Callable[["JoinedConnection"], None]) -> None:
        self.parts = parts
        self._accept = accept
        self._loop = loop = asyncio.get_running_loop()
        self.ended: Future[Exception] = loop.create_future()
        self.is_draining = False
        self._timers = Timers(parts.limits, loop)
        self._unread_bytes = 0  # those that `write_buffers` counts
        self.client = JoinedStream(self)
        self.upstream = JoinedStream(self)
        frame_max_bytes = parts.limits.frame_bytes
        self.client.relay = FrameRelay(
            frame_max_bytes, self.decide_request, self.handle_request, self.upstream.write
        )
        self.upstream.relay = FrameRelay(
            frame_max_bytes, self.decide_answer, self.handle_answer, self.client.write, is_trusted=True
        )
        self.client.relay.is_suspended = True
        self.client.set_paused(_JOINING, paused=True)

    # For subclasses.

    def decide_request(self, header: Header, frame_bytes: int) -> FrameHandling:
        """Return the handling of a frame of the client. Raises MalformedFrame."""
        raise NotImplementedError

    def handle_request(self, header: Header, frame: bytes, body_at: int) -> None:
        """Handle a frame of the client that `decide_request` has held."""
        raise NotImplementedError

    def decide_answer(self, header: Header, frame_bytes: int) -> FrameHandling:
        """Return the handling of a frame of the server."""
        raise NotImplementedError

    def handle_answer(self, header: Header, frame: bytes, body_at: int) -> None:
        """Handle a frame of the server that `decide_answer` has held."""
        raise NotImplementedError

    def on_joined(self) -> None:
        """Prepare for the first frame, when both sides are connected."""

    def on_end(self, why: Exception) -> None:
        """Release the subclass's resources at the end of the connection."""

    # The life of a connection.

    async def join(self, connect: Callable[[JoinedStream], Awaitable[None]]) -> None:
        """Connect to the server, and relay frames from then on."""
        try:
            await connect(self.upstream)
        except Exception as error:  # noqa: BLE001 - whatever failed, the client must not wait for ever
            self.parts.counts.upstream_connects["failed"] += 1
            self.end(error if isinstance(error, UpstreamLost) else UpstreamLost(repr(error)))
            return
        self.parts.counts.upstream_connects["connected"] += 1
        if self.ended.done():
            self.upstream.abort()
            return
        self.on_joined()
        self._timers.watch_silence(self)
        self.client.set_paused(_JOINING, paused=False)
        self.resume()

    def stream_connected(self, stream: JoinedStream) -> None:
        """Call `accept` if the client has connected."""
        if stream is self.client:
            self._accept(self)

    def received(self, stream: JoinedStream, data: bytes) -> None:
        """Relay received bytes. Those of the client count towards the limit on receive buffers."""
        if self.ended.done():
            return
        self._timers.heard_at_s = self._loop.time()
        try:
            stream.relay.feed(data)
        except MalformedFrame as error:
            self.end(error)
            return
        if stream is self.upstream:
            self.parts.counts.sent_bytes += len(data)
            return
        self.parts.counts.received_bytes += len(data)
        if len(data) >= LARGE_READ_BYTES:
            self.parts.receive_buffers.pause_one_turn(self)
        self.count_unanswered()

    def writing_changed(self, stream: JoinedStream) -> None:
        """Pause or resume reading from the other side, because `stream.is_full` has changed."""
        if self.ended.done():
            return
        if stream is self.upstream:
            self.client.set_paused(_FULL, paused=stream.is_full)
        else:
            self.upstream.set_paused(_FULL, paused=stream.is_full)
            self._limit_unread()

    def _limit_unread(self) -> None:
        """While the client does not read, disconnect it after a deadline, or earlier if all clients together
        exceed the limit on write buffers.
        """
        if self.client.is_full:
            self._unread_bytes = self.client.held_bytes
            self._timers.watch_writing(self)
            self.parts.write_buffers.add(self.end, self._unread_bytes)
        else:
            self._timers.cancel(Deadline.WRITE)
            self.parts.write_buffers.remove(self.end, self._unread_bytes)
            self.resume()

    def stream_lost(self, stream: JoinedStream) -> None:
        """End the connection, because one side has ended."""
        if stream is self.client:
            self.end(ClientGone("the client ended the connection"))
        else:
            self.end(UpstreamEnded(f"the {self.role} ended the connection"))

    def end(self, why: Exception) -> None:
        """End both sides for this reason, after the remaining bytes are written. The first reason is kept."""
        if self.ended.done():
            return
        self.ended.set_result(why)
        self._timers.stop()
        self.parts.receive_buffers.forget(self)
        self.parts.write_buffers.forget(self.end)
        self.client.close()
        self.upstream.close()
        self.on_end(why)

    def abort(self) -> None:
        """Close both sides at once."""
        self.client.abort()
        self.upstream.abort()

    def drain(self) -> None:
        """Let the subclass refuse further requests, because the gateway is about to end."""
        self.is_draining = True

    # Requests that the gateway answers.

    @property
    def is_busy(self) -> bool:
        """Always False, because an unanswered request does not keep a silent connection open (`Timers`)."""
        return False

    @property
    def is_overloaded(self) -> bool:
        """True if the client must wait with further requests."""
        return self.client.is_full

    def suspend_if_busy(self) -> None:
        """Read no further frame of the client while the connection is overloaded."""
        if self.is_overloaded:
            self.client.relay.is_suspended = True
            self.client.set_paused(_BUSY, paused=True)

    def resume(self) -> None:
        """Read the client's frames again, if they are suspended and the overload is over."""
        if not self.client.relay.is_suspended or self.is_overloaded or self.ended.done():
            return
        is_joined = self.upstream.is_connected and _JOINING not in self.client.pauses
        if not is_joined:
            return
        try:
            self.client.relay.resume()
        except MalformedFrame as error:
            self.end(error)
            return
        if not self.client.relay.is_suspended:  # the frames read now have not overloaded it again
            self.client.set_paused(_BUSY, paused=False)
        self.count_unanswered()

    def refuse(self, header: Header, code: int, remark: str) -> FrameHandling:
        """Answer a request with an error, and drop it."""
        if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self.parts.counts.refused_requests[counted_code(header.code)] += 1
        if not header.is_one_way:
            self.send(encode_frame(response_to(header, code, remark)))
            self.suspend_if_busy()
        return FrameHandling.DROP

    def send(self, frame: bytes) -> None:
        """Write a frame of the gateway's own to the client."""
        if self.ended.done():
            return
        self.parts.counts.sent_bytes += len(frame)
        self.upstream.relay.insert(frame)
        unread_bytes = self.upstream.relay.inserted_bytes + self.client.held_bytes
        if unread_bytes > OWN_RESPONSES_MAX_BYTES:
            self.end(SlowReader(f"it had not read {unread_bytes} bytes"))

    # For the limits of all clients: see `ServedClient`.

    @property
    def peer(self) -> str:
        """The client's IP address."""
        return self.client.peer

    @property
    def held_bytes(self) -> int:
        """The bytes that the client has not read."""
        return self.client.held_bytes

    @property
    def has_incomplete_frame(self) -> bool:
        """True if a part of the client's last frame is missing."""
        return self.client.relay.is_incomplete

    @property
    def unanswered_bytes(self) -> int:
        """The bytes of the requests that the gateway has not answered."""
        return 0

    def count_unanswered(self) -> None:
        """Count the bytes of the client's requests that the gateway buffers or has not answered."""
        if self.ended.done():
            return
        counted_bytes = self.client.relay.buffered_bytes + self.unanswered_bytes
        if counted_bytes > SMALL_BYTES or self._is_counted:
            self._is_counted = self.parts.receive_buffers.count(self, counted_bytes)

    _is_counted = False
    """True if `receive_buffers` counts the client."""

    def set_waiting(self, *, waiting: bool) -> None:
        """Do nothing, because nothing is read from a client before it is joined."""

    def set_held(self, *, held: bool) -> None:
        """Stop reading from the client if `held` back by the limit on receive buffers, else resume."""
        if not self.ended.done():
            self.client.set_paused(_HELD, paused=held)
