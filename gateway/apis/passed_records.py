"""ACLs of Produce and Fetch, which pass to the brokers. A request that is allowed passes as it came."""

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.apis.context import RequestContext
from gateway.apis.fetch_sessions import NO_SESSION
from gateway.apis.guards import TopicKey, topic_errors
from gateway.apis.screened import Screened
from gateway.authorization.acls import Operation, ResourceType
from gateway.limits import MIB
from gateway.wire import beside, codec
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from gateway.wire.framing import ProtocolError

_PRODUCE_FIRST_BY_ID = 13
_FETCH_FIRST_BY_ID = 13
_FETCH_FIRST_SESSION = 7
_FETCH_FIRST_FLEXIBLE = 12

# A Fetch response to which errors are added is held whole and decoded.
CHANGED_MAX_BYTES = MIB

# FetchMetadata: the epoch of a request that begins a session, and of one without a session.
_INITIAL_EPOCH, _FINAL_EPOCH = 0, -1
_SESSION_ID = Struct(">i")
# The position of a Fetch response's session id: after correlation id, throttle time and error, and in
# flexible versions after the header's tagged fields, which brokers leave empty.
_SESSION_ID_AT = 10

_NO_ID = UUID(int=0)


async def guard_produce(context: RequestContext, message: bytes) -> Screened | None:
    """WRITE on each topic, and on the transactional id if there is one."""
    header = context.header
    request = await beside.decode_passed(header, message)
    by_id = context.version >= _PRODUCE_FIRST_BY_ID
    keys: list[TopicKey] = [_produced(topic, by_id=by_id) for topic in request.topic_data]
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
    refused = await beside.made(message, _each_refused, _refused_produce, request.topic_data, keys, errors)
    request.topic_data = [t for t, key in zip(request.topic_data, keys, strict=True) if key not in errors]
    remaining = await beside.with_body(header, message, request) if request.topic_data else None
    return Screened(remaining, {"responses": refused})


def _produced(topic: Any, *, by_id: bool) -> TopicKey:
    return topic.topic_id or _NO_ID if by_id else topic.name


async def guard_fetch(context: RequestContext, message: bytes) -> Screened | None:
    """READ on each topic.

    A request with a topic that is denied goes on without it and without a session, so that the client names
    the topic again in its next request, and gets the error again. A session that may not continue ends with
    FETCH_SESSION_ID_NOT_FOUND, after which clients name all their topics.

    A replica's Fetch needs CLUSTER_ACTION in Kafka, and moves the partition's high watermark. Raises
    ProtocolError for it.
    """
    header, authorizer = context.header, context.services.authorizer
    assert authorizer is not None
    version = authorizer.version
    request = await beside.decode_passed(header, message)
    if _is_of_replica(request):
        raise ProtocolError("a Fetch of a replica: no broker replicates through a gateway")
    by_id = context.version >= _FETCH_FIRST_BY_ID
    topics = [topic.topic_id if by_id else topic.topic for topic in request.topics]
    errors = await topic_errors(context, topics, Operation.READ)
    has_session = context.version >= _FETCH_FIRST_SESSION
    epoch = request.session_epoch if has_session else _FINAL_EPOCH
    if epoch > _INITIAL_EPOCH:
        if not errors and context.remembered.fetches.may_continue(request.session_id, version):
            return None
        ended = {"error_code": GatewayError.FETCH_SESSION_ID_NOT_FOUND, "session_id": NO_SESSION}
        return Screened(None, ended)
    if not errors:
        if epoch == _FINAL_EPOCH:
            return None
        at = _SESSION_ID_AT + (1 if context.version >= _FETCH_FIRST_FLEXIBLE else 0)

        def saw(response: bytes) -> None:
            context.remembered.fetches.began(_SESSION_ID.unpack_from(response, at)[0], version)

        return Screened(message, {}, saw=saw)
    kept = [t for t, key in zip(request.topics, topics, strict=True) if key not in errors]
    refused = await beside.made(message, _each_refused, _refused_fetch, request.topics, topics, errors)
    request.topics = kept
    request.max_bytes = min(request.max_bytes, CHANGED_MAX_BYTES)
    if has_session:
        request.session_id, request.session_epoch = NO_SESSION, _FINAL_EPOCH
    remaining = await beside.with_body(header, message, request) if kept else None
    return Screened(remaining, {"responses": refused})


def _is_of_replica(request: Any) -> bool:
    """Whether a Fetch is a follower's. From version 15 on its id is in `replica_state`, which is tagged."""
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
        **_key_fields(topic.name, topic.topic_id, "name"),
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
        **_key_fields(topic.topic, topic.topic_id, "topic"),
        "partitions": [
            {"partition_index": p.partition, "error_code": error, **nothing} for p in topic.partitions
        ],
    }


def _key_fields(name: str | None, topic_id: UUID | None, field: str) -> Fields:
    return {field: name} if name else {"topic_id": topic_id}
