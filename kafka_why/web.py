"""The HTTP server of a process: the page, or its metrics and health. One application on one socket."""

import asyncio
import ipaddress
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kafka_why.errors import UserFacingError
from kafka_why.lifetimes import Startable

T = TypeVar("T")


def client_network(host: str) -> str:
    """Return the network that counts as one client: an IPv4 address, an IPv6 /64, or the loopback."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        # A process may use any loopback address.
        return "loopback"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class ClientSlots(Generic[T]):
    """A limiter with `total` slots, such as for connections, which clients share. Thread-safe.

    There is no limit per client, because all clients behind a proxy have its address. When all slots are
    taken, a new holder replaces a holder of the client with the most slots: the oldest idle one or, with
    `ends_busy`, the oldest one if none is idle.
    """

    def __init__(self, total: int, is_idle: Callable[[T], bool], *, ends_busy: bool) -> None:
        self._total = total
        self._is_idle = is_idle
        self._ends_busy = ends_busy
        self._lock = threading.Lock()
        self._client_of: dict[T, str] = {}  # the client of each holder, the oldest holder first

    def add(self, host: str, holder: T) -> T | None:
        """Give a slot to a holder. Return the replaced holder, or None if a slot was free.

        Return `holder` itself if it gets no slot.
        """
        client = client_network(host)
        with self._lock:
            has_free_slot = len(self._client_of) < self._total
            replaced = None if has_free_slot else self._holder_to_replace(client)
            if replaced is None and not has_free_slot:
                return holder
            if replaced is not None:
                del self._client_of[replaced]
            self._client_of[holder] = client
            return replaced

    def remove(self, holder: T) -> None:
        """Free the slot of a holder, if it has one."""
        with self._lock:
            self._client_of.pop(holder, None)

    def _holder_to_replace(self, client: str) -> T | None:
        """Return the holder whose slot `client` gets, or None if it gets none.

        It is a holder of the client with the most slots. If several have the most, it is one of `client`.
        """
        slots = Counter(self._client_of.values())
        greediest = max(slots, key=lambda other: (slots[other], other == client))
        candidates = [holder for holder, other in self._client_of.items() if other == greediest]
        if_none_is_idle = candidates[0] if self._ends_busy else None
        return next(filter(self._is_idle, candidates), if_none_is_idle)


MAX_CONNECTIONS = 500
BACKLOG = 128  # of the listening socket
_START_TIMEOUT_S = 30.0


class WebUnavailable(UserFacingError):
    """The error when a port cannot be served. Its message has the address and the reason."""


class TlsFiles(NamedTuple):
    """The files of a certificate with its chain."""

    certificate: Path
    key: Path | None = None  # None if the certificate's file has it


class _Connection(H11Protocol):
    """A client's connection, which has one of `slots`."""

    slots: ClassVar[ClientSlots["_Connection"]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        replaced = self.slots.add(self.client[0] if self.client else "", self)
        if replaced is not None:  # this connection itself, if it gets no slot
            replaced.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.slots.remove(self)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """True if no request is in progress or completely received."""
        # None before the first request, which uvicorn leaves out of the type.
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]


def _connection_class(max_connections: int, *, ends_busy: bool) -> type[_Connection]:
    """Return a class of connections with its own slots, because uvicorn constructs the connections itself."""

    class Bounded(_Connection):
        slots = ClientSlots(max_connections, lambda connection: connection.is_idle, ends_busy=ends_busy)

    return Bounded


class WebServer(Startable):
    """A server of an application on a listening socket, in a thread, from `start` to `stop`.

    For `ends_busy` see `ClientSlots`.
    """

    def __init__(
        self,
        served: ASGIApp,
        listening: socket.socket,
        tls: TlsFiles | None = None,
        max_connections: int = MAX_CONNECTIONS,
        *,
        ends_busy: bool = True,
    ) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                served,
                log_config=None,
                access_log=False,
                http=_connection_class(max_connections, ends_busy=ends_busy),
                timeout_graceful_shutdown=1,
                server_header=False,
                lifespan="off",
                ssl_certfile=None if tls is None else str(tls.certificate),
                ssl_keyfile=None if tls is None or tls.key is None else str(tls.key),
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([listening],), name="web", daemon=True)

    def start(self) -> None:
        """Start to serve. Raises WebUnavailable."""
        self._thread.start()
        give_up_s = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < give_up_s:
            self._thread.join(0.01)
        if not self._server.started:
            raise WebUnavailable("the web server did not start")

    def stop(self) -> None:
        """Stop the server, and end the responses in progress."""
        self._server.should_exit = True
        self._thread.join()


def listening_at(host: str, port: int, served: str = "the page") -> socket.socket:
    """Return a listening socket. Port 0 means any free port. Raises WebUnavailable.

    `served` names what the port serves, for the error.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise WebUnavailable(f"cannot serve {served} on {host}:{port}: {error.strerror}") from error


def url_of(listening: socket.socket, *, has_tls: bool = False) -> str:
    """Return the URL of a listening socket, for a browser."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if has_tls else 'http'}://{_in_url(host)}:{port}/"


def names_of(listening: socket.socket) -> list[str]:
    """Return the `host:port` names by which a browser on this machine can reach a listening socket."""
    host, port = listening.getsockname()[:2]
    return [f"{name}:{port}" for name in (_in_url(host), "localhost", "127.0.0.1", "[::1]")]


def _in_url(host: str) -> str:
    """Return a host as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
