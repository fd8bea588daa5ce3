"""The transports of a connection, and TLS handshakes at the clients' sockets.

A TLS listener of asyncio (`create_server` with `ssl`) hides the socket's transport, which buffers the bytes
that the kernel does not accept without notifying the protocol: a response of any size would count as read at
once. So the handshake starts here, on a known socket transport. When that transport pauses, the client's
stream pauses.
"""

import asyncio
import ssl
from asyncio import BaseTransport, BufferedProtocol, Protocol, Transport
from collections.abc import Callable
from functools import partial
from typing import Protocol as Structure
from typing import cast

# The TLS transport itself never pauses. It has bytes only while the socket's transport is paused.
_NEVER_BYTES = 2**31 - 1


class SecuredStream(Structure):
    """A stream of one connection, above TLS or without it."""

    def connected(self, transport: Transport, socket: Transport) -> None:
        """Begin the connection. `socket` is the transport below TLS."""

    def data_received(self, data: bytes) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class TlsEntry:
    """The handshakes of all listeners. A client that does not complete its handshake in `timeout_s` is
    disconnected.
    """

    def __init__(self, context: ssl.SSLContext, timeout_s: float) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._handshakes: set[asyncio.Task[None]] = set()

    def protocol(
        self, make: Callable[[], SecuredStream], ended: Callable[[asyncio.Task[None]], None]
    ) -> Protocol:
        """Return the protocol of a new connection.

        `make` builds its stream after the handshake. `ended` is called with the task of the handshake when it
        is done, and has to close the connection if it failed.
        """
        return _Entering(partial(self._begin, ended), make)

    def _begin(
        self, ended: Callable[[asyncio.Task[None]], None], entering: "_Entering"
    ) -> asyncio.Task[None]:
        handshake = asyncio.create_task(self._enter(entering))
        handshake.add_done_callback(ended)
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)
        return handshake

    async def _enter(self, entering: "_Entering") -> None:
        socket, loop = entering.socket, asyncio.get_running_loop()
        # This runs before TLS begins, because `start_tls` uses `call_soon`, too.
        loop.call_soon(entering.hand_over)
        try:
            tls = await loop.start_tls(
                socket, entering, self._context, server_side=True, ssl_handshake_timeout=self._timeout_s
            )
        except OSError:  # the client cannot do TLS, has gone, or is too slow
            return
        if tls is None or tls.is_closing():
            return
        # The protocol gets no bytes of the client before this task continues.
        join_tls(tls, socket, entering.make())


def join_tls(tls: Transport, socket: Transport, stream: SecuredStream) -> None:
    """Connect the stream after a complete handshake."""
    tls.set_write_buffer_limits(high=_NEVER_BYTES)
    tls.set_protocol(cast(Protocol, stream))
    socket.set_protocol(_Pauses(cast(BufferedProtocol, socket.get_protocol()), stream))
    stream.connected(tls, socket)


class _Entering(Protocol):
    """A connection during its handshake."""

    socket: Transport
    _handshake: asyncio.Task[None]

    def __init__(
        self, begin: Callable[["_Entering"], asyncio.Task[None]], make: Callable[[], SecuredStream]
    ) -> None:
        self._begin = begin
        self.make = make
        self._early = b""
        """Bytes that arrived before TLS took over the socket's transport, which reads from the start."""

    def connection_made(self, transport: BaseTransport) -> None:
        self.socket = cast(Transport, transport)
        self._handshake = self._begin(self)

    def data_received(self, data: bytes) -> None:
        # TLS has not started yet.
        self._early += data

    def connection_lost(self, _: Exception | None) -> None:
        self._handshake.cancel()

    def hand_over(self) -> None:
        """Pass the buffered bytes to TLS."""
        tls = cast(BufferedProtocol, self.socket.get_protocol())
        while self._early:
            buffer = memoryview(tls.get_buffer(len(self._early)))
            taken, self._early = self._early[: len(buffer)], self._early[len(buffer) :]
            buffer[: len(taken)] = taken
            tls.buffer_updated(len(taken))


class _Pauses(BufferedProtocol):
    """A protocol between a socket's transport and TLS, which also notifies the client's stream of pauses."""

    def __init__(self, tls: BufferedProtocol, stream: SecuredStream) -> None:
        self._tls = tls
        self._stream = stream
        self._is_paused = self._is_stream_paused = False
        # Assigned here because they are called for all bytes of the client.
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


# The transports of one connection, with TLS or without.


Endpoints = tuple[tuple[str, int], tuple[str, int]]
"""The addresses of the other side and of the gateway's socket."""


class Endpoint:
    """The transports of a connection, which are set when it is connected.

    Without TLS both are the same. `reported` are the endpoints that a load balancer has reported, or None.
    """

    __slots__ = ("_socket", "_transport", "reported")

    _socket: Transport  # below TLS
    _transport: Transport

    def __init__(self) -> None:
        self.reported: Endpoints | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes written to the connection that the kernel does not have yet."""
        held = self._transport.get_write_buffer_size()
        return held if self._socket is self._transport else held + self._socket.get_write_buffer_size()

    @property
    def peer(self) -> str:
        """The IP address of the client, or of the server behind the gateway."""
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
        tls = self._transport.get_extra_info("ssl_object")
        certificate: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return certificate

    @property
    def own_host(self) -> str:
        """The IP address that the client has connected to."""
        if self.reported is not None:
            return self.reported[1][0]
        return str(self._transport.get_extra_info("sockname")[0])

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS side of this connection, or None for plain text."""
        found: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return found
