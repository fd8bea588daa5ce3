"""ACLs of Metadata and DescribeCluster, which pass to the brokers."""

from functools import partial
from typing import Any
from uuid import UUID

from gateway.apis.context import RequestContext
from gateway.apis.screened import Screened
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.wire import beside
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError

_FIRST_WITH_CREATION_FLAG = 4
_FIRST_NULL_FOR_ALL = 1
_NO_ID = UUID(int=0)
_DENIED, _NO_TOPIC = GatewayError.TOPIC_AUTHORIZATION_FAILED, GatewayError.UNKNOWN_TOPIC_OR_PARTITION


async def guard_metadata(context: RequestContext, message: bytes) -> Screened | None:
    """DESCRIBE on each topic. The request creates no topic if the client may not create all that it names.

    Names that are denied do not reach the broker, which would create them. Topics by id, and all topics, are
    taken out of the response.
    """
    request = await beside.decode_passed(context.header, message)
    topics: list[Any] | None = request.topics
    if topics is not None and not topics and context.version < _FIRST_NULL_FOR_ALL:
        topics = None
    errors: dict[str, GatewayError] = {}
    stops_creation = False
    if topics is not None:
        errors |= dict.fromkeys(await _uncreatable(context, request), _NO_TOPIC)
        errors |= dict.fromkeys(await _undescribed(context, topics), _DENIED)
        has_flag = context.version >= _FIRST_WITH_CREATION_FLAG and request.allow_auto_topic_creation
        stops_creation = has_flag and not _may_create(context, request)
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
        remaining = await beside.with_body(context.header, message, request)
    if is_plain:
        return Screened(remaining, {})

    async def change(response: Any) -> None:
        if topics is not None and context.version < _FIRST_NULL_FOR_ALL and not request.topics:
            response.topics = []  # all names were hidden, and version 0 then asks for all topics
        shown = await context.slices().each(
            partial(_shown, context, request, is_of_all=topics is None), response.topics
        )
        response.topics = [topic for topic in shown if topic is not None]
        if request.include_cluster_authorized_operations and context.services.authorizer is not None:
            response.authorized_operations = _cluster_operations(context)

    refused = [_refused(topic.name, errors[topic.name]) for topic in topics or () if topic.name in errors]
    return Screened(remaining, {"topics": refused} if refused else {}, change)


async def guard_cluster(context: RequestContext, message: bytes) -> Screened | None:
    """DescribeCluster shows the client's own operations."""
    request = await beside.decode_passed(context.header, message)
    if not request.include_cluster_authorized_operations:
        return None

    async def change(response: Any) -> None:
        response.authorized_operations = _cluster_operations(context)

    return Screened(message, {}, change)


async def _undescribed(context: RequestContext, topics: list[Any]) -> set[str]:
    """The names that the client may not describe."""
    names = list({topic.name for topic in topics if topic.name})
    may = partial(context.may, Operation.DESCRIBE, ResourceType.TOPIC)
    shown = await context.slices().each(may, names)
    return {name for name, is_shown in zip(names, shown, strict=True) if not is_shown}


async def _uncreatable(context: RequestContext, request: Any) -> set[str]:
    """The names that the broker would create, and the client may not. Later versions have a flag for that."""
    if context.version >= _FIRST_WITH_CREATION_FLAG or _may_create(context, request):
        return set()
    names = {topic.name for topic in request.topics if not _may_create_topic(context, topic.name)}
    return names - (await context.services.cluster.topics(names)).keys()


def _may_create(context: RequestContext, request: Any) -> bool:
    """Whether the client may create all topics of the request."""
    if context.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
        return True
    return all(_may_create_topic(context, topic.name) for topic in request.topics if topic.name)


def _may_create_topic(context: RequestContext, name: str) -> bool:
    return context.may(Operation.CREATE, ResourceType.TOPIC, name)


def _refused(name: str, error: GatewayError) -> Fields:
    return {
        "error_code": error,
        "name": name,
        "topic_id": _NO_ID,
        "partitions": [],
    }


def _shown(context: RequestContext, request: Any, topic: Any, *, is_of_all: bool) -> Any | None:
    """The topic as the client may see it, with its own operations in place of the gateway's. None if it may
    not, or the topic with an error if it has named it. One that it named by id loses its name.
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
    """None of them for a client that may not describe the cluster, as in Kafka."""
    authorizer = context.services.authorizer
    if authorizer is None or not context.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return frozenset()
    return authorizer.operations(context.principal, context.client_host, ResourceType.CLUSTER, CLUSTER_NAME)
