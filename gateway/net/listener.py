"""The objects that the connections of a listener share, and the log lines about ended connections."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.apis.context import Services
from gateway.fairness import CapacityLimiter
from gateway.limits import Limits
from gateway.log_text import RateLimitedWarning
from gateway.metrics.counts import GatewayCounts
from gateway.net.lifecycle import ClientGone
from gateway.net.limits.requests import ForwardingLimiter, LargeRequestRate, ParkedMemoryLimit
from gateway.quotas import Quotas
from gateway.security.authentication import ListenerSecurity
from gateway.upstream.api_versions import CachedApiVersions
from gateway.upstream.connections import Upstream
from gateway.wire.framing import ProtocolError


class AuthenticationFailed(ConnectionError):
    """The client did not authenticate, or its authentication failed."""


class ConnectionLog:
    """The log lines about ended connections. Clients can cause any number of them, so they are limited
    (`RateLimitedWarning`).
    """

    def __init__(self) -> None:
        self.closed = RateLimitedWarning("a connection was closed", "connections")
        self.failed = RateLimitedWarning("a connection failed", "connections", level="error")

    def ended(self, client: str, errors: ExceptionGroup[Exception]) -> str:
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
    """A listener, with the objects that its connections share. `node_id` is its broker, or None for the first
    listener, which any broker may serve.

    `forwarding` limits the concurrent requests at brokers over all connections, and `capacity` those at the
    coordinator. Requests that may be parked do not take capacity, because the requests that end their wait
    may need it: `parked_memory` limits them. `large_requests` limits the bytes of large requests a second.
    """

    node_id: int | None
    services: Services
    limits: Limits
    forwarding: ForwardingLimiter
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
