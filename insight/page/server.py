"""The page as a process serves it: the thread that reads the topics, and the web server."""

import asyncio
import ipaddress
import socket
import threading
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from connections.client_config import ClientConfig
from insight.broker_groups import BrokerGroups
from insight.client_slots import ClientSlots
from insight.page.app import Sources, app
from insight.page.commands import Source
from insight.page.courses import Courses
from insight.page.deliveries import KeptDeliveries
from insight.page.fleet import Fleet
from insight.page.follower import Follower
from insight.page.histories import Histories
from insight.page.overview import OverviewThread
from insight.page.security import Access
from insight.page.service_topics import ServiceFollower, ServiceTopics
from insight.service_state import StateReader
from insight.why.deliveries.reading import read_deliveries
from insight.why.history import read_history
from records.layout import TopicLayout

MAX_CONNECTIONS = 500
BACKLOG = 128
_START_S = 30.0


class PageUnavailable(RuntimeError):
    """The page cannot be served; the message names the address and the reason."""


class Tls(NamedTuple):
    """The files of a certificate with its chain, and of its key (None if it is in the same file)."""

    certificate: Path
    key: Path | None = None


class _Connection(H11Protocol):
    """A connection of a reader, which has one of `slots`."""

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


def _bounded(max_connections: int) -> type[_Connection]:
    """Return the protocol of a server with so many connections."""

    class Bounded(_Connection):
        slots = ClientSlots(max_connections, lambda connection: connection.is_idle, ends_busy=True)

    return Bounded


class Web:
    """Serves an application on a listening socket, in a thread, from `start` to `stop`."""

    def __init__(
        self,
        served: ASGIApp,
        listening: socket.socket,
        tls: Tls | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._socket = listening
        self._server = uvicorn.Server(
            uvicorn.Config(
                served,
                log_config=None,
                access_log=False,
                http=_bounded(max_connections),
                timeout_graceful_shutdown=1,
                server_header=False,
                lifespan="off",
                ssl_certfile=None if tls is None else str(tls.certificate),
                ssl_keyfile=None if tls is None or tls.key is None else str(tls.key),
            )
        )
        self._thread = threading.Thread(target=self._serve, name="page", daemon=True)

    def start(self) -> None:
        """Serve. Raises PageUnavailable."""
        self._thread.start()
        give_up_s = time.monotonic() + _START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < give_up_s:
            self._thread.join(0.01)
        if not self._server.started:
            raise PageUnavailable("the web server of the page did not start")

    def stop(self) -> None:
        """End the server, and the responses that are under way."""
        self._server.should_exit = True
        self._thread.join()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


class Page:
    """Serves the page on a listening socket until stopped.

    If `access` is None, only the names of this machine's loopback address are answered. `connect_to` is the
    address that consumers connect to, `metrics_url` that of the coordinator's metrics, and `log` is where its
    log is. What is None is not known; without `log` nobody can ask for `whatif` and `replay`.
    `watches_broker`: no group should use the broker's own coordinator, so those that do are shown.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        listening: socket.socket,
        *,
        connect_to: str,
        access: Access | None = None,
        tls: Tls | None = None,
        log: Source | None = None,
        metrics_url: str | None = None,
        watches_broker: bool = False,
    ) -> None:
        fleet, topics = Fleet(layout), ServiceTopics(is_observed=layout.is_observed)
        self._follower = Follower(client_config, layout, fleet)
        self._overview = overview = OverviewThread(fleet)
        self._service = ServiceFollower(client_config, layout, topics)
        self._broker_groups = BrokerGroups(client_config) if watches_broker else None
        histories = Histories(partial(read_history, client_config, layout), fleet)
        self._courses = courses = Courses(histories, fleet)
        sources = Sources(
            fleet=fleet,
            lines=lambda: overview.lines,
            members=lambda: overview.members,
            lines_version=lambda: overview.version,
            histories=histories,
            courses=courses,
            read_age_s=self._follower.read_age_s,
            service_topics=topics,
            service_state=None if metrics_url is None else StateReader(metrics_url),
            connect_to=connect_to,
            log=log,
            deliveries=KeptDeliveries(partial(read_deliveries, client_config, layout)),
            broker_groups=lambda: [] if self._broker_groups is None else self._broker_groups.groups,
        )
        self._web = Web(app(sources, access or Access(names_of(listening))), listening, tls)

    def start(self) -> None:
        """Read the topics, and serve. Raises PageUnavailable."""
        self._follower.start()
        self._overview.start()
        self._service.start()
        if self._broker_groups is not None:
            self._broker_groups.start()
        self._web.start()

    def stop(self) -> None:
        """End both, which takes as long as a request to the brokers at most."""
        self._web.stop()
        if self._broker_groups is not None:
            self._broker_groups.stop()
        self._service.stop()
        self._courses.close()
        self._overview.stop()
        self._follower.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listening_at(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means any free port. Raises PageUnavailable."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PageUnavailable(f"cannot serve the page on {host}:{port}: {error.strerror}") from error


def url_of(listening: socket.socket, *, has_tls: bool = False) -> str:
    """The address for a browser."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if has_tls else 'http'}://{_in_url(host)}:{port}/"


def names_of(listening: socket.socket) -> list[str]:
    """The names, with the port, by which a browser on this machine reaches a listening socket."""
    host, port = listening.getsockname()[:2]
    return [f"{name}:{port}" for name in (_in_url(host), "localhost", "127.0.0.1", "[::1]")]


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
