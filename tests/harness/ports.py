"""Free ports of this machine."""

import socket
from contextlib import closing

from embedded.broker import HOST


def free_port() -> int:
    """A port that no process listens on now. Another process may take it."""
    with closing(socket.create_server((HOST, 0))) as server:
        return int(server.getsockname()[1])
