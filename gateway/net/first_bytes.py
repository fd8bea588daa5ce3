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
from gateway.net.listener import AdmissionDecision, ConnectionQuotas
from gateway.net.tls_entry import Endpoint, Endpoints, TlsEntry

# The PROXY protocol: the header in which a load balancer, or this gateway, reports a client's addresses.


Network = IPv4Network | IPv6Network

# Version 1 is a line of text.
_LINE_START = b"PROXY "
_LINE_MAX_BYTES = 107
# Version 2 is binary: signature, version and command, family, length of the rest; then addresses and ports.
_SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
_FIXED_PART = Layout(">12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21
_ADDRESSES_OF_TCP4, _ADDRESSES_OF_TCP6 = Layout(">4s4sHH"), Layout(">16s16sHH")
_ADDRESS_TYPES: dict[str, type[IPv4Address | IPv6Address]] = {"TCP4": IPv4Address, "TCP6": IPv6Address}


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
    # `data` may have only a part of the header.
    if _LINE_START.startswith(data[: len(_LINE_START)]):
        return _read_version_1(data)
    if _SIGNATURE.startswith(data[: len(_SIGNATURE)]):
        return _read_version_2(data)
    raise InvalidProxyHeader("a load balancer's connection does not begin with the PROXY protocol's header")


def _read_version_1(data: bytes) -> ProxyHeader | None:
    """Read `PROXY TCP4 CLIENT OWN CLIENT-PORT OWN-PORT`, the same with `TCP6`, or `PROXY UNKNOWN ...` for no
    endpoints.
    """
    end = data.find(b"\r\n", 0, _LINE_MAX_BYTES)
    if end < 0:
        if len(data) >= _LINE_MAX_BYTES:
            raise InvalidProxyHeader("the PROXY protocol's line is too long")
        return None
    length = end + 2
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(endpoints=None, length=length)
    try:
        _, family, host, own_host, port, own_port = words
        parse_address = _ADDRESS_TYPES[family]
        endpoints = (
            (str(_unmapped(parse_address(host))), _port(port)),
            (str(_unmapped(parse_address(own_host))), _port(own_port)),
        )
    except (ValueError, KeyError) as error:
        raise InvalidProxyHeader(f"the PROXY protocol's line cannot be read: {error}") from error
    return ProxyHeader(endpoints, length)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 0xFFFF):
        raise ValueError(f"{text!r} is no port")
    return int(text)


def _read_version_2(data: bytes) -> ProxyHeader | None:
    """Read a binary header. It has no endpoints if it is LOCAL, or of another family than TCP."""
    if len(data) < _FIXED_PART.size:
        return None
    _, command, family, rest_bytes = _FIXED_PART.unpack_from(data)
    if command not in (_LOCAL, _PROXY):
        raise InvalidProxyHeader(f"the PROXY protocol's header has version and command {command:#x}")
    layout = {_TCP4: _ADDRESSES_OF_TCP4, _TCP6: _ADDRESSES_OF_TCP6}.get(family)
    if command == _PROXY and layout is not None and rest_bytes < layout.size:
        raise InvalidProxyHeader(f"the PROXY protocol's header has {rest_bytes} bytes of addresses")
    length = _FIXED_PART.size + rest_bytes
    if len(data) < length:
        return None
    if command == _LOCAL or layout is None:
        return ProxyHeader(endpoints=None, length=length)
    packed_host, own_packed_host, port, own_port = layout.unpack_from(data, _FIXED_PART.size)
    host, own_host = (str(_unmapped(ip_address(packed))) for packed in (packed_host, own_packed_host))
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
    # Version 2 has two addresses of one family, so an IPv4 address is written as an IPv6 address.
    hosts = [IPv6Address(f"::ffff:{a}" if a.version == 4 else a.packed).packed for a in addresses]
    return _FIXED_PART.pack(_SIGNATURE, _PROXY, _TCP6, _ADDRESSES_OF_TCP6.size) + _ADDRESSES_OF_TCP6.pack(
        *hosts, port, own_port
    )


# The entry of new connections, until a client's stream is built.


_HANDSHAKE = b"\x16"
"""The first byte of a TLS client: the type of a record of the handshake."""

MakeStream = Callable[[Endpoints | None, AdmissionDecision | None], Endpoint]
"""Builds the stream of a client from the endpoints that a load balancer has reported, or None, and from its
admission, or None if it was not admitted before.
"""


class ConnectionEntry:
    """The entry of new connections to a gateway's listeners. A connection has entered when its first bytes
    and its TLS handshake are complete, and the client's stream is built.

    With `tls` clients have to use TLS. If `is_permissive`, they may also use plain text. Connections from
    `proxies` have to begin with a header of the PROXY protocol. A client that does not send its first bytes
    and complete its handshake within `timeout_s` is disconnected.

    `connection_quotas` also count connections whose first bytes are due, by IP address. For a connection from
    `proxies` this is the client's address in the header, because a load balancer has many clients.
    """

    def __init__(
        self,
        connection_quotas: ConnectionQuotas,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        proxies: tuple[Network, ...],
        *,
        is_permissive: bool = False,
    ) -> None:
        self.connection_quotas = connection_quotas
        self.tls = None if tls is None else TlsEntry(tls, timeout_s)
        self.proxies = proxies
        self.timeout_s = timeout_s
        self.takes_plain_text = tls is None or is_permissive
        self.waiting: set[Transport] = set()
        """The connections that have not entered."""
        self.closed_warning = RateLimitedWarning("a connection was closed", "connections")

    def protocol(self, make_stream: MakeStream) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection. `make_stream` builds its stream when the connection has
        entered.
        """
        if self.proxies or self.tls is not None:
            return _FirstBytes(self, make_stream)
        reported, admission = None, None
        return cast(asyncio.BaseProtocol, make_stream(reported, admission))

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

    def __init__(self, entry: ConnectionEntry, make_stream: MakeStream) -> None:
        self._entry = entry
        self._build_stream = make_stream
        self._is_header_due = False
        """True until a load balancer has sent its whole header."""
        self._reported: Endpoints | None = None
        self._received = b""
        """The received bytes, without the header once it is complete."""

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
        self._admission = entry.connection_quotas.admit(None if self._is_header_due else self._peer)
        self._timer = loop.call_later(entry.timeout_s, self._time_out)
        entry.waiting.add(self._transport)
        # If clients may use plain text, their first byte decides whether they use TLS.
        needs_first_bytes = self._is_header_due or entry.takes_plain_text
        if not self._close_if_refused() and not needs_first_bytes:
            self._enter()

    def data_received(self, data: bytes) -> None:
        """Buffer the first bytes until the client can enter."""
        if self._admission is None or self._admission.refused is not None:
            self._transport.pause_reading()  # the connection is about to be closed
            return
        self._received += data
        if self._is_header_due and not self._try_read_header(self._admission):
            return
        if self._received:  # a header may come alone
            self._enter()

    def connection_lost(self, _: Exception | None) -> None:
        self._leave_entry()

    def _try_read_header(self, admission: AdmissionDecision) -> bool:
        """Read the header, and decide about the client that it reports.

        Return False if the connection cannot enter now: the header is incomplete or invalid, or the client is
        refused.
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
        self._entry.connection_quotas.identify(admission, self._peer)
        return not self._close_if_refused()

    def _close_if_refused(self) -> bool:
        """If the connection is refused, schedule its end at `due_s` of the decision, and return True."""
        admission = self._admission
        if admission is None or admission.refused is None:
            return False
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(admission.due_s, self._transport.abort)
        return True

    def _time_out(self) -> None:
        self._entry.connection_quotas.count_refused(TOO_LATE, client=self._peer)
        self._transport.abort()

    def _close(self, error: BaseException) -> None:
        self._entry.closed_warning.add(client=self._peer, why=str(error))
        self._transport.abort()

    def _enter(self) -> None:
        """Hand the connection over to the TLS handshake or, for plain text, to the client's stream, with the
        bytes received so far.
        """
        tls = self._entry.tls
        is_tls = not self._entry.takes_plain_text or self._received.startswith(_HANDSHAKE)
        if tls is not None and is_tls:
            next_protocol = tls.protocol(self._make_stream, self._end_handshake)
        else:
            try:
                next_protocol = cast(Protocol, self._make_stream())
            except ConnectionError as error:
                self._close(error)
                return
        self._transport.set_protocol(next_protocol)
        next_protocol.connection_made(self._transport)
        if self._received:
            next_protocol.data_received(self._received)

    def _make_stream(self) -> Endpoint:
        """Return the client's stream, which takes over the admission. Raises ConnectionError."""
        stream = self._build_stream(self._reported, self._admission)
        self._admission = None
        self._leave_entry()
        return stream

    def _end_handshake(self, handshake: asyncio.Task[None]) -> None:
        """Close the connection if the task of the handshake failed."""
        error = None if handshake.cancelled() else handshake.exception()
        if error is not None:
            self._close(error)
        self._leave_entry()

    def _leave_entry(self) -> None:
        """Stop the timer, and release the admission unless the client's stream has it."""
        if self._transport in self._entry.waiting:
            self._entry.waiting.discard(self._transport)
            self._timer.cancel()
        if self._admission is not None:
            self._entry.connection_quotas.release(self._admission)
            self._admission = None
