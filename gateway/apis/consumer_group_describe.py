"""ConsumerGroupDescribe (key 69). The coordinator gets one request for each group."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.authorized import group_operations, may_describe_group, may_describe_topic
from gateway.apis.batch import together
from gateway.apis.context import Deferred, RequestContext
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from state.errors import ErrorCode
from state.kafka.requests import ConsumerGroupDescribe
from state.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMemberDescription,
)

_HIDDEN = "The group has topics that the client is not authorized to describe."


async def serve(context: RequestContext, request: Any) -> Deferred:
    """Return the epochs, members and assignments of the groups."""
    describe = partial(_describe, context, with_operations=request.include_authorized_operations)
    return together(context, describe, request.group_ids, lambda groups: {"groups": groups})


def _describe(context: RequestContext, group_id: str, *, with_operations: bool) -> Fields | Deferred:
    if not context.services.consumer_protocol:
        return {"group_id": group_id, "error_code": ErrorCode.UNSUPPORTED_VERSION}
    if not may_describe_group(context, group_id):
        return {"group_id": group_id, "error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
    response = context.send(ConsumerGroupDescribe(**context.to_group(group_id)), ANSWER_TIMEOUT_MS)
    return Deferred(response, partial(_described, context, with_operations=with_operations))


def _described(
    context: RequestContext, answer: ConsumerGroupDescribeResponse, *, with_operations: bool
) -> Fields:
    group_id = answer.group_id
    if not all(may_describe_topic(context, topic) for topic in sorted(_topics(answer.members))):
        error = GatewayError.TOPIC_AUTHORIZATION_FAILED
        return {"group_id": group_id, "error_code": error, "error_message": _HIDDEN}
    described: dict[str, Any] = {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "group_id": group_id,
        "group_state": answer.group_state,
        "group_epoch": answer.group_epoch,
        "assignment_epoch": answer.assignment_epoch,
        "assignor_name": answer.assignor_name,
        "members": [_member(member) for member in answer.members],
    }
    if with_operations and answer.error_code is ErrorCode.NONE:
        described["authorized_operations"] = group_operations(context, group_id)
    return described


def _topics(members: Iterable[ConsumerGroupMemberDescription]) -> set[str]:
    """The topics of the members' assignments (row AD6)."""
    return {
        topic.topic_name
        for member in members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment
    }


def _member(member: ConsumerGroupMemberDescription) -> Fields:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": _assignment(member.assignment),
        "target_assignment": _assignment(member.target_assignment),
        "member_type": member.member_type,
    }


def _assignment(assigned: Sequence[AssignedTopicPartitions]) -> Fields:
    return {
        "topic_partitions": [
            {"topic_id": topic.topic_id, "topic_name": topic.topic_name, "partitions": topic.partitions}
            for topic in assigned
        ]
    }


API = Api(key=ApiKey.ConsumerGroupDescribe, serve=serve, of_consumer_protocol=True)
