"""A bound on connections that one client cannot use up for all others."""

import ipaddress
import threading
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def client_network(host: str) -> str:
    """Return the network that counts as one client: an IPv4 address, the /64 of an IPv6 address, or all of
    the loopback network, in which each process may take any address.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return "loopback"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class ClientSlots(Generic[T]):
    """At most `total` holders of a slot, such as connections. Threads may share it.

    There is no bound for each client, because a proxy has the address of everyone behind it. But when all
    slots are taken, a new holder gets one of the client that has the most: of the oldest holder that is idle,
    else of the oldest one if `ends_busy`.
    """

    def __init__(self, total: int, is_idle: Callable[[T], bool], *, ends_busy: bool) -> None:
        self._total = total
        self._is_idle = is_idle
        self._ends_busy = ends_busy
        self._lock = threading.Lock()
        self._clients: dict[T, str] = {}
        """The clients of all holders, the oldest holder first."""

    def add(self, host: str, holder: T) -> T | None:
        """Give a slot to a holder. Return the holder that has to end: None if a slot was free, the new one if
        it gets none.
        """
        client = client_network(host)
        with self._lock:
            ended = None if len(self._clients) < self._total else self._loser(client)
            if ended is None and len(self._clients) >= self._total:
                return holder
            if ended is not None:
                del self._clients[ended]
            self._clients[holder] = client
            return ended

    def remove(self, holder: T) -> None:
        """Free the slot of a holder, if it has one."""
        with self._lock:
            self._clients.pop(holder, None)

    def _loser(self, client: str) -> T | None:
        """Return the holder that gives its slot to a client: one of its own if no other client has more."""
        numbers = Counter(self._clients.values())
        greediest = max(numbers, key=lambda other: (numbers[other], other == client))
        theirs = [holder for holder, other in self._clients.items() if other == greediest]
        busy = theirs[0] if self._ends_busy else None
        return next(filter(self._is_idle, theirs), busy)
