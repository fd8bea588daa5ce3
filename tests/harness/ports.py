"""Free ports of this machine."""

import random
import socket
from contextlib import ExitStack, suppress

from embedded.java import HOST
from kafka_why.connections.address import Address

# Below Linux's ephemeral range, because an outgoing connection may take a port of that meanwhile.
_LASTING = range(20_000, 32_000)


def free_port() -> int:
    """Return a port that no process listens on now. Another process may take it."""
    return gateway_port(above=0)


def gateway_port(above: int = 2) -> int:
    """Return a port on which a gateway can be restarted. The `above` ports after it are free, too."""
    while True:
        port = random.choice(_LASTING)
        with ExitStack() as stack, suppress(OSError):
            for number in range(port, port + above + 1):
                stack.enter_context(socket.socket()).bind((HOST, number))
            return port


def free_address() -> Address:
    """Return an address at which a gateway can be started again."""
    return Address(HOST, gateway_port())
