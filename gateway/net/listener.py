"""What the connections of one listener share, and how they report their ends."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.apis.context import Services
from gateway.coordinator.rate_limited_warning import RateLimitedWarning
from gateway.metrics.counts import Counts
from gateway.net.flow import Flow
from gateway.net.parked import Parked
from gateway.net.room import Room
from gateway.quotas.quotas import Quotas
from gateway.security.authentication import Security
from gateway.upstream.connections import Upstream
from gateway.upstream.kept_versions import KeptVersions
from gateway.wire.limits import Limits


class AuthenticationFailed(ConnectionError):
    """The client did not authenticate, or failed to."""


class ConnectionLog:
    """The log lines about ended connections. Clients cause them, so they are limited: see
    `RateLimitedWarning`.
    """

    def __init__(self) -> None:
        self.closed = RateLimitedWarning("a connection was closed", "connections")
        self.failed = RateLimitedWarning("a connection failed", "connections", level="error")
        self.refused = RateLimitedWarning("a connection was refused", "refused")


@dataclass(frozen=True, slots=True)
class Listener:
    """The listener that a client connected to: that of broker `node_id`, or the first listener (None), which
    any broker may serve. `forwarding` bounds the requests at brokers at one time, over all connections, and
    `room` those at the coordinator. Requests that may be parked take no room, because the requests that end
    their wait may need it: `parked` bounds these, and `flow` how much of them is sent in a second.
    """

    node_id: int | None
    services: Services
    limits: Limits
    forwarding: asyncio.Semaphore
    room: Room
    parked: Parked
    flow: Flow
    connect: Callable[[], Awaitable[Upstream]]
    kept_versions: KeptVersions
    advertised_host: str | None
    security: Security
    log_lines: ConnectionLog
    quotas: Quotas
    counts: Counts
