"""The first bytes of clients' connections: a load balancer's header of the PROXY protocol, and the choice
between TLS and plain text.

RocketMQ's servers have both on one port, too. Source: NettyRemotingServer.HandshakeHandler, TlsModeHandler.
"""

import asyncio
import ssl
from asyncio import BaseTransport, Protocol, Transport
from collections.abc import Callable
from typing import cast

from gateway.log_text import RateLimitedWarning
from gateway.metrics.numbers import TOO_LATE
from gateway.net.listener import AdmissionDecision, Entrance
from gateway.net.proxy_protocol import InvalidProxyHeader, Network, is_within, read_proxy_header
from gateway.net.tls_entry import Endpoints, SecuredStream, TlsEntry

_HANDSHAKE = b"\x16"
"""The first byte of a TLS client: the type of a record of the handshake."""

MakeStream = Callable[[Endpoints | None, AdmissionDecision | None], SecuredStream]
"""Builds the stream of a client from the endpoints that a load balancer has reported, or None, and from its
admission, or None if it was not admitted before.
"""


class ConnectionEntry:
    """The entry of all connections to a gateway's listeners.

    With `tls` clients have to use TLS. If `is_permissive`, they may also use plain text. Connections from
    `proxies` have to begin with a header of the PROXY protocol. A client that does not send its first bytes
    and complete its handshake within `timeout_s` is disconnected. Until then its connection counts at the
    `entrance`, by the address of its socket or the one that a load balancer has reported. A load balancer's
    own address does not count, because it has many clients.
    """

    def __init__(
        self,
        entrance: Entrance,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        proxies: tuple[Network, ...],
        *,
        is_permissive: bool = False,
    ) -> None:
        self.entrance = entrance
        self.tls = None if tls is None else TlsEntry(tls, timeout_s)
        self.proxies = proxies
        self.timeout_s = timeout_s
        self.takes_plain_text = tls is None or is_permissive
        self.waiting: set[Transport] = set()
        """The connections that have not entered."""
        self.closed = RateLimitedWarning("a connection was closed", "connections")

    def protocol(self, make: MakeStream) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection. `make` builds its stream when the connection has
        entered.
        """
        if self.proxies or self.tls is not None:
            return _FirstBytes(self, make)
        return cast(asyncio.BaseProtocol, make(None, None))

    def close(self) -> None:
        """Close the connections that have not entered."""
        for transport in list(self.waiting):
            transport.abort()


class _FirstBytes(Protocol):
    """A connection that has not entered: its first bytes or its TLS handshake are incomplete."""

    _transport: Transport
    _peer: str
    _timer: asyncio.TimerHandle
    _admission: AdmissionDecision | None = None
    """The admission, until the stream has it or the connection has ended."""

    def __init__(self, entry: ConnectionEntry, make: MakeStream) -> None:
        self._entry = entry
        self._make = make
        self._is_header_due = False
        self._reported: Endpoints | None = None
        self._received = b""

    def connection_made(self, transport: BaseTransport) -> None:
        """Admit the connection, and wait for the first bytes unless TLS begins at once."""
        self._transport = cast(Transport, transport)
        peername = transport.get_extra_info("peername")
        if not peername:  # the client has gone
            self._transport.abort()
            return
        entry, loop = self._entry, asyncio.get_running_loop()
        self._peer = str(peername[0])
        self._is_header_due = is_within(self._peer, entry.proxies)
        self._admission = entry.entrance.admit(None if self._is_header_due else self._peer)
        self._timer = loop.call_later(entry.timeout_s, self._time_out)
        entry.waiting.add(self._transport)
        if self._close_if_refused() or self._is_header_due or entry.takes_plain_text:
            return
        self._enter()

    def data_received(self, data: bytes) -> None:
        if self._admission is None or self._admission.refused is not None:
            self._transport.pause_reading()
            return
        self._received += data
        if self._is_header_due and not self._try_read_header(self._admission):
            return
        if self._received:
            self._enter()

    def connection_lost(self, _: Exception | None) -> None:
        self._forget()

    def _try_read_header(self, admission: AdmissionDecision) -> bool:
        """Read the header, and decide about the client that it reports.

        Return False if the connection cannot enter now.
        """
        try:
            header = read_proxy_header(self._received)
        except InvalidProxyHeader as error:
            self._close(error)
            return False
        if header is None:
            return False
        self._is_header_due = False
        self._reported = header.endpoints
        self._received = self._received[header.length :]
        if self._reported is not None:
            self._peer = self._reported[0][0]
        self._entry.entrance.identify(admission, self._peer)
        return not self._close_if_refused()

    def _close_if_refused(self) -> bool:
        """Return True if the connection is refused. It is closed when that is due."""
        admission = self._admission
        if admission is None or admission.refused is None:
            return False
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(admission.due_s, self._transport.abort)
        return True

    def _time_out(self) -> None:
        self._entry.entrance.count_refused(TOO_LATE, client=self._peer)
        self._transport.abort()

    def _close(self, error: BaseException) -> None:
        self._entry.closed.add(client=self._peer, why=str(error))
        self._transport.abort()

    def _enter(self) -> None:
        tls = self._entry.tls
        if tls is not None and (not self._entry.takes_plain_text or self._received.startswith(_HANDSHAKE)):
            entered = tls.protocol(self._make_stream, self._end_handshake)
        else:
            try:
                entered = cast(Protocol, self._make_stream())
            except ConnectionError as error:
                self._close(error)
                return
        self._transport.set_protocol(entered)
        entered.connection_made(self._transport)
        if self._received:
            entered.data_received(self._received)

    def _make_stream(self) -> SecuredStream:
        """Return the client's stream, which takes over the admission. Raises ConnectionError."""
        stream = self._make(self._reported, self._admission)
        self._admission = None
        self._forget()
        return stream

    def _end_handshake(self, handshake: asyncio.Task[None]) -> None:
        error = None if handshake.cancelled() else handshake.exception()
        if error is not None:
            self._close(error)
        self._forget()

    def _forget(self) -> None:
        if self._transport in self._entry.waiting:
            self._entry.waiting.discard(self._transport)
            self._timer.cancel()
        if self._admission is not None:
            self._entry.entrance.release(self._admission)
            self._admission = None
