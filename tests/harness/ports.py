"""Free ports of this machine."""

from embedded.java import HOST, is_free, shuffled_free_ports
from kafka_why.connections.address import Address


def free_port() -> int:
    """Return a port that no process listens on now. Another process may take it."""
    return gateway_port(above=0)


def gateway_port(above: int = 2) -> int:
    """Return a port on which a gateway can be restarted. The `above` ports after it are free, too."""
    return next(
        port for port in shuffled_free_ports() if all(map(is_free, range(port + 1, port + above + 1)))
    )


def free_address() -> Address:
    """Return an address at which a gateway can be started again."""
    return Address(HOST, gateway_port())
