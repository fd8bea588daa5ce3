"""ACLs of requests that pass to the brokers: Metadata, DescribeCluster, Produce, Fetch and those about
transactions. An allowed request passes unchanged.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from struct import Struct
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import ERRORS, Entries, Screened, TopicKey, may_on_cluster, topic_errors
from gateway.apis.context import NO_SESSION, RequestContext
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.limits import MIB
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError
from gateway.wire.framing import ProtocolError

_FIRST_WITH_CREATION_FLAG = 4
_FIRST_NULL_FOR_ALL = 1
_NO_ID = UUID(int=0)
_DENIED, _NO_TOPIC = GatewayError.TOPIC_AUTHORIZATION_FAILED, GatewayError.UNKNOWN_TOPIC_OR_PARTITION


async def guard_metadata(context: RequestContext, message: bytes) -> Screened | None:
    """Require DESCRIBE on each topic.

    The broker creates topics only if the client may create all topics that the request names. Denied names do
    not reach the broker, which would create them.

    A denied topic is left out of the response to a request for all topics. If it was requested by its id, the
    response has an error without its name.
    """
    request = await offload.decode_passed(context.header, message)
    topics: list[Any] | None = request.topics
    if topics is not None and not topics and context.version < _FIRST_NULL_FOR_ALL:
        topics = None
    errors: dict[str, GatewayError] = {}
    stops_creation = False
    if topics is not None:
        errors |= dict.fromkeys(await _uncreatable(context, request), _NO_TOPIC)
        errors |= dict.fromkeys(await _undescribable(context, topics), _DENIED)
        has_flag = context.version >= _FIRST_WITH_CREATION_FLAG and request.allow_auto_topic_creation
        stops_creation = has_flag and not _may_create_all(context, request)
    # A broker ignores all names as soon as one entry has an id.
    is_by_id = topics is not None and any(not t.name or t.topic_id is not None for t in topics)
    wants_operations = bool(
        request.include_topic_authorized_operations or request.include_cluster_authorized_operations
    )
    is_plain = topics is not None and not errors and not is_by_id and not wants_operations
    if is_plain and not stops_creation:
        return None
    remaining = message
    if topics is not None and (errors or stops_creation):
        request.topics = [topic for topic in topics if topic.name not in errors]
        request.allow_auto_topic_creation = request.allow_auto_topic_creation and not stops_creation
        remaining = await offload.with_body(context.header, message, request)
    if is_plain:
        return Screened(remaining, {})

    async def change(response: Any) -> None:
        if topics is not None and context.version < _FIRST_NULL_FOR_ALL and not request.topics:
            response.topics = []  # all names were hidden, and version 0 then requests all topics
        shown = await context.slices().each(
            partial(_shown, context, request, is_of_all=topics is None), response.topics
        )
        response.topics = [topic for topic in shown if topic is not None]
        if request.include_cluster_authorized_operations and context.services.authorizer is not None:
            response.authorized_operations = _cluster_operations(context)

    refused = [
        {"error_code": errors[topic.name], "name": topic.name, "topic_id": _NO_ID, "partitions": []}
        for topic in topics or ()
        if topic.name in errors
    ]
    return Screened(remaining, {"topics": refused} if refused else {}, change)


async def guard_cluster(context: RequestContext, message: bytes) -> Screened | None:
    """Replace the gateway's operations in the response to a DescribeCluster by the client's."""
    request = await offload.decode_passed(context.header, message)
    if not request.include_cluster_authorized_operations:
        return None

    async def change(response: Any) -> None:
        response.authorized_operations = _cluster_operations(context)

    return Screened(message, {}, change)


async def _undescribable(context: RequestContext, topics: list[Any]) -> set[str]:
    names = list({topic.name for topic in topics if topic.name})
    may = partial(context.may, Operation.DESCRIBE, ResourceType.TOPIC)
    shown = await context.slices().each(may, names)
    return {name for name, is_shown in zip(names, shown, strict=True) if not is_shown}


async def _uncreatable(context: RequestContext, request: Any) -> set[str]:
    """Return the topics that the broker would create although the client may not create them."""
    if context.version >= _FIRST_WITH_CREATION_FLAG or _may_create_all(context, request):
        # In these versions the request itself can forbid the creation.
        return set()
    names = {
        topic.name
        for topic in request.topics
        if not context.may(Operation.CREATE, ResourceType.TOPIC, topic.name)
    }
    return names - (await context.services.cluster.topics(names)).keys()


def _may_create_all(context: RequestContext, request: Any) -> bool:
    named = (topic.name for topic in request.topics if topic.name)
    return may_on_cluster(context, Operation.CREATE) or all(
        context.may(Operation.CREATE, ResourceType.TOPIC, name) for name in named
    )


def _shown(context: RequestContext, request: Any, topic: Any, *, is_of_all: bool) -> Any | None:
    """Return the topic with the client's operations instead of the gateway's.

    A topic that the client may not describe becomes None if all topics were requested, else an error without
    the topic's name.
    """
    if topic.name and not context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
        if is_of_all:
            return None
        topic.error_code, topic.name = _DENIED, None
        topic.is_internal, topic.partitions = False, []
    authorizer = context.services.authorizer
    has_operations = request.include_topic_authorized_operations and topic.name and not topic.error_code
    if has_operations and authorizer is not None:
        topic.authorized_operations = authorizer.operations(
            context.principal, context.client_host, ResourceType.TOPIC, topic.name
        )
    return topic


def _cluster_operations(context: RequestContext) -> frozenset[Operation]:
    authorizer = context.services.authorizer
    if authorizer is None or not context.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        # As in Kafka, a client that may not describe the cluster has no operation on it.
        return frozenset()
    return authorizer.operations(context.principal, context.client_host, ResourceType.CLUSTER, CLUSTER_NAME)


_PRODUCE_FIRST_BY_ID = 13
_FETCH_FIRST_BY_ID = 13
_FETCH_FIRST_SESSION = 7
_FETCH_FIRST_FLEXIBLE = 12

# A Fetch response to which errors are added is buffered and decoded.
CHANGED_MAX_BYTES = MIB

# FetchMetadata: the epochs of a request that starts a session, and of a request without a session.
_INITIAL_EPOCH, _FINAL_EPOCH = 0, -1
_SESSION_ID = Struct(">i")
# The position of a Fetch response's session id: after correlation id, throttle time and error, and in
# flexible versions after the header's tagged fields, which brokers leave empty.
_SESSION_ID_AT = 10


async def guard_produce(context: RequestContext, message: bytes) -> Screened | None:
    """Require WRITE on each topic, and on the transactional id if there is one."""
    header = context.header
    request = await offload.decode_passed(header, message)
    by_id = context.version >= _PRODUCE_FIRST_BY_ID
    keys: list[TopicKey] = [topic.topic_id or _NO_ID if by_id else topic.name for topic in request.topic_data]
    if request.transactional_id is not None and not context.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        denied = GatewayError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        errors: Mapping[TopicKey, GatewayError] = dict.fromkeys(keys, denied)
    else:
        errors = await topic_errors(context, keys, Operation.WRITE)
    if not errors:
        return None
    if context.version not in codec.versions(ApiKey.Produce):
        raise ProtocolError(f"a Produce v{context.version} that is not allowed")
    refused = await offload.run_sized(
        message, _each_refused, _refused_produce, request.topic_data, keys, errors
    )
    request.topic_data = [t for t, key in zip(request.topic_data, keys, strict=True) if key not in errors]
    remaining = await offload.with_body(header, message, request) if request.topic_data else None
    return Screened(remaining, {"responses": refused})


async def guard_fetch(context: RequestContext, message: bytes) -> Screened | None:
    """Require READ on each topic.

    A request with a denied topic passes without it and without a session, so that the client's next request
    repeats the topic and gets the error again. A session that may not continue ends with
    FETCH_SESSION_ID_NOT_FOUND, after which clients repeat all their topics.
    """
    header, authorizer = context.header, context.services.authorizer
    assert authorizer is not None
    version = authorizer.version
    request = await offload.decode_passed(header, message)
    # A replica's Fetch needs CLUSTER_ACTION in Kafka, and moves the partition's high watermark.
    if _is_of_replica(request):
        raise ProtocolError("a Fetch of a replica: no broker replicates through a gateway")
    by_id = context.version >= _FETCH_FIRST_BY_ID
    topics = [topic.topic_id if by_id else topic.topic for topic in request.topics]
    errors = await topic_errors(context, topics, Operation.READ)
    has_session = context.version >= _FETCH_FIRST_SESSION
    epoch = request.session_epoch if has_session else _FINAL_EPOCH
    if epoch > _INITIAL_EPOCH:
        if not errors and context.caches.fetches.may_continue(request.session_id, version):
            return None
        ended = {"error_code": GatewayError.FETCH_SESSION_ID_NOT_FOUND, "session_id": NO_SESSION}
        return Screened(None, ended)
    if not errors:
        if epoch == _FINAL_EPOCH:
            return None
        at = _SESSION_ID_AT + (1 if context.version >= _FETCH_FIRST_FLEXIBLE else 0)

        def on_start(response: bytes) -> None:
            context.caches.fetches.add(_SESSION_ID.unpack_from(response, at)[0], version)

        return Screened(message, {}, on_start=on_start)
    kept = [t for t, key in zip(request.topics, topics, strict=True) if key not in errors]
    refused = await offload.run_sized(message, _each_refused, _refused_fetch, request.topics, topics, errors)
    request.topics = kept
    request.max_bytes = min(request.max_bytes, CHANGED_MAX_BYTES)
    if has_session:
        request.session_id, request.session_epoch = NO_SESSION, _FINAL_EPOCH
    remaining = await offload.with_body(header, message, request) if kept else None
    return Screened(remaining, {"responses": refused})


def _is_of_replica(request: Any) -> bool:
    # From version 15 on the follower's id is in this tagged field.
    state = request.replica_state
    return request.replica_id >= 0 or (state is not None and state.replica_id >= 0)


def _each_refused(
    refused: Callable[[Any, GatewayError], Fields],
    topics: Iterable[Any],
    keys: Iterable[TopicKey],
    errors: Mapping[TopicKey, GatewayError],
) -> list[Fields]:
    return [refused(topic, errors[key]) for topic, key in zip(topics, keys, strict=True) if key in errors]


def _refused_produce(topic: Any, error: GatewayError) -> Fields:
    return {
        **({"name": topic.name} if topic.name else {"topic_id": topic.topic_id}),
        "partition_responses": [
            {"index": p.index, "base_offset": -1, "error_code": error} for p in topic.partition_data
        ],
    }


def _refused_fetch(topic: Any, error: GatewayError) -> Fields:
    nothing = {
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": [],
        "records": b"",
    }
    return {
        **({"topic": topic.topic} if topic.topic else {"topic_id": topic.topic_id}),
        "partitions": [
            {"partition_index": p.partition, "error_code": error, **nothing} for p in topic.partitions
        ],
    }


_TOPIC, _TRANSACTION = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


def describe_transaction_error(context: RequestContext, transactional_id: str) -> GatewayError | None:
    """Return the error if the client may not describe the transaction, else None."""
    may = context.may(Operation.DESCRIBE, _TRANSACTION, transactional_id)
    return None if may else ERRORS[_TRANSACTION]


_FIRST_FIND_OF_SEVERAL = 4
_NOWHERE = {"node_id": -1, "host": "", "port": -1}
_FOUND = Entries(
    "coordinator_keys",
    "coordinators",
    describe_transaction_error,
    lambda key, error: {"key": key, **_NOWHERE, "error_code": error, "error_message": ""},
)


async def guard_find(context: RequestContext, message: bytes) -> Screened | None:
    """Require DESCRIBE on each transactional id."""
    if context.version >= _FIRST_FIND_OF_SEVERAL:
        return await _FOUND.guard(context, message)
    request = await offload.decode_passed(context.header, message)
    error = describe_transaction_error(context, request.key)
    if error is None:
        return None
    return Screened(None, {**_NOWHERE, "error_code": error, "error_message": error.name})


async def guard_producer_id(context: RequestContext, message: bytes) -> Screened | None:
    """Require WRITE on the transactional id. Without a transactional id, WRITE on any topic suffices."""
    request = await offload.decode_passed(context.header, message)
    authorizer = context.services.authorizer
    error = None
    if request.transactional_id is not None:
        needed = [Operation.WRITE, *([Operation.TWO_PHASE_COMMIT] if request.enable2_pc else [])]
        if not all(context.may(one, _TRANSACTION, request.transactional_id) for one in needed):
            error = ERRORS[_TRANSACTION]
    elif not may_on_cluster(context, Operation.IDEMPOTENT_WRITE) and authorizer is not None:
        may = authorizer.may_somewhere(context.principal, context.client_host, Operation.WRITE, _TOPIC)
        error = None if may else ERRORS[ResourceType.CLUSTER]
    if error is None:
        return None
    return Screened(None, {"error_code": error, "producer_id": -1, "producer_epoch": -1})


async def guard_end(context: RequestContext, message: bytes) -> Screened | None:
    """Require WRITE on the transactional id."""
    request = await offload.decode_passed(context.header, message)
    if context.may(Operation.WRITE, _TRANSACTION, request.transactional_id):
        return None
    return Screened(None, {"error_code": ERRORS[_TRANSACTION]})


_FIRST_ADD_BY_BROKERS = 4


async def guard_addition(context: RequestContext, message: bytes) -> Screened | None:
    """Require WRITE on the transactional id and on all topics. Only brokers send versions from 4 on."""
    request = await offload.decode_passed(context.header, message)
    if context.version >= _FIRST_ADD_BY_BROKERS:
        if may_on_cluster(context, Operation.CLUSTER_ACTION):
            return None
        return Screened(None, {"error_code": ERRORS[ResourceType.CLUSTER]})
    topics: list[Any] = request.v3_and_below_topics
    errors: Mapping[str, GatewayError]
    if not context.may(Operation.WRITE, _TRANSACTION, request.v3_and_below_transactional_id):
        errors = {topic.name: ERRORS[_TRANSACTION] for topic in topics}
    else:
        may = await context.slices().each(lambda t: context.may(Operation.WRITE, _TOPIC, t.name), topics)
        denied = {topic.name for topic, is_allowed in zip(topics, may, strict=True) if not is_allowed}
        if not denied:
            return None
        errors = {
            topic.name: ERRORS[_TOPIC] if topic.name in denied else GatewayError.OPERATION_NOT_ATTEMPTED
            for topic in topics
        }
    results = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": errors[topic.name]}
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]
    return Screened(None, {"results_by_topic_v3_and_below": results})


_DESCRIBED = Entries(
    "transactional_ids",
    "transaction_states",
    describe_transaction_error,
    lambda name, error: {"transactional_id": name, "error_code": error},
)


async def guard_description(context: RequestContext, message: bytes) -> Screened | None:
    """Require DESCRIBE on each transactional id. Denied topics are removed from the response."""

    async def hide(response: Any) -> None:
        slices = context.slices()
        for state in response.transaction_states:
            state.topics = await slices.kept(
                lambda topic: context.may(Operation.DESCRIBE, _TOPIC, topic.topic), state.topics
            )

    return await _DESCRIBED.guard(context, message, hide)


async def guard_transactions(context: RequestContext, message: bytes) -> Screened | None:
    """Remove the transactions that the client may not describe from the response to a ListTransactions."""
    await offload.decode_passed(context.header, message)

    async def hide(response: Any) -> None:
        response.transaction_states = await context.slices().kept(
            lambda state: context.may(Operation.DESCRIBE, _TRANSACTION, state.transactional_id),
            response.transaction_states,
        )

    return Screened(message, {}, hide)
