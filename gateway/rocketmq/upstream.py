"""Connections to the servers behind the gateway: a line of the PROXY protocol, then TLS, then frames."""

import asyncio
import ssl
from ipaddress import ip_address
from typing import cast

from gateway.net.tls_entry import Endpoints, SecuredStream, join_tls
from gateway.upstream.connections import UpstreamLost
from kafka_why.connections.address import Address

_SIGNATURE_V2 = bytes.fromhex("0d0a0d0a000d0a515549540a")
_PROXY_TCP6 = bytes((0x21, 0x21))


def proxy_line(endpoints: Endpoints) -> bytes:
    """Return the PROXY protocol's line about a client's connection: version 1 for IPv4, 2 for IPv6.

    RocketMQ's servers detect it by themselves. Source: NettyRemotingServer.HandshakeHandler.
    """
    (host, port), (own_host, own_port) = endpoints
    if ip_address(host).version == 4:
        return f"PROXY TCP4 {host} {own_host} {port} {own_port}\r\n".encode()
    # The name of an interface (%eth0) has no place in the line.
    hosts = b"".join(ip_address(one.partition("%")[0]).packed for one in (host, own_host))
    found = hosts + port.to_bytes(2) + own_port.to_bytes(2)
    return _SIGNATURE_V2 + _PROXY_TCP6 + len(found).to_bytes(2) + found


async def open_upstream(
    address: str, stream: SecuredStream, *, tls: ssl.SSLContext | None, first: bytes, timeout_s: float
) -> None:
    """Connect a stream to this server, HOST:PORT, and write `first` before TLS. Raises UpstreamLost."""
    try:
        where = Address.parse(address)
        async with asyncio.timeout(timeout_s):
            await _open(where, stream, tls, first)
    except (OSError, ValueError) as error:  # a TimeoutError, and an error of TLS, are an OSError
        raise UpstreamLost(f"no connection to {address}: {error!r}") from error


async def accepts_connections(address: str, timeout_s: float) -> bool:
    """Return True if this server, HOST:PORT, can be connected to."""
    try:
        where = Address.parse(address)
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, where.host, where.port
            )
    except (OSError, ValueError):
        return False
    transport.abort()
    return True


async def _open(address: Address, stream: SecuredStream, tls: ssl.SSLContext | None, first: bytes) -> None:
    loop = asyncio.get_running_loop()
    socket, opening = await loop.create_connection(_Opening, address.host, address.port)
    if first:
        socket.write(first)
    if tls is None:
        socket.set_protocol(cast(asyncio.Protocol, stream))
        stream.connected(socket, socket)
    else:
        try:
            secured = await loop.start_tls(socket, opening, tls, server_hostname=address.host)
        except BaseException:
            socket.abort()
            raise
        assert secured is not None
        join_tls(secured, socket, stream)
    if opening.is_lost:
        raise ConnectionResetError("it closed the connection at once")


class _Opening(asyncio.Protocol):
    """The protocol until the stream has the connection. A server sends nothing by itself."""

    is_lost = False

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
