"""Listeners: the objects that their connections share, their opening, and the admission of connections."""

import asyncio
import resource
import socket
from asyncio import BaseProtocol, Future
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from gateway.apis.context import Services
from gateway.fairness import CapacityLimiter
from gateway.limits import Limits, Quotas
from gateway.log_text import RateLimitedWarning
from gateway.metrics.numbers import DRAINING, TOO_MANY, TOO_MANY_OF_IP, TOO_OFTEN_OF_IP, GatewayCounts
from gateway.net.lifecycle import ClientGone
from gateway.net.limits.requests import ForwardingLimiter, LargeRequestRate, ParkedMemoryLimit
from gateway.security.authentication import ListenerSecurity
from gateway.upstream.api_versions import CachedApiVersions
from gateway.upstream.connections import Upstream
from gateway.wire.framing import ProtocolError
from kafka_why.connections.address import Address


class AuthenticationFailed(ConnectionError):
    """The client did not authenticate, or its authentication failed."""


class ConnectionLog:
    """The log lines about ended connections. Clients can cause any number of them, so they are limited
    (`RateLimitedWarning`).
    """

    def __init__(self) -> None:
        self.closed = RateLimitedWarning("a connection was closed", "connections")
        self.failed = RateLimitedWarning("a connection failed", "connections", level="error")

    def log_end(self, client: str, errors: ExceptionGroup[Exception]) -> str:
        """Log the reason why a connection ended, unless the client closed it. Return the reason for the
        metrics.
        """
        gone, others = errors.split(ClientGone)
        if others is None:
            assert gone is not None
            return gone.exceptions[0].reason  # type: ignore[union-attr]
        broken, failed = others.split((ProtocolError, OSError))
        if broken is not None:
            self.closed.add(client=client, why=str(broken.exceptions[0]))
        if failed is None:
            return "error"
        self.failed.add(client=client, exc_info=failed)
        return "failure"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener, with the objects that its connections share."""

    # The listener's broker. None for the first listener, whose requests any broker may serve.
    node_id: int | None
    services: Services
    limits: Limits
    forwarding: ForwardingLimiter  # concurrent requests of all connections at brokers
    # Concurrent requests at the coordinator. Requests that may be parked take no capacity, because the
    # requests that end their wait may need it: `parked_memory` limits them.
    capacity: CapacityLimiter
    parked_memory: ParkedMemoryLimit
    large_requests: LargeRequestRate
    connect: Callable[[], Awaitable[Upstream]]
    api_versions: CachedApiVersions
    advertised_host: str | None
    security: ListenerSecurity
    log_lines: ConnectionLog
    quotas: Quotas
    counts: GatewayCounts


# Opening of listeners.


_BACKLOG = 1_024


class CannotListen(OSError):
    """The gateway cannot listen on an address."""


async def open_listener(
    where: Address, protocol: Callable[[], BaseProtocol], *, shares_ports: bool = False
) -> asyncio.Server:
    """Listen on the address `where`. Port 0 is any free port. Raises CannotListen.

    With `shares_ports` other processes may listen on the same port (SO_REUSEPORT).
    """
    loop = asyncio.get_running_loop()
    try:
        # Only the first address of a host name, because a port that is free there may be taken at another.
        found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        return await loop.create_server(
            protocol, str(found[0][4][0]), where.port, backlog=_BACKLOG, reuse_port=shares_ports
        )
    except OSError as error:
        raise CannotListen(f"cannot listen at {where}: {error}") from error


def port_of(server: asyncio.Server) -> int:
    """Return the port on which this server listens."""
    return int(server.sockets[0].getsockname()[1])


# Limits on connections: admission of new ones, and the number of files that the process may open.


@dataclass(slots=True)
class AdmissionDecision:
    """The decision about a connection.

    The connection counts as open until `ConnectionAdmission.release`, even if it is refused. The gateway
    closes a refused connection, or begins to serve an accepted one, at `due_s` on the event loop's clock.
    """

    address: str | None = None  # None until the client's IP address counts
    refused: str | None = None  # the limit that it exceeds, or None if it is accepted
    due_s: float = 0.0


class ConnectionAdmission:
    """Admission of connections, with counts by the client's IP address."""

    def __init__(self, limits: Limits, quotas: Quotas) -> None:
        self._limits = limits
        self._quotas = quotas
        self._by_ip: Counter[str] = Counter()
        self.open = 0

    def admit(self, address: str | None) -> AdmissionDecision:
        """Decide about a new connection. If `address` is None, `identify` decides about it later."""
        admission = AdmissionDecision()
        self.open += 1
        if self.open > self._limits.connections:
            admission.refused = TOO_MANY
        elif address is not None:
            self.identify(admission, address)
        shared, now_s = self._quotas.all_connections, self._quotas.now_s()
        if admission.refused is None and shared is not None and shared.charge_exceeds(now_s):
            _wait(admission, shared.throttle_s(now_s))
        return admission

    def identify(self, admission: AdmissionDecision, address: str) -> None:
        """Count the connection by the client's IP address. Refuse it if the address has too many."""
        admission.address = address
        self._by_ip[address] += 1
        limits, now_s = self._limits, self._quotas.now_s()
        if self._by_ip[address] > limits.connections_per_ip_overrides.get(address, limits.connections_per_ip):
            admission.refused = TOO_MANY_OF_IP
            return
        bucket = self._quotas.connections_of(address)
        if bucket is not None and not bucket.try_charge(now_s):
            admission.refused = TOO_OFTEN_OF_IP
            # Closed late, as a broker does, because a client that reconnects at once costs more.
            _wait(admission, bucket.wait_s(now_s))

    def release(self, admission: AdmissionDecision) -> None:
        """Stop counting a connection that has ended."""
        self.open -= 1
        if admission.address is not None:
            self._by_ip[admission.address] -= 1
            if not self._by_ip[admission.address]:
                del self._by_ip[admission.address]


def _wait(admission: AdmissionDecision, seconds: float) -> None:
    admission.due_s = asyncio.get_running_loop().time() + seconds


# The limit on open files of the process. Shells and service managers often allow 1,024, and each client needs
# a connection to the gateway and one to its broker.


# Listeners, the gateway's own connections, and other files of the process.
_OWN_FILES = 500

log = structlog.get_logger()


def files_for(limits: Limits) -> int:
    """Return the number of open files that the maximum number of clients needs."""
    return 2 * limits.connections + _OWN_FILES


def allow_open_files(wanted: int) -> None:
    """Raise the soft limit of open files to `wanted`. If the hard limit is lower, raise it to that, with a
    warning.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
        log.info("the limit of open files was raised", before=soft, now=granted)
    if granted < wanted:
        log.warning(
            "too few open files for the maximum number of clients: ulimit -Hn", limit=hard, wanted=wanted
        )


class EnteringClient(Protocol):
    """A client that has just connected. `ended` is done when its connection ends."""

    @property
    def peer(self) -> str:
        """The client's IP address."""

    @property
    def ended(self) -> "Future[Exception]": ...
    def pause(self, *, paused: bool) -> None: ...
    def end(self, why: Exception) -> None: ...
    def abort(self) -> None: ...


class AdmissionCounts(Protocol):
    """Counts of new connections. `refused` is by reason, one of `gateway.metrics.numbers.REASONS`."""

    accepted: int
    refused: Counter[str]


class Entrance:
    """The entrance of all listeners of a gateway. While `is_draining` every connection is refused.

    A connection that has to send a header or complete a TLS handshake first is admitted when it is accepted.
    """

    def __init__(self, limits: Limits, quotas: Quotas, counts: AdmissionCounts) -> None:
        self._admission = ConnectionAdmission(limits, quotas)
        self._counts = counts
        self._warning = RateLimitedWarning("a connection was refused", "refused")
        self.is_draining = False
        self.release = self._admission.release

    def admit(self, address: str | None) -> AdmissionDecision:
        """Count a new connection until it is released, and decide about it.

        `address` is the client's, or None if a load balancer still has to report it.
        """
        admission = self._admission.admit(address)
        self._check(admission)
        return admission

    def identify(self, admission: AdmissionDecision, address: str) -> None:
        """Decide about an accepted connection whose client's address was reported."""
        self._admission.identify(admission, address)
        self._check(admission)

    def _check(self, admission: AdmissionDecision) -> None:
        if self.is_draining:
            admission.refused = DRAINING
        if admission.refused is not None:
            self.count_refused(admission.refused)

    def count_refused(self, reason: str, **client: str) -> None:
        """Count and log a refused connection."""
        self._counts.refused[reason] += 1
        self._warning.add(connections=self._admission.open, limit=reason, **client)

    def receive(
        self, client: EnteringClient, begin: Callable[[], None], admission: AdmissionDecision | None = None
    ) -> None:
        """Call `begin` to serve the client, or close its connection.

        Either may happen later. Until then nothing is read from the client. `admission` is of a connection
        that was admitted before.
        """
        if admission is None:
            admission = self.admit(client.peer)
        elif self.is_draining:
            self._check(admission)
        client.ended.add_done_callback(lambda _: self.release(admission))
        if admission.refused is not None:
            act = partial(self._refuse, client)
        else:
            self._counts.accepted += 1
            act = partial(self._admit, client, begin)
        loop = asyncio.get_running_loop()
        if admission.due_s > loop.time():
            client.pause(paused=True)
            loop.call_at(admission.due_s, act)
        else:
            act()

    def _admit(self, client: EnteringClient, begin: Callable[[], None]) -> None:
        client.pause(paused=False)
        begin()

    def _refuse(self, client: EnteringClient) -> None:
        client.end(ClientGone("refused"))
        client.abort()
