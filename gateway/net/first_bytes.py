"""The first bytes of clients' connections: a load balancer's header of the PROXY protocol, and the choice
between TLS and plain text.

RocketMQ's servers have both on one port, too. Source: NettyRemotingServer.HandshakeHandler, TlsModeHandler.
"""

import asyncio
import ssl
from asyncio import BaseTransport, Protocol, Transport
from collections.abc import Callable
from functools import partial
from typing import cast

from gateway.log_text import RateLimitedWarning
from gateway.net.proxy_protocol import InvalidProxyHeader, Network, is_within, read_proxy_header
from gateway.net.tls_entry import Endpoints, SecuredStream, TlsEntry

_HANDSHAKE = b"\x16"
"""The first byte of a TLS client: the type of a record of the handshake."""

MakeStream = Callable[[Endpoints | None], SecuredStream]
"""Builds the stream of a client from the endpoints that a load balancer has reported, or from None."""


class ConnectionEntry:
    """The entry of all connections to a gateway's listeners.

    With `tls` clients have to use TLS. If `is_permissive`, they may also use plain text. Connections from
    `proxies` have to begin with a header of the PROXY protocol. A client that does not send its first bytes
    or complete its handshake within `timeout_s` is disconnected.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        proxies: tuple[Network, ...],
        *,
        is_permissive: bool = False,
    ) -> None:
        self.tls = None if tls is None else TlsEntry(tls, timeout_s)
        self.is_permissive = is_permissive
        self.proxies = proxies
        self.timeout_s = timeout_s
        self.waiting: set[Transport] = set()
        self.refused = RateLimitedWarning("a connection was closed", "connections")

    def protocol(self, make: MakeStream) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection. `make` builds its stream when the connection has
        entered.
        """
        if self.proxies or (self.tls is not None and self.is_permissive):
            return _FirstBytes(self, make)
        if self.tls is not None:
            return self.tls.protocol(partial(make, None))
        return cast(asyncio.BaseProtocol, make(None))

    def close(self) -> None:
        """Close the connections that have not entered."""
        for transport in list(self.waiting):
            transport.abort()
        if self.tls is not None:
            self.tls.close()


class _FirstBytes(Protocol):
    """A connection whose first bytes have not arrived."""

    _transport: Transport
    _timer: asyncio.TimerHandle

    def __init__(self, entry: ConnectionEntry, make: MakeStream) -> None:
        self._entry = entry
        self._make = make
        self._is_header_due = False
        self._reported: Endpoints | None = None
        self._received = b""

    def connection_made(self, transport: BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = cast(Transport, transport)
        self._is_header_due = is_within(self._peer, self._entry.proxies)
        self._entry.waiting.add(self._transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._entry.timeout_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read the load balancer's header if it is due, and enter when the client's first byte has
        arrived.
        """
        self._received += data
        if self._is_header_due:
            try:
                header = read_proxy_header(self._received)
            except InvalidProxyHeader as error:
                self._entry.refused.add(client=self._peer, why=str(error))
                self._transport.abort()
                return
            if header is None:
                return
            self._is_header_due = False
            self._reported = header.endpoints
            self._received = self._received[header.length :]
        if self._received:
            self._enter()

    def connection_lost(self, _: Exception | None) -> None:
        """Forget a connection that has not entered."""
        self._forget()

    def _enter(self) -> None:
        self._forget()
        tls, make = self._entry.tls, partial(self._make, self._reported)
        if tls is not None and (not self._entry.is_permissive or self._received.startswith(_HANDSHAKE)):
            entered = tls.protocol(make)
        else:
            entered = cast(Protocol, make())
        self._transport.set_protocol(entered)
        entered.connection_made(self._transport)
        entered.data_received(self._received)

    def _forget(self) -> None:
        self._timer.cancel()
        self._entry.waiting.discard(self._transport)

    @property
    def _peer(self) -> str:
        return str(self._transport.get_extra_info("peername")[0])
