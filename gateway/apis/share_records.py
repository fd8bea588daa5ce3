"""ShareFetch (key 78) and ShareAcknowledge (key 79), which pass to the leaders of the partitions.

A broker keeps the share session of a member, and releases what the member has acquired when the connection of
the session ends. So these requests pass on the client's own connection to the broker.

A broker of Kafka 4.4 with an authorizer fails at each ShareFetch whose session has the id of a topic that is
gone (NullPointerException in AuthHelper.filterByAuthorized), and the client asks again at once: it learns of
the other id only from the partition's own error. So after such a failure the client has to begin a session
with all its partitions, and the gateway answers for those of topics that are gone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis import nodes
from gateway.apis.authorized import GROUP_REFUSED, may_read_group
from gateway.apis.context import RequestContext
from gateway.apis.fetch_sessions import ShareSession
from gateway.apis.guards import TopicKey, topic_errors
from gateway.apis.passed_records import CHANGED_MAX_BYTES
from gateway.apis.screened import Screened
from gateway.authorization.acls import Operation
from gateway.log_text import quoted
from gateway.upstream.cluster import TOPIC_AGE_MAX_S
from gateway.wire import beside, share_responses
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from gateway.wire.framing import ProtocolError
from state.errors import ErrorCode

# ShareRequestMetadata: the epoch of a request that begins a session. Later ones are greater, the
# last one is -1.
_INITIAL_EPOCH = 0
# After a broker's failure. It is some requests of a client, and bounds how often a broker is asked.
_FRESH_AGE_MAX_S = 0.1
_ENDED = {"error_code": GatewayError.SHARE_SESSION_NOT_FOUND}
"""After it clients begin a session, and name all their partitions."""

_Errors = Mapping[TopicKey, GatewayError]


async def screen_session(context: RequestContext, message: bytes) -> Screened | None:
    """READ on the group, and on each topic of the session. A topic that is denied, or gone, is taken out of
    the request, and its partitions have the error. Raises ProtocolError if the connection has another
    member's session.
    """
    request = await beside.decode_passed(context.header, message)
    session = context.remembered.shares
    if request.group_id is None or request.member_id is None:
        return None  # the broker refuses it
    if not session.is_of(request.group_id, request.member_id):
        raise ProtocolError(f"a share session of {quoted(request.member_id)} beside another member's")
    checks = context.services.authorizer is not None and context.services.checks_passed_on
    if checks and not may_read_group(context, request.group_id):
        return Screened(None, GROUP_REFUSED)
    is_doubted = _begins(context, request) and session.begin()
    if not checks:
        errors: _Errors | None = await _gone(context, request) if is_doubted else {}
    else:
        age_max_s = _FRESH_AGE_MAX_S if is_doubted else TOPIC_AGE_MAX_S
        errors = await _errors(context, request, session, age_max_s)
    if errors is None:
        return Screened(None, _ENDED)
    if not errors:
        return _counted(context, request, Screened(message, {}))
    entry = _not_acknowledged
    if context.header.api_key == ApiKey.ShareFetch:
        entry = _not_fetched
        request.max_bytes = min(request.max_bytes, CHANGED_MAX_BYTES)
    refused = await beside.made(message, _refused, request.topics, errors, entry)
    request.topics = [topic for topic in request.topics if topic.topic_id not in errors]
    remaining = await beside.with_body(context.header, message, request)
    return _counted(context, request, Screened(remaining, {"responses": refused}))


async def rewrite_fetch(context: RequestContext, response: Any) -> None:
    """The addresses of leaders that moved, and a broker's failure: see the beginning of this file."""
    if response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
        response.error_code = GatewayError.SHARE_SESSION_NOT_FOUND
        context.remembered.shares.is_doubted = True
    await nodes.rewrite_endpoints(context, response)


def is_fetch_rewritten(version: int, response: bytes) -> bool:
    """Whether `rewrite_fetch` changes a response."""
    failed = share_responses.error_of(response) == ErrorCode.UNKNOWN_SERVER_ERROR
    return failed or nodes.ends_with_endpoints(ApiKey.ShareFetch)(version, response)


def _begins(context: RequestContext, request: Any) -> bool:
    return bool(context.header.api_key == ApiKey.ShareFetch and request.share_session_epoch == _INITIAL_EPOCH)


def _continues(context: RequestContext, request: Any) -> bool:
    """Whether all topics of the session are fetched, not only those that the request names."""
    return bool(context.header.api_key == ApiKey.ShareFetch and request.share_session_epoch > _INITIAL_EPOCH)


async def _gone(context: RequestContext, request: Any) -> _Errors:
    named = {topic.topic_id for topic in request.topics}
    found = await context.services.cluster.topics_by_id(named, _FRESH_AGE_MAX_S)
    return dict.fromkeys(named - found.keys(), GatewayError.UNKNOWN_TOPIC_ID)


async def _errors(
    context: RequestContext, request: Any, session: ShareSession, age_max_s: float
) -> _Errors | None:
    """The errors of the topics that a request names. None if the session may not go on, because of a topic
    that it has, or lacks, since other ACLs.
    """
    authorizer = context.services.authorizer
    assert authorizer is not None
    version = authorizer.version
    if (
        _continues(context, request)
        and session.version != version
        and (session.lacks or await topic_errors(context, session.topics, Operation.READ))
    ):
        return None
    named = {topic.topic_id for topic in request.topics}
    errors = await topic_errors(context, named, Operation.READ, age_max_s)
    if _begins(context, request) or _continues(context, request):
        session.goes_on(named - errors.keys(), version, lacks=bool(errors))
    return errors


def _refused(
    topics: Iterable[Any], errors: _Errors, entry: Callable[[Any, GatewayError], Fields]
) -> list[Fields]:
    """The entries of a response for the topics that are taken out of a request."""
    return [
        {
            "topic_id": topic.topic_id,
            "partitions": [entry(p, errors[topic.topic_id]) for p in topic.partitions],
        }
        for topic in topics
        if topic.topic_id in errors
    ]


def _not_acknowledged(partition: Any, error: GatewayError) -> Fields:
    return {
        "partition_index": partition.partition_index,
        "error_code": error,
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
    }


def _not_fetched(partition: Any, error: GatewayError) -> Fields:
    return {
        **_not_acknowledged(partition, error),
        "acknowledge_error_code": error if partition.acknowledgement_batches else 0,
        "records": b"",
        "acquired_records": [],
    }


def _counted(context: RequestContext, request: Any, screened: Screened) -> Screened | None:
    """Count what is left of a request. None if it may pass unchanged, and nothing is counted."""
    deliveries = context.services.deliveries
    if deliveries is None:
        return screened if screened.refused else None
    return replace(screened, sees=context.remembered.shares.watch(deliveries, context.header, request))
