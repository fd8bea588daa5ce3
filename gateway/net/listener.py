"""Listeners: the objects that their connections share, their opening, and the admission of connections."""

import asyncio
import resource
import socket
from asyncio import BaseProtocol
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from gateway.apis.context import Services
from gateway.fairness import CapacityLimiter
from gateway.limits import Limits, Quotas
from gateway.log_text import RateLimitedWarning
from gateway.metrics.numbers import (
    DRAINING,
    TOO_MANY,
    TOO_MANY_OF_IP,
    TOO_OFTEN_OF_IP,
    CommonCounts,
    GatewayCounts,
)
from gateway.net.lifecycle import ClientGone, ServedClient
from gateway.net.limits.requests import ForwardingLimiter, LargeRequestRate, ParkedMemoryLimit
from gateway.security.authentication import ListenerSecurity
from gateway.upstream.api_versions import CachedApiVersions
from gateway.upstream.connections import Upstream
from gateway.wire.framing import ProtocolError
from kafka_why.connections.address import Address
from kafka_why.errors import UserFacingError


class AuthenticationFailed(ConnectionError):
    """The client did not authenticate, or its authentication failed."""


class ConnectionLog:
    """The log lines about ended connections. Clients can cause any number of them, so they are limited
    (`RateLimitedWarning`).
    """

    def __init__(self) -> None:
        self._closed_warning = RateLimitedWarning("a connection was closed", "connections")
        self._failed_warning = RateLimitedWarning("a connection failed", "connections", level="error")

    def log_end(self, client: str, errors: ExceptionGroup[Exception]) -> str:
        """Log the reason why a connection ended, unless the client closed it. Return the reason for the
        metrics.
        """
        closed_by_client, others = errors.split(ClientGone)
        if others is None:
            assert closed_by_client is not None, "the group has an error"
            return closed_by_client.exceptions[0].reason  # type: ignore[union-attr]
        expected, unexpected = others.split((ProtocolError, OSError))
        if expected is not None:
            self._closed_warning.add(client=client, why=str(expected.exceptions[0]))
        if unexpected is None:
            return "error"
        self._failed_warning.add(client=client, exc_info=unexpected)
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
    connect: Callable[[], Awaitable[Upstream]]  # to the listener's broker, or to any
    api_versions: CachedApiVersions
    advertised_host: str | None  # None: clients get the address that they connected to
    security: ListenerSecurity
    log_lines: ConnectionLog
    quotas: Quotas
    counts: GatewayCounts


# Opening of listeners.


_BACKLOG = 1_024


class CannotListen(UserFacingError, OSError):
    """The gateway cannot listen on an address."""


async def open_listener(
    where: Address, protocol: Callable[[], BaseProtocol], *, shares_ports: bool = False
) -> asyncio.Server:
    """Listen on the address `where`. Port 0 is any free port. Raises CannotListen.

    With `shares_ports` other processes may listen on the same port (SO_REUSEPORT).
    """
    loop = asyncio.get_running_loop()
    try:
        # Listen only at the first address of a host name: a port that is free there may be in use at another.
        addresses = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        *_, socket_address = addresses[0]
        return await loop.create_server(
            protocol, str(socket_address[0]), where.port, backlog=_BACKLOG, reuse_port=shares_ports
        )
    except OSError as error:
        raise CannotListen(f"cannot listen at {where}: {error}") from error


async def accepts_connections(address: str, timeout_s: float) -> bool:
    """Return True if the server at `address`, HOST:PORT, accepts a connection."""
    try:
        where = Address.parse(address)
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(where.host, where.port)
    except (OSError, ValueError):  # a TimeoutError is an OSError
        return False
    writer.transport.abort()
    return True


def port_of(server: asyncio.Server) -> int:
    """Return the port on which this server listens."""
    return int(server.sockets[0].getsockname()[1])


# Limits on connections: admission of new ones, and the number of files that the process may open.


@dataclass(slots=True)
class AdmissionDecision:
    """The decision about a connection.

    The connection counts as open until `ConnectionQuotas.release`, even if it is refused. The gateway
    closes a refused connection, or begins to serve an accepted one, at `due_s` on the event loop's clock.
    """

    address: str | None = None  # the client's IP address, or None while it is not yet known or counted
    refused: str | None = None  # the reason, such as the limit that it exceeds, or None if it is accepted
    due_s: float = 0.0


# The limit on open files of the process. Shells and service managers often allow 1,024, and each client needs
# a connection to the gateway and one to its broker.


# The number of files for listeners, the gateway's own connections, and other needs of the process.
_OWN_FILES = 500

log = structlog.get_logger()


def files_for(limits: Limits) -> int:
    """Return the number of open files that the maximum number of clients needs."""
    return 2 * limits.connections + _OWN_FILES  # each client also needs a connection to its broker


def allow_open_files(wanted: int) -> None:
    """Raise the soft limit of open files to `wanted`. If the hard limit is lower, raise the soft limit to the
    hard one, with a warning.
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


def _postpone(admission: AdmissionDecision, seconds: float) -> None:
    """Postpone the end of a refused connection, or the beginning of an accepted one."""
    admission.due_s = asyncio.get_running_loop().time() + seconds


class ConnectionQuotas:
    """The limits of connections for all listeners of a gateway, with counts by the client's IP address.

    A connection with a header of the PROXY protocol or a TLS handshake is admitted before these arrive.
    While `is_draining` every connection is refused.
    """

    def __init__(self, limits: Limits, quotas: Quotas, counts: CommonCounts) -> None:
        self._limits = limits
        self._quotas = quotas
        self._counts = counts
        self._open_by_ip: Counter[str] = Counter()
        self._open = 0  # the number of connections
        self._warning = RateLimitedWarning("a connection was refused", "refused")
        self.is_draining = False

    def admit(self, address: str | None) -> AdmissionDecision:
        """Count a new connection until it is released, and decide about it.

        `address` is the client's, or None if a load balancer still has to report it to `identify`.
        """
        admission = AdmissionDecision()
        self._open += 1
        if self._open > self._limits.connections:
            admission.refused = TOO_MANY
        elif address is not None:
            self._count(admission, address)
        shared_quota, now_s = self._quotas.all_connections, self._quotas.now_s()
        if admission.refused is None and shared_quota is not None and shared_quota.charge_exceeds(now_s):
            _postpone(admission, shared_quota.throttle_s(now_s))
        self._count_if_refused(admission)
        return admission

    def identify(self, admission: AdmissionDecision, address: str) -> None:
        """Count a connection by the client's address that was reported, and decide again."""
        self._count(admission, address)
        self._count_if_refused(admission)

    def _count(self, admission: AdmissionDecision, address: str) -> None:
        """Count the connection by its address. Refuse it if the address has too many connections, or opens
        them too fast.
        """
        admission.address = address
        self._open_by_ip[address] += 1
        limits, now_s = self._limits, self._quotas.now_s()
        max_open = limits.connections_per_ip_overrides.get(address, limits.connections_per_ip)
        if self._open_by_ip[address] > max_open:
            admission.refused = TOO_MANY_OF_IP
            return
        bucket = self._quotas.connections_of(address)
        if bucket is not None and not bucket.try_charge(now_s):
            admission.refused = TOO_OFTEN_OF_IP
            # As a broker does, close it late, because a client that reconnects at once costs more.
            _postpone(admission, bucket.wait_s(now_s))

    def release(self, admission: AdmissionDecision) -> None:
        """Stop counting a connection that has ended."""
        self._open -= 1
        if admission.address is not None:
            self._open_by_ip[admission.address] -= 1
            if not self._open_by_ip[admission.address]:
                del self._open_by_ip[admission.address]

    def _count_if_refused(self, admission: AdmissionDecision) -> None:
        """Refuse the connection if the gateway is draining, and count a refused one for the metrics."""
        if self.is_draining:
            admission.refused = DRAINING
        if admission.refused is not None:
            self.count_refused(admission.refused)

    def count_refused(self, reason: str, **client: str) -> None:
        """Count and log a refused connection."""
        self._counts.refused[reason] += 1
        self._warning.add(connections=self._open, limit=reason, **client)

    def serve_or_refuse(
        self, client: ServedClient, begin: Callable[[], None], admission: AdmissionDecision | None = None
    ) -> None:
        """Call `begin` to serve the client, or close its connection if it is refused.

        Either may happen later. Until then nothing is read from the client. `admission` is the result of
        `admit`, or None if that has not been called.
        """
        if admission is None:
            admission = self.admit(client.peer)
        elif self.is_draining:
            self._count_if_refused(admission)
        client.ended.add_done_callback(lambda _: self.release(admission))
        if admission.refused is not None:
            act = partial(self._refuse, client)
        else:
            self._counts.accepted += 1
            act = partial(self._admit, client, begin)
        loop = asyncio.get_running_loop()
        if admission.due_s > loop.time():
            client.set_waiting(waiting=True)
            loop.call_at(admission.due_s, act)
        else:
            act()

    def _admit(self, client: ServedClient, begin: Callable[[], None]) -> None:
        client.set_waiting(waiting=False)
        begin()

    def _refuse(self, client: ServedClient) -> None:
        client.end(ClientGone("refused"))
        client.abort()
