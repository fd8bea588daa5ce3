"""The first bytes of clients' connections: a load balancer's header of the PROXY protocol, and the choice
between TLS and plain text.

RocketMQ's servers have both on one port, too. Source: NettyRemotingServer.HandshakeHandler, TlsModeHandler.
"""

import asyncio
import ssl
from asyncio import BaseTransport, Protocol, Transport
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from struct import Struct as Layout
from typing import NamedTuple, cast

from gateway.log_text import RateLimitedWarning
from gateway.metrics.numbers import TOO_LATE
from gateway.net.listener import AdmissionDecision, Entrance
from gateway.net.tls_entry import Endpoints, SecuredStream, TlsEntry

# The PROXY protocol: the header in which a load balancer, or this gateway, reports a client's addresses.


Network = IPv4Network | IPv6Network

_LINE = b"PROXY "
_LINE_MAX_BYTES = 107
_SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
_FIXED = Layout(">12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21
_OF_TCP4, _OF_TCP6 = Layout(">4s4sHH"), Layout(">16s16sHH")
_ADDRESSES: dict[str, type[IPv4Address | IPv6Address]] = {"TCP4": IPv4Address, "TCP6": IPv6Address}


class InvalidProxyHeader(ConnectionError):
    """The bytes are not a header of the PROXY protocol."""


class ProxyHeader(NamedTuple):
    """A header of `length` bytes.

    `endpoints` are the client's address, and the address that the client connected to. They are None for a
    connection of the load balancer itself, such as a check.
    """

    endpoints: Endpoints | None
    length: int


def parse_network(text: str) -> Network:
    """Parse `10.0.0.0/8` or `10.0.0.1`. Raises ValueError."""
    return ip_network(text.strip())


def is_within(host: str, networks: tuple[Network, ...]) -> bool:
    """Return True if one of the networks has this IP address."""
    try:
        address = _unmapped(ip_address(host))
    except ValueError:
        return False
    return any(address in network for network in networks)


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address in an IPv6 address such as ::ffff:10.0.0.1, or any other address unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Return the header at the beginning of `data`, or None if a part of it is missing. Raises
    InvalidProxyHeader.
    """
    if _LINE.startswith(data[: len(_LINE)]):
        return _read_version_1(data)
    if _SIGNATURE.startswith(data[: len(_SIGNATURE)]):
        return _read_version_2(data)
    raise InvalidProxyHeader("a load balancer's connection does not begin with the PROXY protocol's header")


def _read_version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _LINE_MAX_BYTES)
    if end < 0:
        if len(data) >= _LINE_MAX_BYTES:
            raise InvalidProxyHeader("the PROXY protocol's line is too long")
        return None
    length = end + 2
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(None, length)
    try:
        _, family, host, own_host, port, own_port = words
        read = _ADDRESSES[family]
        endpoints = (
            (str(_unmapped(read(host))), _port(port)),
            (str(_unmapped(read(own_host))), _port(own_port)),
        )
    except (ValueError, KeyError) as error:
        raise InvalidProxyHeader(f"the PROXY protocol's line cannot be read: {error}") from error
    return ProxyHeader(endpoints, length)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 0xFFFF):
        raise ValueError(f"{text!r} is no port")
    return int(text)


def _read_version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED.size:
        return None
    _, command, family, rest = _FIXED.unpack_from(data)
    if command not in (_LOCAL, _PROXY):
        raise InvalidProxyHeader(f"the PROXY protocol's header has version and command {command:#x}")
    layout = {_TCP4: _OF_TCP4, _TCP6: _OF_TCP6}.get(family)
    if command == _PROXY and layout is not None and rest < layout.size:
        raise InvalidProxyHeader(f"the PROXY protocol's header has {rest} bytes of addresses")
    length = _FIXED.size + rest
    if len(data) < length:
        return None
    if command == _LOCAL or layout is None:
        return ProxyHeader(None, length)
    packed, own_packed, port, own_port = layout.unpack_from(data, _FIXED.size)
    host, own_host = (str(_unmapped(ip_address(one))) for one in (packed, own_packed))
    return ProxyHeader(((host, port), (own_host, own_port)), length)


def proxy_header(endpoints: Endpoints) -> bytes:
    """Return the header about a client's connection: version 1 for IPv4, 2 for IPv6.

    RocketMQ's servers detect the header by themselves. Source: NettyRemotingServer.HandshakeHandler.
    """
    (host, port), (own_host, own_port) = endpoints
    # The name of an interface (%eth0) has no place in the header.
    addresses = [ip_address(text.partition("%")[0]) for text in (host, own_host)]
    if all(isinstance(address, IPv4Address) for address in addresses):
        return f"PROXY TCP4 {host} {own_host} {port} {own_port}\r\n".encode()
    hosts = [IPv6Address(f"::ffff:{it}" if it.version == 4 else it.packed).packed for it in addresses]
    return _FIXED.pack(_SIGNATURE, _PROXY, _TCP6, _OF_TCP6.size) + _OF_TCP6.pack(*hosts, port, own_port)


# The first bytes of clients' connections: a load balancer's header of the PROXY protocol, and the choice
# between TLS and plain text.


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
