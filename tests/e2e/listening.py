"""The addresses at which processes listen, and at which this machine can reach them."""

import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from kafka_why.connections.address import Address

LOOPBACK = "127.0.0.1"
# On Linux all of 127.0.0.0/8 is this machine: who listens at every address is reached at this one, too.
OTHER_LOOPBACK = "127.0.0.2"
_LISTEN = "0A"


def addresses_of_this_machine() -> list[str]:
    """Return two loopback addresses, and the one that other machines would use, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with suppress(OSError):  # a machine without a route has no such address
            probe.connect(("192.0.2.1", 9))  # for documentation (RFC 5737); UDP sends nothing yet
        outer = probe.getsockname()[0]
    return [LOOPBACK, OTHER_LOOPBACK, *([] if outer in ("0.0.0.0", LOOPBACK) else [outer])]


def connects(host: str, port: int) -> bool:
    """Return True if a process listens at this address."""
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def listening_at(pids: Iterable[int]) -> set[Address]:
    """Return the TCP addresses that these processes listen at. An IPv4 address has its IPv4 form."""
    sockets = {link for pid in pids for link in links_of(pid)}
    return {
        _address(local)
        for table in ("tcp", "tcp6")
        for _, local, _, state, *rest in map(str.split, _rows(table))
        if state == _LISTEN and f"socket:[{rest[5]}]" in sockets
    }


def links_of(pid: int) -> list[str]:
    """Return the targets of a process's open files. Some may be closed meanwhile."""
    found = []
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(str(link.readlink()))
    return found


def _rows(table: str) -> list[str]:
    return Path(f"/proc/net/{table}").read_text().splitlines()[1:]


def _address(text: str) -> Address:
    """Parse the kernel's text: words of four bytes, each in the byte order of an x86 or ARM machine."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
    packed = b"".join(words)
    if len(packed) == 4:
        return Address(socket.inet_ntop(socket.AF_INET, packed), int(port, 16))
    return Address(socket.inet_ntop(socket.AF_INET6, packed).removeprefix("::ffff:"), int(port, 16))
