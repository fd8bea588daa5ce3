"""The PROXY protocol: the header in which a load balancer, or this gateway, reports a client's addresses.

Source: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from struct import Struct as Layout
from typing import NamedTuple

from gateway.net.tls_entry import Endpoints

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
