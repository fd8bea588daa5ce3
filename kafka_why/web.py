"""The HTTP server of a process: the page, or its metrics and health. One application on one socket."""

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kafka_why.connection_limit import ClientSlots
from kafka_why.lifetimes import Startable

MAX_CONNECTIONS = 500
BACKLOG = 128
_START_S = 30.0


class WebUnavailable(RuntimeError):
    """A port cannot be served; the message names the address and the reason."""


class Tls(NamedTuple):
    """The files of a certificate with its chain, and of its key (None if it is in the same file)."""

    certificate: Path
    key: Path | None = None


class _Connection(H11Protocol):
    """A client's connection, which has one of `slots`."""

    slots: ClassVar[ClientSlots["_Connection"]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        ended = self.slots.add(self.client[0] if self.client else "", self)
        if ended is not None:
            ended.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.slots.remove(self)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """True if no request is under way, or none has come as a whole."""
        # None before the first request, which uvicorn leaves out of the type.
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]


def _bounded(max_connections: int, *, ends_busy: bool) -> type[_Connection]:
    """Return the protocol of a server with at most this number of connections."""

    class Bounded(_Connection):
        slots = ClientSlots(max_connections, lambda connection: connection.is_idle, ends_busy=ends_busy)

    return Bounded


class Web(Startable):
    """Serves an application on a listening socket, in a thread, from `start` to `stop`. For `ends_busy` see
    `ClientSlots`.
    """

    def __init__(
        self,
        served: ASGIApp,
        listening: socket.socket,
        tls: Tls | None = None,
        max_connections: int = MAX_CONNECTIONS,
        *,
        ends_busy: bool = True,
    ) -> None:
        self._socket = listening
        self._server = uvicorn.Server(
            uvicorn.Config(
                served,
                log_config=None,
                access_log=False,
                http=_bounded(max_connections, ends_busy=ends_busy),
                timeout_graceful_shutdown=1,
                server_header=False,
                lifespan="off",
                ssl_certfile=None if tls is None else str(tls.certificate),
                ssl_keyfile=None if tls is None or tls.key is None else str(tls.key),
            )
        )
        self._thread = threading.Thread(target=self._serve, name="web", daemon=True)

    def start(self) -> None:
        """Serve. Raises WebUnavailable."""
        self._thread.start()
        give_up_s = time.monotonic() + _START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < give_up_s:
            self._thread.join(0.01)
        if not self._server.started:
            raise WebUnavailable("the web server did not start")

    def stop(self) -> None:
        """End the server, and the responses that are under way."""
        self._server.should_exit = True
        self._thread.join()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def listening_at(host: str, port: int, served: str = "the page") -> socket.socket:
    """Return a listening socket; port 0 means any free port. `served` names its use in the message of
    WebUnavailable, which this raises.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise WebUnavailable(f"cannot serve {served} on {host}:{port}: {error.strerror}") from error


def url_of(listening: socket.socket, *, has_tls: bool = False) -> str:
    """Return the address for a browser."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if has_tls else 'http'}://{_in_url(host)}:{port}/"


def names_of(listening: socket.socket) -> list[str]:
    """Return the names, with the port, by which a browser on this machine reaches a listening socket."""
    host, port = listening.getsockname()[:2]
    return [f"{name}:{port}" for name in (_in_url(host), "localhost", "127.0.0.1", "[::1]")]


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
