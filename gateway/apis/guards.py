"""Authorization of requests: those about groups and offsets, and those that pass to the brokers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from gateway.apis.context import RequestContext
from gateway.apis.screened import Change, Screened
from gateway.authorization.acls import CLUSTER_NAME, SUPPORTED, Operation, ResourceType
from gateway.upstream.cluster import TOPIC_AGE_MAX_S
from gateway.wire import offload
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError

GROUP_REFUSED = {"error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
"""A response with only a group's error."""


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


def described_topics(context: RequestContext, topics: Iterable[str]) -> list[str]:
    """Return the topics among these that the client may describe."""
    return [topic for topic in topics if may_describe_topic(context, topic)]


def group_operations(context: RequestContext, group_id: str) -> frozenset[Operation]:
    """Return the client's permitted operations on the group (`include_authorized_operations`)."""
    authorizer = context.services.authorizer
    if authorizer is None:
        return SUPPORTED[ResourceType.GROUP]
    return authorizer.operations(context.principal, context.client_host, ResourceType.GROUP, group_id)


def transaction_error(context: RequestContext, transactional_id: str, group_id: str) -> GatewayError | None:
    """Return the error of a whole AddOffsetsToTxn or TxnOffsetCommit: WRITE on the transactional id and READ
    on the group are needed. Each topic of a TxnOffsetCommit needs READ, too.
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


@dataclass(frozen=True, slots=True)
class Entries:
    """The check of an API with one list of resources, which is `request_field` of the request and
    `response_field` of the response. `error` returns the error of an entry, or None if it is allowed.
    `refused` returns the response's entry for a refused one.
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
    """Return the errors of the topics that the client may not use, by name or id. An id without a known topic
    has an error, because ACLs are about names. The metadata is no older than `age_max_s`. Raises
    UpstreamLost.
    """
    wanted = set(topics)
    ids = [key for key in wanted if isinstance(key, UUID)]
    found = await context.services.cluster.topics_by_id(ids, age_max_s) if ids else {}
    errors, slices = dict[TopicKey, GatewayError](), context.slices()
    for key in wanted:
        await slices.rest()
        topic = found.get(key) if isinstance(key, UUID) else None
        name = key if isinstance(key, str) else None if topic is None else topic.name
        if name is None:
            errors[key] = GatewayError.UNKNOWN_TOPIC_ID
        elif not context.may(operation, ResourceType.TOPIC, name):
            errors[key] = GatewayError.TOPIC_AUTHORIZATION_FAILED
    return errors
