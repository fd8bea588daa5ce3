"""The definition of an API: how the gateway handles its requests, and the checks of ACLs that handlers have
in common. `gateway.apis` has the tables of APIs, whose rows are these definitions.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.apis.context import Deferred, LastHeartbeat, RequestContext, Services
from gateway.authorization.acls import CLUSTER_NAME, SUPPORTED, Operation, ResourceType
from gateway.upstream.cluster import TOPIC_AGE_MAX_S
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError, NewerApiKey
from gateway.wire.framing import ProtocolError, RequestHeader
from kafka_why.contract.messages import Response
from kafka_why.wire.schema_reader import Pause

# Screening of requests that pass to brokers: entries of a request may be removed, and its response changed.


Change = Callable[[Any], Awaitable[None]]
"""A function that changes a broker's response, in slices if it is long."""


@dataclass(frozen=True, slots=True)
class Screened:
    """A request after screening: the part that passes to the broker, and how the client's response is built.

    Without `change`, `answer` and `refused`, the broker's response passes undecoded.
    """

    # The message for the broker. If it is None, nothing is sent, and `refused` is the whole response.
    remaining: bytes | None
    # The errors of the refused entries, as fields of the response. Its lists are added to the broker's.
    refused: Fields
    # Changes the broker's response before `refused` is added.
    change: Change | None = None
    # Receives the beginning of the broker's response.
    on_start: Callable[[bytes], None] | None = None
    # Receives each part of the broker's response.
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
        True if its many errors make it slow to encode.
        """
        if self.answer is not None:
            return await self.answer(response), False
        if self.change is not None:
            await self.change(response)
        has_many_errors = offload.is_long(self.refused)
        for list_name, entries in self.refused.items():
            await offload.run_if(has_many_errors, codec.extend, response, list_name, entries)
        return response, has_many_errors


def combine(first: Screened, second: Screened) -> Screened:
    """Combine two screenings. The second one screened the remaining message of the first.

    An API has at most one screen that sets `on_start`, `on_part` or `answer`.
    """
    list_names = {*first.refused, *second.refused}
    changes = [screened.change for screened in (first, second) if screened.change is not None]
    return Screened(
        remaining=second.remaining,
        refused={name: [*first.refused.get(name, ()), *second.refused.get(name, ())] for name in list_names},
        change=chain(changes) if changes else None,
        on_start=first.on_start or second.on_start,
        on_part=first.on_part or second.on_part,
        answer=first.answer or second.answer,
    )


def chain(changes: Sequence[Change]) -> Change:
    """Return a change that applies these changes one after the other."""

    async def change_all(response: Any) -> None:
        for change in changes:
            await change(response)

    return change_all


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

    The client needs WRITE on the transactional id and READ on the group. TxnOffsetCommit also needs READ on
    each topic, which `ValidPartitions` checks.
    """
    if not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return GatewayError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return None if may_read_group(context, group_id) else GatewayError.GROUP_AUTHORIZATION_FAILED


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


_NO_DETAILS: Fields = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EntryList:
    """The list of entries in the requests of an API.

    `request_field` is the name of the list in the request, `response_field` in the response. `refused_entry`
    builds the response's entry for a refused entry. It gets the entry and the fields of its error.
    """

    request_field: str
    response_field: str
    refused_entry: Callable[[Any, Fields], Fields]

    def entries(self, request: Any) -> list[Any]:
        """Return the entries of a decoded request."""
        return getattr(request, self.request_field) or []

    async def screen(
        self,
        context: RequestContext,
        message: bytes,
        request: Any,
        errors: Sequence[GatewayError | None],
        change: Change | None = None,
        error_details: Fields = _NO_DETAILS,
    ) -> Screened | None:
        """Remove the entries with an error from a decoded request. Return None if nothing changes.

        `errors` has the error of each entry, or None for an entry that passes. `change` changes the broker's
        response. `error_details` has the fields of a refused entry besides its error code. Raises
        ProtocolError if an entry has an error and the codec lacks the request's version.
        """
        if not any(errors):
            return None if change is None else Screened(message, refused={}, change=change)
        header = context.header
        if header.api_version not in codec.versions(header.api_key):
            raise ProtocolError(f"a {ApiKey(header.api_key).name} v{header.api_version} that is not allowed")
        entries = self.entries(request)
        allowed = [entry for entry, error in zip(entries, errors, strict=True) if error is None]
        setattr(request, self.request_field, allowed)
        remaining = await offload.with_body(header, message, request) if allowed else None
        is_large = len(message) > offload.AT_ONCE_BYTES
        refused = await offload.run_if(is_large, self._refused_entries, entries, errors, error_details)
        return Screened(remaining, {self.response_field: refused}, change)

    def _refused_entries(
        self, entries: Iterable[Any], errors: Iterable[GatewayError | None], error_details: Fields
    ) -> list[Fields]:
        return [
            self.refused_entry(entry, {"error_code": error, **error_details})
            for entry, error in zip(entries, errors, strict=True)
            if error is not None
        ]


@dataclass(frozen=True, slots=True)
class EntryGuard(EntryList):
    """The ACL check of an API whose requests have one list of entries. `error` returns the error of an entry,
    or None if the client is allowed.
    """

    error: Callable[[RequestContext, Any], GatewayError | None]

    async def guard(
        self, context: RequestContext, message: bytes, change: Change | None = None
    ) -> Screened | None:
        """Check the entries of a request, and remove the denied ones. Return None if nothing changes.

        `change` changes the broker's response.
        """
        request = await offload.decode_passed(context.header, message)
        errors = await context.slices().each(partial(self.error, context), self.entries(request))
        return await self.screen(context, message, request, errors, change)


def may_on_cluster(context: RequestContext, operation: Operation) -> bool:
    """Return True if the client may do this operation on the cluster."""
    return context.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)


async def topic_errors(
    context: RequestContext,
    topics: Iterable[TopicKey],
    operation: Operation,
    age_max_s: float = TOPIC_AGE_MAX_S,
) -> Mapping[TopicKey, GatewayError]:
    """Return the errors of the topics on which the client lacks the operation, by name or id as in `topics`.
    Raises UpstreamLost.

    An id without a topic has an error, because ACLs are about names. The metadata of ids is no older than
    `age_max_s`.
    """
    keys = set(topics)
    ids = [key for key in keys if isinstance(key, UUID)]
    topics_by_id = await context.services.cluster.topics_by_id(ids, age_max_s) if ids else {}
    names_by_id = {topic_id: topic.name for topic_id, topic in topics_by_id.items()}
    errors, slices = dict[TopicKey, GatewayError](), context.slices()
    for key in keys:
        await slices.pause()
        name = key if isinstance(key, str) else names_by_id.get(key)
        if name is None:
            errors[key] = GatewayError.UNKNOWN_TOPIC_ID
        elif not context.may(operation, ResourceType.TOPIC, name):
            errors[key] = GatewayError.TOPIC_AUTHORIZATION_FAILED
    return errors


Answer = Fields | Deferred
# Answers a decoded request. It returns when its requests to the coordinator are sent, so that the requests of
# a connection are sent in order. If it sends some of them later, it returns a `Deferred` that holds back the
# connection's next request.
Serve = Callable[[RequestContext, Any], Awaitable[Answer]]
# The same without waiting. None: this request needs `Serve`.
ServeAtOnce = Callable[[RequestContext, Any], Answer | None]
# Decodes a request. The last argument is called now and then during a long decoding in a thread, else None.
Decode = Callable[[RequestHeader, bytes, Pause | None], Any]
Screen = Callable[[RequestContext, bytes], Awaitable[Screened | None]]
Rewrite = Callable[[RequestContext, Any], Awaitable[None]]
# Larger heartbeats are rare. Caching them would take much memory, because each connection caches one.
_CACHED_HEARTBEAT_MAX_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """An API that the gateway answers.

    `serve_at_once` never waits. It returns None for a request that has to wait for a query of the brokers, or
    for other work of `serve`. An API without `serve` answers every request at once.

    The coordinator *parks* a request if it answers only after another event. For example, it answers a
    JoinGroup when the other members have joined.
    """

    key: ApiKey
    serve: Serve | None = None
    serve_at_once: ServeAtOnce | None = None
    decode: Decode = codec.decode_request  # raises ProtocolError
    # The class of the coordinator's response, if the coordinator may park requests.
    parks: type[Response] | None = None
    asks_coordinator: bool = True  # False: the gateway answers without the coordinator
    is_metered: bool = True  # requests count for clients' quotas
    is_exclusive: bool = False  # no other request of the connection runs at the same time
    is_heartbeat: bool = False  # a member repeats the same request until something changes
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

    def decode_at_once(self, header: RequestHeader, message: bytes, last: LastHeartbeat) -> Any:
        """Decode a small request. A heartbeat that repeats the connection's last is not decoded again."""
        if not self.is_heartbeat or len(message) > _CACHED_HEARTBEAT_MAX_BYTES:
            return self.decode(header, message, None)
        sent = header.api_key, header.api_version, message[header.client_id_end :]
        if sent != last.sent:
            last.request, last.sent = self.decode(header, message, None), sent
        return last.request

    async def decode_offloaded(self, header: RequestHeader, message: bytes) -> Any:
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
class PassedApi:
    """An API that brokers answer, and whose requests the gateway checks or whose responses it changes.

    Five screens may remove entries from a request and complete the response: `guard`, `groups`, `brokers`,
    `internal`, `screen`. For an API without `guard`, `is_free` and `is_screened`, the client needs the
    operation `needs` on the cluster. If `needs` is None, only super users may send requests.

    `rewrite` changes the responses for which `is_rewritten` returns true. `is_rewritten` gets the version and
    the bytes, and raises ProtocolError.
    """

    key: ApiKey | NewerApiKey
    guard: Screen | None = None  # removes entries that the ACLs forbid
    groups: Screen | None = None  # removes groups, for which the coordinator answers
    brokers: Screen | None = None  # replaces or protects the coordinator's settings among a broker's
    internal: Screen | None = None  # removes changes of the coordinator's own topics
    screen: Screen | None = None  # special to the API
    needs: Operation | None = None
    is_free: bool = False  # Kafka has no ACLs for it
    is_screened: bool = False  # `screen` checks the ACLs
    is_hidden_if_checked: bool = False  # absent from ApiVersions if the gateway checks its ACLs
    rewrite: Rewrite | None = None
    is_rewritten: Callable[[int, bytes], bool] = lambda version, response: True
    versions: range | None = None
    """The accepted versions, by default those of the codec. None accepts all: the codec lacks the API."""

    def __post_init__(self) -> None:
        if self.versions is None and self.key in codec.REQUESTS:
            object.__setattr__(self, "versions", codec.versions(self.key))
