"""What the requests about groups and offsets need, as Kafka's KafkaApis checks it before anything else."""

from collections.abc import Iterable

from gateway.apis.context import RequestContext
from gateway.authorization.acls import SUPPORTED, Operation, ResourceType
from gateway.wire.errors import GatewayError

GROUP_REFUSED = {"error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
"""A response with the error of a group, for APIs whose response has an error of its own."""


def may_read_group(context: RequestContext, group_id: str) -> bool:
    """For members, and for commits."""
    return context.may(Operation.READ, ResourceType.GROUP, group_id)


def may_describe_group(context: RequestContext, group_id: str) -> bool:
    """To find its coordinator, to see it and its offsets."""
    return context.may(Operation.DESCRIBE, ResourceType.GROUP, group_id)


def may_delete_group(context: RequestContext, group_id: str) -> bool:
    """To delete it or some of its offsets."""
    return context.may(Operation.DELETE, ResourceType.GROUP, group_id)


def may_read_topic(context: RequestContext, topic: str) -> bool:
    """To commit and to delete offsets."""
    return context.may(Operation.READ, ResourceType.TOPIC, topic)


def may_describe_topic(context: RequestContext, topic: str) -> bool:
    """To see offsets."""
    return context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def described_topics(context: RequestContext, topics: Iterable[str]) -> list[str]:
    """The topics among these that the client may describe."""
    return [topic for topic in topics if may_describe_topic(context, topic)]


def group_operations(context: RequestContext, group_id: str) -> frozenset[Operation]:
    """The operations on the group that the client may do (`include_authorized_operations`)."""
    authorizer = context.services.authorizer
    if authorizer is None:
        return SUPPORTED[ResourceType.GROUP]
    return authorizer.operations(context.principal, context.client_host, ResourceType.GROUP, group_id)


def transaction_error(context: RequestContext, transactional_id: str, group_id: str) -> GatewayError | None:
    """The error of AddOffsetsToTxn and TxnOffsetCommit as a whole: WRITE on the transactional id, READ on the
    group. Each topic of TxnOffsetCommit needs READ, too.
    """
    if not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return GatewayError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not may_read_group(context, group_id):
        return GatewayError.GROUP_AUTHORIZATION_FAILED
    return None
