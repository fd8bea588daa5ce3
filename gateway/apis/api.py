"""The row of an API: how the gateway handles its requests, and the checks of ACLs that handlers have in
common. `gateway.apis` has the tables of rows.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.apis.context import Deferred, RequestContext, Services
from gateway.authorization.acls import CLUSTER_NAME, SUPPORTED, Operation, ResourceType
from gateway.upstream.cluster import TOPIC_AGE_MAX_S
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError, NewerApiKey
from gateway.wire.framing import RequestHeader
from kafka_why.contract.messages import Response
from kafka_why.wire.schema_reader import Pause

# Requests of which only a part passes to the broker, or whose response is changed.


Change = Callable[[Any], Awaitable[None]]
"""A function that changes a broker's response, in slices if it is long."""


@dataclass(frozen=True, slots=True)
class Screened:
    """A request after screening.

    If `change`, `answer` and `refused` are absent, the broker's response passes undecoded.
    """

    # The message for the broker, or None if nothing remains.
    remaining: bytes | None
    # A response with the errors of the refused entries.
    refused: Fields
    # Changes the broker's response.
    change: Change | None = None
    # Called with the beginning of the broker's response, and `on_part` with each part.
    on_start: Callable[[bytes], None] | None = None
    on_part: Callable[[bytes], object] | None = None
    # Builds the whole response from the broker's, instead of `refused` and `change`.
    answer: Callable[[Any], Awaitable[Fields]] | None = None

    @property
    def changes_response(self) -> bool:
        """True if the broker's response has to be decoded for `complete`."""
        return bool(self.refused) or self.change is not None or self.answer is not None

    def receive(self, response: bytes) -> None:
        """Pass a whole response to `on_start` and `on_part`."""
        for handler in (self.on_start, self.on_part):
            if handler is not None:
                handler(response)

    async def complete(self, response: Any) -> tuple[Any, bool]:
        """Change the broker's response, and add the errors of the refused entries. Return the response, and
        True if these errors are many.
        """
        if self.answer is not None:
            return await self.answer(response), False
        if self.change is not None:
            await self.change(response)
        is_long = offload.is_long(self.refused)
        for name, entries in self.refused.items():
            if is_long:
                await offload.run(codec.extend, response, name, entries)
            else:
                codec.extend(response, name, entries)
        return response, is_long


def combine(first: Screened, second: Screened) -> Screened:
    """Combine two screenings. The second one screened the remaining message of the first."""
    lists = {*first.refused, *second.refused}
    changes = [one.change for one in (first, second) if one.change is not None]
    return Screened(
        second.remaining,
        {name: [*_entries(first, name), *_entries(second, name)] for name in lists},
        chain(changes) if changes else None,
        first.on_start or second.on_start,
        first.on_part or second.on_part,
        first.answer or second.answer,
    )


def _entries(screened: Screened, name: str) -> Sequence[Fields]:
    entries: Sequence[Fields] = screened.refused.get(name, ())
    return entries


def chain(changes: Sequence[Change]) -> Change:
    """Return a change that applies these changes one after the other."""

    async def change(response: Any) -> None:
        for one in changes:
            await one(response)

    return change


GROUP_REFUSED = {"error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
"""The response about a group that the client may not use."""


def may_read_group(context: RequestContext, group_id: str) -> bool:
    """Return True if the client may be a member of the group, and commit offsets."""
    return context.may(Operation.READ, ResourceType.GROUP, group_id)


def may_describe_group(context: RequestContext, group_id: str) -> bool:
    """Return True if the client may find the group's coordinator, and read the group and its offsets."""
    return context.may(Operation.DESCRIBE, ResourceType.GROUP, group_id)


def may_delete_group(context: RequestContext, group_id: str) -> bool:
    """Return True if the client may delete the group or some of its offsets."""
    return context.may(Operation.DELETE, ResourceType.GROUP, group_id)


def may_read_topic(context: RequestContext, topic: str) -> bool:
    """Return True if the client may commit and delete offsets of the topic."""
    return context.may(Operation.READ, ResourceType.TOPIC, topic)


def may_describe_topic(context: RequestContext, topic: str) -> bool:
    """Return True if the client may see offsets of the topic."""
    return context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def describable_topics(context: RequestContext, topics: Iterable[str]) -> list[str]:
    """Return those of `topics` that the client may describe."""
    return [topic for topic in topics if may_describe_topic(context, topic)]


def group_operations(context: RequestContext, group_id: str) -> frozenset[Operation]:
    """Return the client's permitted operations on the group (`include_authorized_operations`)."""
    authorizer = context.services.authorizer
    if authorizer is None:
        return SUPPORTED[ResourceType.GROUP]
    return authorizer.operations(context.principal, context.client_host, ResourceType.GROUP, group_id)


def transaction_error(context: RequestContext, transactional_id: str, group_id: str) -> GatewayError | None:
    """Return the error of a whole AddOffsetsToTxn or TxnOffsetCommit, or None.

    The client needs WRITE on the transactional id and READ on the group. The READ that TxnOffsetCommit needs
    on each topic is checked elsewhere.
    """
    if not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return GatewayError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not may_read_group(context, group_id):
        return GatewayError.GROUP_AUTHORIZATION_FAILED
    return None


ERRORS: Mapping[ResourceType, GatewayError] = MappingProxyType(
    {
        ResourceType.TOPIC: GatewayError.TOPIC_AUTHORIZATION_FAILED,
        ResourceType.GROUP: GatewayError.GROUP_AUTHORIZATION_FAILED,
        ResourceType.CLUSTER: GatewayError.CLUSTER_AUTHORIZATION_FAILED,
        ResourceType.TRANSACTIONAL_ID: GatewayError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


TopicKey = str | UUID
"""The name or the id of a topic."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The ACL check of an API whose requests have one list of entries.

    The list is `request_field` in the request, and `response_field` in the response. `error` returns the
    error of an entry, or None if the client is allowed. `refused` returns the response's entry for a refused
    entry.
    """

    request_field: str
    response_field: str
    error: Callable[[RequestContext, Any], GatewayError | None]
    refused: Callable[[Any, GatewayError], Fields]

    async def guard(
        self, context: RequestContext, message: bytes, change: Change | None = None
    ) -> Screened | None:
        """Check a request, as `gateway.apis.passed_on.guard` does. `change` changes the broker's response."""
        request = await offload.decode_passed(context.header, message)
        entries: list[Any] = getattr(request, self.request_field) or []
        errors = await context.slices().each(partial(self.error, context), entries)
        if not any(errors):
            return None if change is None else Screened(message, {}, change)
        kept = [entry for entry, error in zip(entries, errors, strict=True) if error is None]
        setattr(request, self.request_field, kept)
        remaining = await offload.with_body(context.header, message, request) if kept else None
        refused = await offload.run_sized(message, self._refused, entries, errors)
        return Screened(remaining, {self.response_field: refused}, change)

    def _refused(self, entries: Iterable[Any], errors: Iterable[GatewayError | None]) -> list[Fields]:
        return [
            self.refused(entry, error)
            for entry, error in zip(entries, errors, strict=True)
            if error is not None
        ]


def may_on_cluster(context: RequestContext, operation: Operation) -> bool:
    """Return True if the client may do this operation on the cluster."""
    return context.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)


async def topic_errors(
    context: RequestContext,
    topics: Iterable[TopicKey],
    operation: Operation,
    age_max_s: float = TOPIC_AGE_MAX_S,
) -> Mapping[TopicKey, GatewayError]:
    """Return the errors of the topics that the client may not use, by name or id. Raises UpstreamLost.

    An id without a known topic has an error, because ACLs are about names. The metadata is no older than
    `age_max_s`.
    """
    wanted = set(topics)
    ids = [key for key in wanted if isinstance(key, UUID)]
    found = await context.services.cluster.topics_by_id(ids, age_max_s) if ids else {}
    errors, slices = dict[TopicKey, GatewayError](), context.slices()
    for key in wanted:
        await slices.pause()
        topic = found.get(key) if isinstance(key, UUID) else None
        name = key if isinstance(key, str) else None if topic is None else topic.name
        if name is None:
            errors[key] = GatewayError.UNKNOWN_TOPIC_ID
        elif not context.may(operation, ResourceType.TOPIC, name):
            errors[key] = GatewayError.TOPIC_AUTHORIZATION_FAILED
    return errors


Answer = Fields | Deferred
# The call ends when all its requests to the coordinator are sent, so that requests are sent in order.
Serve = Callable[[RequestContext, Any], Awaitable[Answer]]
ServeAtOnce = Callable[[RequestContext, Any], Answer | None]
Decode = Callable[[RequestHeader, bytes, Pause | None], Any]
Screen = Callable[[RequestContext, bytes], Awaitable[Screened | None]]
Rewrite = Callable[[RequestContext, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """An API that the gateway answers.

    `serve_at_once` never waits. If it returns None, `serve` has to look something up. An API without `serve`
    answers every request at once.
    """

    key: ApiKey
    serve: Serve | None = None
    serve_at_once: ServeAtOnce | None = None
    decode: Decode = codec.decode_request  # raises ProtocolError
    # The class of the coordinator's response, if the coordinator may park requests.
    parks: type[Response] | None = None
    asks_coordinator: bool = True  # False: the gateway answers the request itself
    is_metered: bool = True  # requests count for clients' quotas
    is_exclusive: bool = False  # a connection has no concurrent request
    # While it returns False, ApiVersions omits the API.
    is_offered: Callable[[Services], bool] = lambda services: True
    # The error in a coordinator's answer, for the metrics.
    error_code: Callable[[Any], int] = lambda answer: getattr(answer, "error_code", 0)
    # The bytes that the gateway adds to a request to the coordinator, if they may be many.
    added_bytes: Callable[[RequestContext, Any], int] = lambda context, request: 0
    # True if a broker has to answer this request.
    is_for_broker: Callable[[Any], bool] | None = None
    # True if brokers answer all requests of the API.
    is_passed: Callable[[Services], bool] | None = None
    versions: range = range(0)
    """By default the codec's versions."""
    needs_capacity: bool = field(init=False)
    """True if a request needs capacity at the coordinator. A request that may be parked needs none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self.versions or codec.versions(self.key))
        object.__setattr__(self, "needs_capacity", self.asks_coordinator and self.parks is None)

    def passes(self, services: Services) -> bool:
        """Return True if brokers answer all requests of the API."""
        return self.is_passed is not None and self.is_passed(services)

    async def decoded(self, header: RequestHeader, message: bytes) -> Any:
        """Decode a request, off the event loop if it is large. Raises ProtocolError."""
        if len(message) <= offload.AT_ONCE_BYTES:
            return self.decode(header, message, None)
        return await offload.run(self.decode, header, message, offload.pause)

    async def answer(self, context: RequestContext, request: Any) -> Answer:
        """Answer a request, waiting if necessary."""
        if self.serve is not None:
            return await self.serve(context, request)
        assert self.serve_at_once is not None, "a row has a handler"
        answer = self.serve_at_once(context, request)
        assert answer is not None, "without `serve` it answers every request"
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """An API that brokers answer, and whose requests the gateway checks or whose responses it changes.

    Five screens may remove entries from a request and complete the response: `guard`, `groups`, `brokers`,
    `internal`, `screen`. A request without a guard needs the operation `needs` on the cluster, or a super
    user.

    `rewrite` changes the responses for which `is_rewritten` returns true. `is_rewritten` gets the version and
    the bytes, and raises ProtocolError.
    """

    key: ApiKey | NewerApiKey
    guard: Screen | None = None  # removes entries that the ACLs forbid
    groups: Screen | None = None  # removes groups that the coordinator answers
    brokers: Screen | None = None  # removes the coordinator's settings among a broker's
    internal: Screen | None = None  # removes changes of the coordinator's own topics
    screen: Screen | None = None  # special to the API
    needs: Operation | None = None
    is_free: bool = False  # Kafka has no ACLs for it
    is_screened: bool = False  # `screen` checks the ACLs
    is_hidden: bool = False  # absent from ApiVersions while the gateway checks ACLs
    rewrite: Rewrite | None = None
    is_rewritten: Callable[[int, bytes], bool] = lambda version, response: True
    versions: range | None = None
    """By default the codec's versions, or None for all versions if the gateway has no schema of the API."""

    def __post_init__(self) -> None:
        if self.versions is None and self.key in codec.REQUESTS:
            object.__setattr__(self, "versions", codec.versions(self.key))
