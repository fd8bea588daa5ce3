"""The transports of a connection, and TLS handshakes at the clients' sockets.

A TLS listener of asyncio (`create_server` with `ssl`) hides the socket's transport. That transport buffers
the bytes that the kernel does not accept, and the protocol is not notified: a response of any size would
count as read at once. So the gateway starts the handshake itself, on the socket's transport. When that
transport pauses, the client's stream pauses.
"""

import asyncio
import ssl
from asyncio import BaseTransport, BufferedProtocol, Protocol, Transport
from collections.abc import Callable
from functools import partial
from typing import cast

# The limit of the TLS transport's write buffer is so high that this transport itself never pauses. It has
# bytes only while the socket's transport is paused.
_NEVER_BYTES = 2**31 - 1


Endpoints = tuple[tuple[str, int], tuple[str, int]]
"""The addresses of the other side and of the gateway's socket."""


class Endpoint(Protocol):
    """A protocol that keeps the transports of its connection.

    `connected` sets the transports. Without TLS they are the same. `reported` has the endpoints that a load
    balancer has reported, or None.
    """

    __slots__ = ("_socket", "_transport", "reported")

    _socket: Transport  # below TLS
    _transport: Transport

    def __init__(self) -> None:
        self.reported: Endpoints | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin a connection without TLS."""
        self.connected(cast(Transport, transport), cast(Transport, transport))

    def connected(self, transport: Transport, socket: Transport) -> None:
        """Begin the connection. `socket` is the transport below TLS."""
        self._transport, self._socket = transport, socket

    @property
    def held_bytes(self) -> int:
        """The bytes written to the connection that the kernel does not have yet."""
        held_bytes = self._transport.get_write_buffer_size()
        if self._socket is not self._transport:  # TLS: both transports have buffers
            held_bytes += self._socket.get_write_buffer_size()
        return held_bytes

    @property
    def peer(self) -> str:
        """The IP address of the other side: a client, or a server to which the gateway has connected."""
        if self.reported is not None:
            return self.reported[0][0]
        return str((self._transport.get_extra_info("peername") or ("unknown", 0))[0])

    @property
    def endpoints(self) -> Endpoints:
        """The addresses of both ends of a connection that is open."""
        if self.reported is not None:
            return self.reported
        peer, own = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        return (peer[0], peer[1]), (own[0], own[1])

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's certificate in DER, or None if it has sent none."""
        tls = self.ssl_object
        return None if tls is None else tls.getpeercert(binary_form=True)

    @property
    def own_host(self) -> str:
        """The IP address that the client has connected to."""
        if self.reported is not None:
            return self.reported[1][0]
        return str(self._transport.get_extra_info("sockname")[0])

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS side of this connection, or None for plain text."""
        ssl_object: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return ssl_object


class TlsEntry:
    """The handshakes of all listeners. A client that does not complete its handshake in `timeout_s` is
    disconnected.
    """

    def __init__(self, context: ssl.SSLContext, timeout_s: float) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._handshakes: set[asyncio.Task[None]] = set()

    def protocol(
        self, make_stream: Callable[[], Endpoint], on_done: Callable[[asyncio.Task[None]], None]
    ) -> Protocol:
        """Return the protocol of a new connection.

        `make_stream` builds the connection's stream after the handshake. `on_done` is called with the task of
        the handshake when the task is done. If the handshake failed, `on_done` has to close the connection.
        """
        return _TlsHandshake(partial(self._start_handshake, on_done), make_stream)

    def _start_handshake(
        self, on_done: Callable[[asyncio.Task[None]], None], connection: "_TlsHandshake"
    ) -> asyncio.Task[None]:
        """Start the task of a connection's handshake."""
        handshake = asyncio.create_task(self._complete_handshake(connection))
        handshake.add_done_callback(on_done)
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)
        return handshake

    async def _complete_handshake(self, connection: "_TlsHandshake") -> None:
        """Do the handshake, and connect the client's stream to TLS. If it fails, return without a stream."""
        socket, loop = connection.socket, asyncio.get_running_loop()
        # `hand_over` runs when `start_tls` has replaced the protocol of `socket`, and before the handshake,
        # which `start_tls` also schedules by `call_soon`.
        loop.call_soon(connection.hand_over)
        try:
            tls = await loop.start_tls(
                socket, connection, self._context, server_side=True, ssl_handshake_timeout=self._timeout_s
            )
        except OSError:  # the client cannot do TLS, has gone, or is too slow
            return
        if tls is None or tls.is_closing():
            return
        # The event loop decrypts the client's first bytes after this task continues, so `connection` gets
        # none.
        join_tls(tls, socket, connection.make_stream())


def join_tls(tls: Transport, socket: Transport, stream: Endpoint) -> None:
    """Connect the stream to the TLS transport `tls` after a complete handshake. `socket` is below TLS."""
    tls.set_write_buffer_limits(high=_NEVER_BYTES)
    tls.set_protocol(cast(Protocol, stream))
    socket.set_protocol(_PauseForwarder(cast(BufferedProtocol, socket.get_protocol()), stream))
    stream.connected(tls, socket)


class _TlsHandshake(Protocol):
    """A connection during its handshake."""

    socket: Transport
    _handshake: asyncio.Task[None]

    def __init__(
        self,
        start_handshake: Callable[["_TlsHandshake"], asyncio.Task[None]],
        make_stream: Callable[[], Endpoint],
    ) -> None:
        self._start_handshake = start_handshake
        self.make_stream = make_stream
        self._early_bytes = b""
        """The bytes that the socket's transport has read before TLS took it over."""

    def connection_made(self, transport: BaseTransport) -> None:
        self.socket = cast(Transport, transport)
        self._handshake = self._start_handshake(self)

    def data_received(self, data: bytes) -> None:
        self._early_bytes += data

    def connection_lost(self, _: Exception | None) -> None:
        self._handshake.cancel()

    def hand_over(self) -> None:
        """Pass the buffered bytes to TLS."""
        tls = cast(BufferedProtocol, self.socket.get_protocol())
        while self._early_bytes:
            buffer = memoryview(tls.get_buffer(len(self._early_bytes)))  # it may be smaller
            part, self._early_bytes = self._early_bytes[: len(buffer)], self._early_bytes[len(buffer) :]
            buffer[: len(part)] = part
            tls.buffer_updated(len(part))


class _PauseForwarder(BufferedProtocol):
    """A protocol between a socket's transport and TLS, which also notifies the client's stream of pauses."""

    def __init__(self, tls: BufferedProtocol, stream: Endpoint) -> None:
        self._tls = tls
        self._stream = stream
        self._is_paused = self._is_stream_paused = False
        # TLS's own methods, so that received bytes cause no additional call.
        self.get_buffer = tls.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = tls.buffer_updated  # type: ignore[method-assign]
        self.eof_received = tls.eof_received  # type: ignore[method-assign]
        self.connection_lost = tls.connection_lost  # type: ignore[method-assign]

    def pause_writing(self) -> None:
        self._is_paused = True
        self._tls.pause_writing()
        if not self._is_stream_paused:
            self._is_stream_paused = True
            self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._is_paused = False
        # TLS first writes its bytes, and may pause the transport again.
        self._tls.resume_writing()
        if not self._is_paused:
            self._is_stream_paused = False
            self._stream.resume_writing()
