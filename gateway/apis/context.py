"""The context of one request: the services of its handler, its client, and the state of the client's
connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID, uuid4

from msgspec import Struct

from clients.coordinator_client import Header
from clients.pending import RequestTooLarge
from gateway.apis.slices import Slices
from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.coordinator.backend import Backend
from gateway.coordinator.failures import too_large
from gateway.coordinator.fresh_groups import FreshGroups
from gateway.deliveries.member import MemberDeliveries
from gateway.deliveries.service import Deliveries
from gateway.fairness import CapacityLimiter
from gateway.security.session import ClientSession
from gateway.telemetry.service import ClientMetricsInstance, ClientTelemetry, kafka_uuid
from gateway.upstream.cluster import Cluster, InternalTopics
from gateway.upstream.connections import Address
from gateway.upstream.share_groups import AskBroker, ShareGroups, StreamsTopics
from gateway.upstream.transactions import Transactions
from gateway.wire.codec import Fields
from gateway.wire.fetch_messages import error_of
from gateway.wire.framing import RequestHeader
from kafka_why.contract.messages import Request, Response
from kafka_why.partitioner import partition_of

NO_SESSION = 0
_SESSIONS_MAX = 100


class FetchSessions:
    """The fetch sessions (KIP-227) of one connection, each with the version of the ACLs under which it began.

    A request in a session names only changes, so the gateway cannot see its topics. It passes only if this
    connection began the session, and no ACL has changed since.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}

    def add(self, session_id: int, version: int) -> None:
        """Add a new session. If there are too many, the oldest one is forgotten."""
        if session_id != NO_SESSION:
            self._versions.pop(session_id, None)
            self._versions[session_id] = version
            if len(self._versions) > _SESSIONS_MAX:
                del self._versions[next(iter(self._versions))]

    def may_continue(self, session_id: int, version: int) -> bool:
        """Return True if a request of the session may pass under this version of the ACLs."""
        return self._versions.get(session_id) == version


@dataclass(slots=True)
class CheckedTopics:
    """The topics of a share session, and the version of the ACLs that allowed them."""

    topics: set[UUID]
    version: int
    is_partial: bool  # the session lacks a requested topic, because these ACLs denied it

    def add(self, topics: set[UUID], version: int, *, is_partial: bool) -> None:
        """Add the topics of another request, which this version of the ACLs allowed."""
        self.topics |= topics
        self.is_partial |= is_partial
        self.version = version


class ShareSession:
    """The share session (KIP-932) of one connection: the member, and its checked topics.

    A broker identifies a session by its group and member ids alone, on any connection, and checks the rights
    of the gateway's principal. So another client could continue, restart or end the session. If the gateway
    checks ACLs, the broker therefore knows the member by `broker_member_id`, a random id that no client sees.
    All topics of the session were then checked on this connection.

    A broker binds one session to a connection, and ends it with the connection. Sessions of other members on
    the connection would never end, and a broker has a limit of sessions (`group.share.max.share.sessions`).
    So a connection has one member.

    A request names only new partitions, so `checked` has all topics of the session. It is None until the
    broker accepts the latest start, because a broker that refuses a start continues the old session.
    `has_failed` is True if the broker failed at a request, perhaps because a topic of the session was
    deleted.
    """

    def __init__(self) -> None:
        self.member: tuple[str, str] | None = None
        self.broker_member_id = kafka_uuid(uuid4())
        self.checked: CheckedTopics | None = None
        self.has_failed = False
        self._beginning: CheckedTopics | None = None
        self._counted: tuple[Deliveries, MemberDeliveries] | None = None

    @property
    def is_begun(self) -> bool:
        """True if a member's session has begun on this connection."""
        return self.member is not None

    def claim(self, group_id: str, member_id: str) -> bool:
        """Return True if the session belongs to this member. The first member that claims it gets it."""
        if self.member is None:
            self.member = group_id, member_id
        return self.member == (group_id, member_id)

    def clear_failure(self) -> bool:
        """Forget a broker's failure, because the member starts again. Return True if there was one."""
        had_failed, self.has_failed = self.has_failed, False
        return had_failed

    def begin(self, topics: CheckedTopics) -> Callable[[bytes], None]:
        """Start a session with these topics. Return the function that receives the broker's response."""
        self.checked, self._beginning = None, topics

        def on_start(response: bytes) -> None:
            if self._beginning is topics and not error_of(response):
                self.checked = topics

        return on_start

    def watch(self, deliveries: Deliveries, header: RequestHeader, request: Any) -> Callable[[bytes], object]:
        """Count a request of the member. Return the function that receives the parts of the response."""
        assert self.member is not None, "the member is known before its requests pass"
        if self._counted is None:
            self._counted = deliveries, deliveries.open(*self.member)
        return self._counted[1].watch(header, request)

    def end(self) -> None:
        """Stop counting, because the connection has ended."""
        if self._counted is not None:
            deliveries, member = self._counted
            deliveries.close(member)


# A response to a heartbeat may request metadata: the topics that a pattern matches
# (`ConsumerGroupHeartbeatResponse.look`), or topics by name (`StreamsGroupHeartbeatResponse.needs_topics`).
# The member's next heartbeat on the connection reports them. If the request was forgotten, the coordinator
# repeats it.


# Clients choose patterns, names and ids, so their number per connection is limited.
_PATTERNS_MAX_CHARS = 65_536
_TOPICS_MAX_CHARS = 1_048_576
_PART_OF_INTERVAL = 0.9

Names = TypeVar("Names", bound=Sequence[str])


class RequestedMetadata(Generic[Names]):
    """The metadata that members of this connection have to look up for the coordinator.

    By group and member, a pattern or names of topics. They have at most `max_chars` characters together.
    """

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._requested: dict[tuple[str, str], Names] = {}
        self._chars = 0

    def __len__(self) -> int:
        return len(self._requested)

    def add(self, group_id: str, member_id: str, requested: Names) -> None:
        """Store what to look up. If there are too many characters, the oldest entries are forgotten."""
        self.pop(group_id, member_id)
        self._requested[group_id, member_id] = requested
        self._chars += _chars(group_id, member_id, requested)
        while self._chars > self._max_chars:
            self.pop(*next(iter(self._requested)))

    def is_requested(self, group_id: str, member_id: str) -> bool:
        """Return True if the member's next heartbeat has to report metadata."""
        return (group_id, member_id) in self._requested

    def get(self, group_id: str, member_id: str) -> Names | None:
        """Return what to look up for the member, or None if there is nothing."""
        return self._requested.get((group_id, member_id))

    def pop(self, group_id: str, member_id: str) -> Names | None:
        """Remove and return what to look up for the member, or None if there is nothing."""
        requested = self._requested.pop((group_id, member_id), None)
        if requested is not None:
            self._chars -= _chars(group_id, member_id, requested)
        return requested


class HeartbeatPace:
    """A limit of one event per heartbeat interval, which the coordinator's answers have. A heartbeat may
    arrive slightly early.
    """

    def __init__(self) -> None:
        self.interval_ms = 0
        self._latest_s = float("-inf")

    def try_start(self) -> bool:
        """Start an event. Return False if the latest one was too short a time ago."""
        now_s = _now_s()
        if now_s - self._latest_s < _PART_OF_INTERVAL * self.interval_ms / 1_000:
            return False
        self._latest_s = now_s
        return True


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _chars(group_id: str, member_id: str, requested: Sequence[str]) -> int:
    return len(group_id) + len(member_id) + sum(map(len, requested))


@dataclass(frozen=True, slots=True)
class ConnectionCaches:
    """The gateway's state of one connection. It is dropped with the connection, so nothing in it expires."""

    fetches: FetchSessions = field(default_factory=FetchSessions)
    shares: ShareSession = field(default_factory=ShareSession)
    requested_patterns: RequestedMetadata[str] = field(
        default_factory=partial(RequestedMetadata, _PATTERNS_MAX_CHARS)
    )
    requested_topics: RequestedMetadata[list[str]] = field(
        default_factory=partial(RequestedMetadata, _TOPICS_MAX_CHARS)
    )
    topic_metadata: HeartbeatPace = field(default_factory=HeartbeatPace)
    topic_creation: HeartbeatPace = field(default_factory=HeartbeatPace)
    pushes: ClientMetricsInstance = field(default_factory=ClientMetricsInstance)


R = TypeVar("R", bound=Response)


class SendingBackend(Backend, Protocol):
    """A backend that sends a request without a separate task."""

    def send(self, request: Request[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        """Send a request as `ask` does, without waiting. Requests are sent in the order of the calls."""

    def refuse(self, request: Request[R], error: RequestTooLarge) -> asyncio.Future[R]:
        """Return the response to a request that is too large, without sending the request."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services of handlers."""

    backend: SendingBackend
    cluster: Cluster
    groups: FreshGroups
    listener_port: Callable[[int], Awaitable[int]]  # of a broker; opens the listener if needed
    internal_topics: InternalTopics
    transactions: Transactions
    share_groups: ShareGroups
    streams_topics: StreamsTopics
    # The address that clients get for a broker and its listener's port. None is the address to which they
    # connected.
    advertised: Callable[[int, int], Address | None]
    frame_max_bytes: int  # larger frames are refused
    authorizer: Authorizer | None = None  # None: the gateway checks no ACLs
    checks_passed_on: bool = False  # ACLs of requests that pass to the brokers, too
    consumer_protocol: bool = True  # KIP-848
    streams_protocol: bool = True  # KIP-1071
    telemetry: ClientTelemetry | None = None  # None: the brokers get clients' metrics
    deliveries: Deliveries | None = None  # None: share groups' records are not counted
    # Locked while the rights to a pattern's topics are checked.
    deciding: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    # Locked during a slice of long work.
    turns: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))


class Deferred(Struct, frozen=True):
    """A response that `fields` builds when the coordinator's response arrives.

    With `holds_back` the connection's next request does not start before this response is ready. The reason
    is that the response may be parked, or that some requests to the coordinator are not sent yet.
    """

    response: asyncio.Future[Any]
    fields: Callable[[Any], Fields]
    holds_back: bool = False


class FanOut(Protocol):
    """The accounting of the items of one connection's requests: capacity at the coordinator, and the client's
    quota.
    """

    def count(self, context: "RequestContext", items: int) -> None:
        """Count the items of a request for the metrics."""

    async def pay(self, context: "RequestContext") -> None:
        """Charge one item to the client's quota, and wait until the quota allows it."""

    def try_acquire(self) -> bool:
        """Acquire a slot at the coordinator. Return False if none is free, or if another request waits for
        one.
        """

    def release(self) -> None:
        """Release a slot."""

    def acquired(self, context: "RequestContext") -> AbstractAsyncContextManager[None]:
        """Charge an item to the quota, and hold capacity for it until the block ends."""


class RequestContext(Struct, frozen=True):
    """The context of a request."""

    services: Services
    header: RequestHeader
    client_host: str
    principal: str  # the client's as Kafka writes it, `User:NAME` or `User:ANONYMOUS`
    host: str  # the gateway's name in responses to this client
    node_id: int | None  # the broker whose listener the client uses, None for the first listener
    session: ClientSession
    caches: ConnectionCaches
    fan_out: FanOut
    # Sends a request to the broker with the client's principal, or None if brokers authenticate no clients.
    ask_as_client: AskBroker | None = None
    oversized_bytes: int = 0  # of a frame that is too large for the requests topic, else 0

    @property
    def version(self) -> int:
        """The API version that the client chose."""
        return self.header.api_version

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return True if the client may perform this operation on the resource."""
        authorizer = self.services.authorizer
        return authorizer is None or authorizer.may(self.principal, self.client_host, operation, kind, name)

    def coordinator_header(self, group_id: str) -> Header:
        """Return the header of this client's request to the coordinator about a group."""
        return self.services.backend.header(
            group_id, self.version, self.header.client_id or "", self.client_host, self.principal
        )

    def send(self, request: Request[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        """Send a request to the coordinator, or refuse it if its frame is oversized (`SendingBackend`)."""
        if self.oversized_bytes:
            error = too_large(request, self.oversized_bytes, self.services.frame_max_bytes)
            return self.services.backend.refuse(request, error)
        return self.services.backend.send(request, timeout_ms)

    def slices(self) -> Slices:
        """Return new slices for work that may take long."""
        return Slices(self.services.turns)

    async def listener(self, node_id: int) -> Address:
        """Return the address of the listener for this broker, which may be another gateway's."""
        port = await self.services.listener_port(node_id)
        return self.services.advertised(node_id, port) or Address(self.host, port)

    def coordinator_of(self, group_id: str, id_hash: int | None = None) -> int | None:
        """Return the id of the broker whose listener serves this group, or None if no broker is known.

        `id_hash` is the id's hash by `kafka_why.partitioner`, if known.

        Any listener can serve the coordinator's groups. But a client that lists groups sends ListGroups to
        every broker and merges the responses, so each group must belong to exactly one broker. A share group
        of the brokers has its coordinator behind one listener. Requests do not have the group's type, so each
        group is looked up among the brokers' share groups.
        """
        live = self.services.cluster.live
        node_id = self.services.share_groups.coordinator_of(group_id)
        if node_id in live:
            return node_id
        if not live:
            return None
        return live[partition_of(group_id, len(live)) if id_hash is None else id_hash % len(live)]
