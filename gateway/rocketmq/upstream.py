"""Connections to the servers behind the gateway: a header of the PROXY protocol, then TLS, then frames."""

import asyncio
import ssl
from typing import cast

from gateway.net.tls_entry import Endpoint, join_tls
from gateway.upstream.connections import UpstreamLost
from kafka_why.connections.address import Address


async def open_upstream(
    address: str, stream: Endpoint, *, tls: ssl.SSLContext | None, first: bytes, timeout_s: float
) -> None:
    """Connect a stream to the server `address`, HOST:PORT, and write `first` before TLS. Raises
    UpstreamLost.
    """
    try:
        where = Address.parse(address)
        async with asyncio.timeout(timeout_s):
            await _open(where, stream, tls, first)
    except (OSError, ValueError) as error:  # a TimeoutError, and an error of TLS, are an OSError
        raise UpstreamLost(f"no connection to {address}: {error!r}") from error


async def _open(address: Address, stream: Endpoint, tls: ssl.SSLContext | None, first: bytes) -> None:
    loop = asyncio.get_running_loop()
    socket, opening = await loop.create_connection(_Opening, address.host, address.port)
    if first:
        socket.write(first)
    if tls is None:
        socket.set_protocol(cast(asyncio.Protocol, stream))
        stream.connected(socket, socket)
    else:
        try:
            tls_transport = await loop.start_tls(socket, opening, tls, server_hostname=address.host)
        except BaseException:
            socket.abort()
            raise
        assert tls_transport is not None, "the handshake is complete"
        join_tls(tls_transport, socket, stream)
    if opening.is_lost:
        raise ConnectionResetError("it closed the connection at once")


class _Opening(asyncio.Protocol):
    """The protocol until the stream has the connection. A server sends nothing before the first request."""

    is_lost = False

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
