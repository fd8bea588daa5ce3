"""The context of one request: the services its handler uses, and the client that sent it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from clients.coordinator_client import Header
from clients.pending import RequestTooLarge
from gateway.apis.fetch_sessions import FetchSessions, ShareSession
from gateway.apis.slices import Slices
from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.coordinator.backend import Backend
from gateway.coordinator.fresh_groups import FreshGroups
from gateway.coordinator.oversized import too_large
from gateway.deliveries.service import Deliveries
from gateway.fairness import CapacityLimiter
from gateway.security.session import ClientSession
from gateway.telemetry.instance import ClientMetricsInstance
from gateway.telemetry.service import ClientTelemetry
from gateway.upstream.cluster import Cluster, InternalTopics
from gateway.upstream.connections import Address
from gateway.upstream.share_groups import ShareGroups
from gateway.upstream.transactions import Transactions
from gateway.wire.codec import Fields
from gateway.wire.framing import RequestHeader
from kafka_why.contract.messages import Request, Response
from kafka_why.partitioner import partition_of

# The looks at patterns that the coordinator asked one connection's members for.
#
# An answer to ConsumerGroupHeartbeat asks for one (`ConsumerGroupHeartbeatResponse.look`), and the member's
# next heartbeat on the connection brings it. A look that is forgotten is asked for again after some
# seconds.


# Clients choose the patterns and the ids, so what a connection remembers is bounded.
_CHARS_MAX = 65_536


class PatternLooks:
    """The pattern to look at, by the group and the member that was asked."""

    def __init__(self) -> None:
        self._patterns: dict[tuple[str, str], str] = {}
        self._chars = 0

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, group_id: str, member_id: str, pattern: str) -> None:
        """Remember a look. The oldest are forgotten when there are too many characters."""
        self.pop(group_id, member_id)
        self._patterns[group_id, member_id] = pattern
        self._chars += len(group_id) + len(member_id) + len(pattern)
        while self._chars > _CHARS_MAX:
            self.pop(*next(iter(self._patterns)))

    def is_asked(self, group_id: str, member_id: str) -> bool:
        """Return True if the member's pattern has to be resolved at its next heartbeat."""
        return (group_id, member_id) in self._patterns

    def pop(self, group_id: str, member_id: str) -> str | None:
        """The pattern to look at for the member, None if it was asked for none. It is forgotten."""
        pattern = self._patterns.pop((group_id, member_id), None)
        if pattern is not None:
            self._chars -= len(group_id) + len(member_id) + len(pattern)
        return pattern


@dataclass(frozen=True, slots=True)
class Remembered:
    """It ends with the connection, so nothing of it has to be expired."""

    fetches: FetchSessions = field(default_factory=FetchSessions)
    shares: ShareSession = field(default_factory=ShareSession)
    looks: PatternLooks = field(default_factory=PatternLooks)
    pushes: ClientMetricsInstance = field(default_factory=ClientMetricsInstance)


R = TypeVar("R", bound=Response)


class SendingBackend(Backend, Protocol):
    """A backend that starts a request without a task of its own."""

    def send(self, request: Request[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        """As `ask`, without waiting. Requests are sent in the order of the calls."""

    def refuse(self, request: Request[R], error: RequestTooLarge) -> asyncio.Future[R]:
        """Return the response to a request that is too large, which is not sent."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services of handlers. `listener_port` returns the port of a broker's listener, opening it if
    needed. `advertised` returns the address that clients get for a broker whose listener has this port, None
    if it is the one that they connected to. `authorizer` None: the gateway checks no ACLs. With
    `checks_passed_on` it also checks the requests that pass to the brokers. Without `consumer_protocol` the
    gateway offers nothing of KIP-848. `telemetry` None: requests about clients' metrics pass to the brokers.
    Larger frames than `frame_max_bytes` are refused.
    `deliveries` None: nothing is counted of share groups' records. `deciding` is held while the rights to a
    pattern's topics are decided, and `turns` between two slices of long work.
    """

    backend: SendingBackend
    cluster: Cluster
    groups: FreshGroups
    listener_port: Callable[[int], Awaitable[int]]
    internal_topics: InternalTopics
    transactions: Transactions
    share_groups: ShareGroups
    advertised: Callable[[int, int], Address | None]
    frame_max_bytes: int
    authorizer: Authorizer | None = None
    checks_passed_on: bool = False
    consumer_protocol: bool = True
    telemetry: ClientTelemetry | None = None
    deliveries: Deliveries | None = None
    deciding: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    turns: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))


class Deferred(Struct, frozen=True):
    """An answer that `fields` makes of the coordinator's response, when that comes.

    With `holds_back` the next request of the connection does not start before, because the response may be
    parked, or because some requests to the coordinator are not sent yet.
    """

    response: asyncio.Future[Any]
    fields: Callable[[Any], Fields]
    holds_back: bool = False


class FanOut(Protocol):
    """What the items of one connection's requests cost: room at the coordinator, and the client's quota."""

    def count(self, context: "RequestContext", items: int) -> None:
        """Count the items of a request for the metrics."""

    async def pay(self, context: "RequestContext") -> None:
        """Take a part of the client's quota for one item, when there is some."""

    def try_acquire(self) -> bool:
        """Take a place at the coordinator, unless there is none or somebody waits for one. Returns whether
        it is taken. `release` gives it back.
        """

    def release(self) -> None:
        """Give a place back."""

    def acquired(self, context: "RequestContext") -> AbstractAsyncContextManager[None]:
        """A place for a request that has none of its own, and its part of the quota."""


class RequestContext(Struct, frozen=True):
    """The context of a request. `principal` is the client's as Kafka writes it, `User:NAME` or
    `User:ANONYMOUS`. `host` is the gateway's name in responses to this client. `node_id` is the broker whose
    listener the client connected to, None for the first listener. `oversized_bytes` is the size of a frame
    that is too large for the requests topic, else 0.
    """

    services: Services
    header: RequestHeader
    client_host: str
    principal: str
    host: str
    node_id: int | None
    session: ClientSession
    remembered: Remembered
    fan_out: FanOut
    oversized_bytes: int = 0

    @property
    def version(self) -> int:
        """The API version that the client chose."""
        return self.header.api_version

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do this to the resource."""
        authorizer = self.services.authorizer
        return authorizer is None or authorizer.may(self.principal, self.client_host, operation, kind, name)

    def to_group(self, group_id: str) -> Header:
        """The header of a request to the coordinator."""
        return self.services.backend.header(
            group_id, self.version, self.header.client_id or "", self.client_host, self.principal
        )

    def send(self, request: Request[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        """Send a request to the coordinator, or refuse one in an oversized frame: see `SendingBackend`."""
        if self.oversized_bytes:
            error = too_large(request, self.oversized_bytes, self.services.frame_max_bytes)
            return self.services.backend.refuse(request, error)
        return self.services.backend.send(request, timeout_ms)

    def slices(self) -> Slices:
        """For work that may be long."""
        return Slices(self.services.turns)

    async def listener(self, node_id: int) -> Address:
        """The gateway's listener for this broker, perhaps another gateway's."""
        port = await self.services.listener_port(node_id)
        return self.services.advertised(node_id, port) or Address(self.host, port)

    def coordinator_of(self, group_id: str, id_hash: int | None = None) -> int | None:
        """The id of the broker whose listener serves this group, None if no broker is known. `id_hash` is
        that of `kafka_why.partitioner`, where it is known.

        Any listener would do for the coordinator's groups. But a client that lists groups sends ListGroups to
        every broker and merges the responses, so each group must belong to exactly one broker. A share group
        of the brokers has its coordinator behind one listener, and the client does not say of which type its
        group is.
        """
        live = self.services.cluster.live
        brokers = self.services.share_groups.coordinator_of(group_id)
        if brokers in live:
            return brokers
        if not live:
            return None
        return live[partition_of(group_id, len(live)) if id_hash is None else id_hash % len(live)]
