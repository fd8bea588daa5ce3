"""ACLs of requests that pass to the brokers: Metadata, DescribeCluster, Produce, Fetch, and the requests
about transactions. An allowed request passes unchanged.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from struct import Struct
from typing import Any
from uuid import UUID

from gateway.apis.api import ERRORS, EntryGuard, EntryList, Screened, TopicKey, may_on_cluster, topic_errors
from gateway.apis.context import NO_SESSION, RequestContext
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.limits import MIB
from gateway.wire import offload
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

    A denied topic is absent from the response to a request for all topics. If it was requested by its id, the
    response has an error without its name.
    """
    request = await offload.decode_passed(context.header, message)
    topics: list[Any] | None = request.topics  # None for all topics
    if context.version < _FIRST_NULL_FOR_ALL and not topics:
        topics = None
    errors: dict[str, GatewayError] = {}
    stops_creation = False
    if topics is not None:
        errors |= dict.fromkeys(await _uncreatable(context, request), _NO_TOPIC)
        errors |= dict.fromkeys(await _undescribable(context, topics), _DENIED)
        has_flag = context.version >= _FIRST_WITH_CREATION_FLAG and request.allow_auto_topic_creation
        stops_creation = has_flag and not _may_create_all(context, request)
    remaining = message
    if topics is not None and (errors or stops_creation):
        request.topics = [topic for topic in topics if topic.name not in errors]
        request.allow_auto_topic_creation = request.allow_auto_topic_creation and not stops_creation
        remaining = await offload.with_body(context.header, message, request)
    if topics is not None and not errors and not _may_change_response(request, topics):
        return Screened(remaining, refused={}) if stops_creation else None

    async def change(response: Any) -> None:
        if topics is not None and context.version < _FIRST_NULL_FOR_ALL and not request.topics:
            response.topics = []  # all names were hidden, and in version 0 an empty list requests all topics
        visible = await context.slices().each(
            partial(_visible_topic, context, request, are_all_requested=topics is None), response.topics
        )
        response.topics = [topic for topic in visible if topic is not None]
        if request.include_cluster_authorized_operations and context.services.authorizer is not None:
            response.authorized_operations = _cluster_operations(context)

    refused = [
        {"error_code": errors[topic.name], "name": topic.name, "topic_id": _NO_ID, "partitions": []}
        for topic in topics or ()
        if topic.name in errors
    ]
    return Screened(remaining, {"topics": refused} if refused else {}, change)


def _may_change_response(request: Any, topics: Sequence[Any]) -> bool:
    """Return True if the response may need changes although all names of these topics are allowed."""
    # A broker ignores all names as soon as one entry has an id.
    is_by_id = any(not topic.name or topic.topic_id is not None for topic in topics)
    return bool(
        is_by_id
        or request.include_topic_authorized_operations
        or request.include_cluster_authorized_operations
    )


async def guard_describe_cluster(context: RequestContext, message: bytes) -> Screened | None:
    """Replace the gateway's operations in the response to a DescribeCluster by the client's."""
    request = await offload.decode_passed(context.header, message)
    if not request.include_cluster_authorized_operations:
        return None

    async def replace_operations(response: Any) -> None:
        response.authorized_operations = _cluster_operations(context)

    return Screened(message, refused={}, change=replace_operations)


async def _undescribable(context: RequestContext, topics: list[Any]) -> set[str]:
    """Return the names of topics that the client may not describe. Ids are checked in the response."""
    names = list({topic.name for topic in topics if topic.name})
    may_describe = partial(context.may, Operation.DESCRIBE, ResourceType.TOPIC)
    are_describable = await context.slices().each(may_describe, names)
    return {name for name, is_describable in zip(names, are_describable, strict=True) if not is_describable}


async def _uncreatable(context: RequestContext, request: Any) -> set[str]:
    """Return the topics that the broker would create although the client may not create them."""
    # From _FIRST_WITH_CREATION_FLAG on, the request itself can forbid the creation.
    if context.version >= _FIRST_WITH_CREATION_FLAG or _may_create_all(context, request):
        return set()
    names = {
        topic.name
        for topic in request.topics
        if not context.may(Operation.CREATE, ResourceType.TOPIC, topic.name)
    }
    existing = await context.services.cluster.topics(names)
    return names - existing.keys()


def _may_create_all(context: RequestContext, request: Any) -> bool:
    """Return True if the client may create all topics that the request names."""
    names = (topic.name for topic in request.topics if topic.name)
    return may_on_cluster(context, Operation.CREATE) or all(
        context.may(Operation.CREATE, ResourceType.TOPIC, name) for name in names
    )


def _visible_topic(
    context: RequestContext, request: Any, topic: Any, *, are_all_requested: bool
) -> Any | None:
    """Return the topic with the client's operations instead of the gateway's.

    A topic that the client may not describe becomes None if all topics were requested, else an error without
    the topic's name.
    """
    if topic.name and not context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
        if are_all_requested:
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
    """Return the client's permitted operations on the cluster. As in Kafka, DESCRIBE is required."""
    authorizer = context.services.authorizer
    if authorizer is None or not context.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return frozenset()
    return authorizer.operations(context.principal, context.client_host, ResourceType.CLUSTER, CLUSTER_NAME)


_PRODUCE_FIRST_BY_ID = 13
_FETCH_FIRST_BY_ID = 13
_FETCH_FIRST_SESSION = 7
_FETCH_FIRST_FLEXIBLE = 12

# The limit of a Fetch response to which the gateway adds errors, because it buffers and decodes that
# response.
CHANGED_MAX_BYTES = MIB

# FetchMetadata: the epochs of a request that starts a session, and of a request without a session.
_INITIAL_EPOCH, _FINAL_EPOCH = 0, -1
_SESSION_ID = Struct(">i")
# The position of a Fetch response's session id: after correlation id, throttle time and error, and in
# flexible versions after the header's tagged fields, which brokers leave empty.
_SESSION_ID_AT = 10


def _refused_produce(topic: Any, error: Fields) -> Fields:
    return {
        **({"name": topic.name} if topic.name else {"topic_id": topic.topic_id}),
        "partition_responses": [{"index": p.index, "base_offset": -1, **error} for p in topic.partition_data],
    }


PRODUCE_TOPICS = EntryList(
    request_field="topic_data", response_field="responses", refused_entry=_refused_produce
)


async def guard_produce(context: RequestContext, message: bytes) -> Screened | None:
    """Require WRITE on each topic, and on the transactional id if there is one."""
    request = await offload.decode_passed(context.header, message)
    by_id = context.version >= _PRODUCE_FIRST_BY_ID
    keys: list[TopicKey] = [
        (topic.topic_id or _NO_ID) if by_id else topic.name for topic in request.topic_data
    ]
    if request.transactional_id is not None and not context.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        denied = GatewayError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        errors: Mapping[TopicKey, GatewayError] = dict.fromkeys(keys, denied)
    else:
        errors = await topic_errors(context, keys, Operation.WRITE)
    return await PRODUCE_TOPICS.screen(context, message, request, [errors.get(key) for key in keys])


def _refused_fetch(topic: Any, error: Fields) -> Fields:
    no_records = {
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": [],
        "records": b"",
    }
    return {
        **({"topic": topic.topic} if topic.topic else {"topic_id": topic.topic_id}),
        "partitions": [{"partition_index": p.partition, **error, **no_records} for p in topic.partitions],
    }


_FETCH_TOPICS = EntryList(request_field="topics", response_field="responses", refused_entry=_refused_fetch)


async def guard_fetch(context: RequestContext, message: bytes) -> Screened | None:
    """Require READ on each topic.

    Denied topics are removed from a request. The rest passes without a session, so that the client's next
    request repeats the denied topics and gets the error again. A session that may not continue ends with
    FETCH_SESSION_ID_NOT_FOUND, after which clients repeat all their topics.
    """
    authorizer = context.services.authorizer
    assert authorizer is not None, "guards run only if the gateway checks ACLs"
    acl_version = authorizer.version
    request = await offload.decode_passed(context.header, message)
    # A replica's Fetch needs CLUSTER_ACTION in Kafka, and moves the partition's high watermark.
    if _is_of_replica(request):
        raise ProtocolError("a Fetch of a replica: no broker replicates through a gateway")
    by_id = context.version >= _FETCH_FIRST_BY_ID
    keys = [topic.topic_id if by_id else topic.topic for topic in request.topics]
    errors = await topic_errors(context, keys, Operation.READ)
    has_sessions = context.version >= _FETCH_FIRST_SESSION
    epoch = request.session_epoch if has_sessions else _FINAL_EPOCH
    if epoch > _INITIAL_EPOCH:  # it continues a session
        if not errors and context.caches.fetch_sessions.may_continue(request.session_id, acl_version):
            return None
        ended = {"error_code": GatewayError.FETCH_SESSION_ID_NOT_FOUND, "session_id": NO_SESSION}
        return Screened(remaining=None, refused=ended)
    if not errors:
        if epoch == _FINAL_EPOCH:  # it neither continues nor starts a session
            return None
        # In flexible versions, the empty tagged fields take one byte.
        session_id_at = _SESSION_ID_AT + (1 if context.version >= _FETCH_FIRST_FLEXIBLE else 0)

        def on_start(response: bytes) -> None:
            (session_id,) = _SESSION_ID.unpack_from(response, session_id_at)
            context.caches.fetch_sessions.add(session_id, acl_version)

        return Screened(message, refused={}, on_start=on_start)
    request.max_bytes = min(request.max_bytes, CHANGED_MAX_BYTES)
    if has_sessions:
        request.session_id, request.session_epoch = NO_SESSION, _FINAL_EPOCH
    return await _FETCH_TOPICS.screen(context, message, request, [errors.get(key) for key in keys])


def _is_of_replica(request: Any) -> bool:
    # From version 15 on, the follower's id is in the tagged field `replica_state`.
    state = request.replica_state
    return request.replica_id >= 0 or (state is not None and state.replica_id >= 0)


_TOPIC, _TRANSACTION = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


def describe_transaction_error(context: RequestContext, transactional_id: str) -> GatewayError | None:
    """Return the error if the client may not describe the transaction, else None."""
    is_allowed = context.may(Operation.DESCRIBE, _TRANSACTION, transactional_id)
    return None if is_allowed else ERRORS[_TRANSACTION]


_FIRST_FIND_OF_SEVERAL = 4
_NOWHERE = {"node_id": -1, "host": "", "port": -1}
_FIND_COORDINATOR_KEYS = EntryGuard(
    request_field="coordinator_keys",
    response_field="coordinators",
    refused_entry=lambda key, error: {"key": key, **_NOWHERE, **error, "error_message": ""},
    error=describe_transaction_error,
)


async def guard_find_coordinator(context: RequestContext, message: bytes) -> Screened | None:
    """Require DESCRIBE on each transactional id."""
    if context.version >= _FIRST_FIND_OF_SEVERAL:
        return await _FIND_COORDINATOR_KEYS.guard(context, message)
    request = await offload.decode_passed(context.header, message)
    error = describe_transaction_error(context, request.key)
    if error is None:
        return None
    return Screened(remaining=None, refused={**_NOWHERE, "error_code": error, "error_message": error.name})


async def guard_init_producer_id(context: RequestContext, message: bytes) -> Screened | None:
    """Require WRITE on the transactional id, and TWO_PHASE_COMMIT if the request enables it.

    Without a transactional id, IDEMPOTENT_WRITE on the cluster or WRITE on any topic suffices.
    """
    request = await offload.decode_passed(context.header, message)
    authorizer = context.services.authorizer
    error = None
    if request.transactional_id is not None:
        needed = [Operation.WRITE, Operation.TWO_PHASE_COMMIT] if request.enable2_pc else [Operation.WRITE]
        if not all(context.may(operation, _TRANSACTION, request.transactional_id) for operation in needed):
            error = ERRORS[_TRANSACTION]
    elif not may_on_cluster(context, Operation.IDEMPOTENT_WRITE) and authorizer is not None:
        may_write = authorizer.may_somewhere(context.principal, context.client_host, Operation.WRITE, _TOPIC)
        error = None if may_write else ERRORS[ResourceType.CLUSTER]
    if error is None:
        return None
    refused = {"error_code": error, "producer_id": -1, "producer_epoch": -1}
    return Screened(remaining=None, refused=refused)


async def guard_end_txn(context: RequestContext, message: bytes) -> Screened | None:
    """Require WRITE on the transactional id."""
    request = await offload.decode_passed(context.header, message)
    if context.may(Operation.WRITE, _TRANSACTION, request.transactional_id):
        return None
    return Screened(remaining=None, refused={"error_code": ERRORS[_TRANSACTION]})


_FIRST_ADD_BY_BROKERS = 4


async def guard_add_partitions(context: RequestContext, message: bytes) -> Screened | None:
    """Require WRITE on the transactional id and on all topics. If one topic is denied, none is added.

    Versions from 4 on, which only brokers send, need CLUSTER_ACTION.
    """
    request = await offload.decode_passed(context.header, message)
    if context.version >= _FIRST_ADD_BY_BROKERS:
        if may_on_cluster(context, Operation.CLUSTER_ACTION):
            return None
        return Screened(remaining=None, refused={"error_code": ERRORS[ResourceType.CLUSTER]})
    topics: list[Any] = request.v3_and_below_topics
    errors: Mapping[str, GatewayError]
    if not context.may(Operation.WRITE, _TRANSACTION, request.v3_and_below_transactional_id):
        errors = {topic.name: ERRORS[_TRANSACTION] for topic in topics}
    else:
        are_allowed = await context.slices().each(
            lambda topic: context.may(Operation.WRITE, _TOPIC, topic.name), topics
        )
        denied = {topic.name for topic, is_allowed in zip(topics, are_allowed, strict=True) if not is_allowed}
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
    return Screened(remaining=None, refused={"results_by_topic_v3_and_below": results})


_DESCRIBE_TRANSACTIONS = EntryGuard(
    request_field="transactional_ids",
    response_field="transaction_states",
    refused_entry=lambda transactional_id, error: {"transactional_id": transactional_id, **error},
    error=describe_transaction_error,
)


async def guard_describe_transactions(context: RequestContext, message: bytes) -> Screened | None:
    """Require DESCRIBE on each transactional id. Denied topics are removed from the response."""

    async def hide_topics(response: Any) -> None:
        slices = context.slices()
        for state in response.transaction_states:
            state.topics = await slices.filtered(
                lambda topic: context.may(Operation.DESCRIBE, _TOPIC, topic.topic), state.topics
            )

    return await _DESCRIBE_TRANSACTIONS.guard(context, message, hide_topics)


async def guard_list_transactions(context: RequestContext, message: bytes) -> Screened | None:
    """Remove the transactions that the client may not describe from the response to a ListTransactions."""
    # This refuses a message that a broker could decode differently.
    await offload.decode_passed(context.header, message)

    async def hide_transactions(response: Any) -> None:
        response.transaction_states = await context.slices().filtered(
            lambda state: context.may(Operation.DESCRIBE, _TRANSACTION, state.transactional_id),
            response.transaction_states,
        )

    return Screened(message, refused={}, change=hide_transactions)
