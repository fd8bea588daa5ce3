"""The context of one request: the services of its handler, its client, and the state of the client's
connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID, uuid4

from cachetools import FIFOCache
from msgspec import Struct

from clients.coordinator_client import Header
from gateway.apis.slices import Slices
from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.coordinator.failures import Backend, oversized_error
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

NO_SESSION = 0  # the id of a response without a fetch session
_SESSIONS_MAX = 100


@dataclass(slots=True)
class FetchSessions:
    """The fetch sessions (KIP-227) of one connection, each with the version of the ACLs under which it began.

    A request in a session names only changes, so the gateway cannot see its topics. It passes only if this
    connection began the session, and no ACL has changed since.
    """

    _acl_versions: FIFOCache[int, int] = field(default_factory=partial(FIFOCache, _SESSIONS_MAX))

    def add(self, session_id: int, version: int) -> None:
        """Add a session that began under this version of the ACLs. If there are too many sessions, the oldest
        one is forgotten.
        """
        if session_id != NO_SESSION:
            self._acl_versions[session_id] = version

    def may_continue(self, session_id: int, version: int) -> bool:
        """Return True if a request of the session may pass under this version of the ACLs."""
        return self._acl_versions.get(session_id) == version


@dataclass(slots=True)
class CheckedTopics:
    """The topics of a share session, and the version of the ACLs that allowed them."""

    topics: set[UUID]
    version: int  # of the ACLs
    is_partial: bool  # the session lacks a requested topic, because these ACLs denied it

    def add(self, topics: set[UUID], version: int, *, is_partial: bool) -> None:
        """Add the topics of another request, which this version of the ACLs allowed."""
        self.topics |= topics
        self.is_partial |= is_partial
        self.version = version


@dataclass(slots=True)
class ShareSession:
    """The share session (KIP-932) of one connection: the member, and its checked topics.

    A broker identifies a session by its group and member ids alone, on any connection, and checks the rights
    of the gateway's principal. So another client could continue, restart or end the session. If the gateway
    checks ACLs, the broker therefore knows the member by `broker_member_id`, a random id that no client sees.
    All topics of the session were then checked on this connection.

    A broker binds one session to a connection, and ends it with the connection. Sessions of other members on
    the connection would never end, and a broker has a limit of sessions (`group.share.max.share.sessions`).
    So a connection has one member.

    A request names only new partitions, so `checked` has all topics of the session. It is None from a
    request to start a session until the broker accepts it, because a broker that refuses a start continues
    the old session.
    """

    member: tuple[str, str] | None = None
    """The group id and the member id, or None before the first request."""
    broker_member_id: str = field(default_factory=lambda: kafka_uuid(uuid4()))
    checked: CheckedTopics | None = None
    has_failed: bool = False
    """True if the broker failed at a request, perhaps because a topic of the session was deleted."""
    _starting: CheckedTopics | None = None
    """The topics of the latest start."""
    _counted_member: tuple[Deliveries, MemberDeliveries] | None = None

    def claim(self, group_id: str, member_id: str) -> bool:
        """Return True if the session belongs to this member. The first member that claims it gets it."""
        if self.member is None:
            self.member = group_id, member_id
        return self.member == (group_id, member_id)

    def clear_failure(self) -> bool:
        """Forget a broker's failure, because the member starts a session. Return True if there was one."""
        had_failed, self.has_failed = self.has_failed, False
        return had_failed

    def begin(self, topics: CheckedTopics) -> Callable[[bytes], None]:
        """Start a session with these topics. Return the function that receives the broker's response."""
        self.checked, self._starting = None, topics

        def on_start(response: bytes) -> None:
            is_latest_start = self._starting is topics
            if is_latest_start and not error_of(response):
                self.checked = topics

        return on_start

    def watch(self, deliveries: Deliveries, header: RequestHeader, request: Any) -> Callable[[bytes], object]:
        """Follow a request of the member. The returned function receives the parts of the response, and
        counts the member's deliveries and acknowledgements.
        """
        assert self.member is not None, "the member is known before its requests pass"
        if self._counted_member is None:
            self._counted_member = deliveries, deliveries.open(*self.member)
        _, member = self._counted_member
        return member.watch(header, request)

    def end(self) -> None:
        """Stop counting, because the connection has ended."""
        if self._counted_member is not None:
            deliveries, member = self._counted_member
            deliveries.close(member)


# The coordinator's answer to a heartbeat may request metadata from the gateway: the topics that a pattern
# matches (`ConsumerGroupHeartbeatResponse.look`), or topics by name
# (`StreamsGroupHeartbeatResponse.needs_topics`). The gateway adds the metadata to the member's next heartbeat
# on the connection. If the gateway has forgotten the request, the coordinator repeats it. In the same way,
# the next heartbeat reports why internal topics were not created.


# Clients choose patterns, names and ids, so their number per connection is limited.
_PATTERNS_MAX_CHARS = 65_536
_TOPICS_MAX_CHARS = 1_048_576
_MIN_PART_OF_INTERVAL = 0.9

Names = TypeVar("Names", bound=Sequence[str])


@dataclass(slots=True)
class PendingReports(Generic[Names]):
    """The reports that the next heartbeats of the members on this connection carry to the coordinator.

    A report is a pattern or names of topics whose metadata the heartbeat adds, or an error text. Each member
    has at most one. All reports together have at most `max_chars` characters.
    """

    max_chars: int
    _reports: dict[tuple[str, str], Names] = field(default_factory=dict)
    _chars: int = 0

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, group_id: str, member_id: str, report: Names) -> None:
        """Store a member's report. If there are too many characters, the oldest reports are forgotten."""
        self.pop(group_id, member_id)
        self._reports[group_id, member_id] = report
        self._chars += _chars(group_id, member_id, report)
        while self._chars > self.max_chars:
            self.pop(*next(iter(self._reports)))

    def get(self, group_id: str, member_id: str) -> Names | None:
        """Return the member's report, or None if there is none."""
        return self._reports.get((group_id, member_id))

    def pop(self, group_id: str, member_id: str) -> Names | None:
        """Remove and return the member's report, or None if there is none."""
        report = self._reports.pop((group_id, member_id), None)
        if report is not None:
            self._chars -= _chars(group_id, member_id, report)
        return report


@dataclass(slots=True)
class HeartbeatPace:
    """A limiter that allows one event, such as a large report, per heartbeat interval.

    `interval_ms` is the interval in the coordinator's latest answer. An event may start slightly early,
    because a heartbeat may arrive slightly early.
    """

    interval_ms: int = 0
    _latest_start_s: float = -inf

    def try_start(self) -> bool:
        """Start an event. Return False if the latest one was too short a time ago."""
        now_s = monotonic()
        if now_s - self._latest_start_s < _MIN_PART_OF_INTERVAL * self.interval_ms / 1_000:
            return False
        self._latest_start_s = now_s
        return True


def _chars(group_id: str, member_id: str, report: Sequence[str]) -> int:
    return len(group_id) + len(member_id) + sum(map(len, report))


@dataclass(slots=True)
class LastHeartbeat:
    """The last heartbeat on a connection: its API, version and encoded body, and the decoded request."""

    sent: tuple[int, int, bytes] | None = None
    request: Any = None


@dataclass(frozen=True, slots=True)
class ConnectionCaches:
    """The gateway's state of one connection. It is dropped with the connection, so nothing in it expires."""

    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    share_session: ShareSession = field(default_factory=ShareSession)
    requested_patterns: PendingReports[str] = field(
        default_factory=partial(PendingReports, _PATTERNS_MAX_CHARS)
    )
    requested_topics: PendingReports[list[str]] = field(
        default_factory=partial(PendingReports, _TOPICS_MAX_CHARS)
    )
    # The reasons why internal topics were not created.
    creation_failures: PendingReports[str] = field(
        default_factory=partial(PendingReports, _PATTERNS_MAX_CHARS)
    )
    # The paces of large reports of `requested_topics`, and of the creation of internal topics.
    metadata_pace: HeartbeatPace = field(default_factory=HeartbeatPace)
    creation_pace: HeartbeatPace = field(default_factory=HeartbeatPace)
    metric_pushes: ClientMetricsInstance = field(default_factory=ClientMetricsInstance)
    last_heartbeat: LastHeartbeat = field(default_factory=LastHeartbeat)


R = TypeVar("R", bound=Response)


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that the handlers of all connections share."""

    backend: Backend
    cluster: Cluster
    groups: FreshGroups
    # Returns the port of a broker's listener, which it opens if necessary.
    listener_port: Callable[[int], Awaitable[int]]
    internal_topics: InternalTopics
    transactions: Transactions
    share_groups: ShareGroups
    streams_topics: StreamsTopics
    # The address that clients get for a broker and its listener's port. None stands for the address to which
    # the client has connected.
    advertised: Callable[[int, int], Address | None]
    frame_max_bytes: int  # larger requests are not sent to the coordinator
    authorizer: Authorizer | None = None  # None: the gateway checks no ACLs
    checks_forwarded_requests: bool = False  # the gateway also checks ACLs of requests that brokers answer
    consumer_protocol: bool = True  # it is switched on (KIP-848)
    streams_protocol: bool = True  # it is switched on (KIP-1071)
    telemetry: ClientTelemetry | None = None  # None: the brokers get clients' metrics
    deliveries: Deliveries | None = None  # None: share groups' records are not counted
    # Held while a client's rights to a pattern's topics are checked.
    pattern_checks: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    # Ensures that a turn of the event loop has at most one slice of long work (`Slices`).
    turns: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))


class Deferred(Struct, frozen=True):
    """A response that `fields` builds when the coordinator's response arrives.

    With `holds_back` the connection's next request does not start before this response is ready, because the
    coordinator may park this request, or because some of its requests to the coordinator are not sent yet.
    """

    response: asyncio.Future[Any]
    fields: Callable[[Any], Fields]
    holds_back: bool = False


class FanOut(Protocol):
    """The accounting of one connection's requests about several items, such as groups. Each item takes
    capacity at the coordinator, and a part of the client's quota.
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
    oversized_bytes: int = 0  # the size of a frame that is too large for the requests topic, else 0

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
        """Send a request to the coordinator, or refuse it if its frame is oversized (`Backend`)."""
        if self.oversized_bytes:
            error = oversized_error(request, self.oversized_bytes, self.services.frame_max_bytes)
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
        of the brokers has its coordinator behind one listener. Requests do not have the group's type, so any
        group might be a share group.
        """
        live_brokers = self.services.cluster.live
        share_coordinator = self.services.share_groups.coordinator_of(group_id)
        if share_coordinator in live_brokers:
            return share_coordinator
        if not live_brokers:
            return None
        count = len(live_brokers)
        return live_brokers[partition_of(group_id, count) if id_hash is None else id_hash % count]
