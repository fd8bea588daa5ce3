"""Opening of listeners."""

import asyncio
import socket
from asyncio import BaseProtocol
from collections.abc import Callable

from kafka_why.connections.address import Address

_BACKLOG = 1_024


class CannotListen(OSError):
    """The gateway cannot listen on an address."""


async def open_listener(
    where: Address, protocol: Callable[[], BaseProtocol], *, shares_ports: bool = False
) -> asyncio.Server:
    """Listen on this address, where port 0 is any free port. With `shares_ports` other processes may listen
    on the same port (SO_REUSEPORT). Raises CannotListen.
    """
    loop = asyncio.get_running_loop()
    try:
        # One address of a name that has several, because a free port is free at one address.
        found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        return await loop.create_server(
            protocol, str(found[0][4][0]), where.port, backlog=_BACKLOG, reuse_port=shares_ports
        )
    except OSError as error:
        raise CannotListen(f"cannot listen at {where}: {error}") from error


def port_of(server: asyncio.Server) -> int:
    """Return the port of a listener."""
    return int(server.sockets[0].getsockname()[1])
