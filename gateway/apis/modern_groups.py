"""What the consumer protocol (KIP-848) and share groups (KIP-932) have in common: a heartbeat is the one
request of a member, and a description has epochs, members and assignments.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.batch import together
from gateway.apis.context import Deferred, RequestContext, Services
from gateway.apis.guards import group_operations, may_describe_group, may_describe_topic
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import ConsumerGroupDescribe
from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupMemberDescription,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatResponse,
)
from kafka_why.contract.messages import Request

_Described = ConsumerGroupDescribeResponse | ShareGroupDescribeResponse

TOPIC_REFUSED = {"error_code": GatewayError.TOPIC_AUTHORIZATION_FAILED}
TOO_MUCH = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The member subscribes to more topics than one request to the coordinator can describe.",
}


def may_describe_all(context: RequestContext, names: Iterable[str] | None) -> bool:
    """Whether the client may describe each topic that a member subscribes to (rows HB3, SH4)."""
    return all(may_describe_topic(context, name) for name in names or ())


def heartbeat_fields(answer: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse) -> Fields:
    """The response to a heartbeat."""
    return {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval_ms": answer.heartbeat_interval_ms,
        "assignment": None if answer.assignment is None else {"topic_partitions": _topics(answer.assignment)},
    }


def _topics(assigned: Sequence[AssignedTopicPartitions]) -> list[Fields]:
    return [{"topic_id": topic.topic_id, "partitions": topic.partitions} for topic in assigned]


@dataclass(frozen=True, slots=True)
class Description:
    """How groups of a type are described. The coordinator gets one `request` for each group.

    `is_on`: whether the coordinator has groups of this type. `assignments` returns what a member has,
    `member` its part of the response. `hidden` says that the client may not describe one of the topics.
    """

    request: Callable[..., Request[Any]]
    is_on: Callable[[Services], bool]
    assignments: Callable[[Any], Iterable[Sequence[AssignedTopicPartitions]]]
    member: Callable[[Any], Fields]
    hidden: str

    async def serve(self, context: RequestContext, request: Any) -> Deferred:
        """Return the epochs, members and assignments of the groups."""
        start = partial(self._start, context, with_operations=request.include_authorized_operations)
        return together(context, start, request.group_ids, lambda groups: {"groups": groups})

    def _start(self, context: RequestContext, group_id: str, *, with_operations: bool) -> Fields | Deferred:
        if not self.is_on(context.services):
            return {"group_id": group_id, "error_code": ErrorCode.UNSUPPORTED_VERSION}
        if not may_describe_group(context, group_id):
            return {"group_id": group_id, "error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
        response = context.send(self.request(**context.to_group(group_id)), ANSWER_TIMEOUT_MS)
        fields = self._fields(context, response, with_operations=with_operations)
        return Deferred(asyncio.ensure_future(fields), lambda described: described)

    async def _fields(
        self, context: RequestContext, response: Awaitable[_Described], *, with_operations: bool
    ) -> Fields:
        """The part of the response about a group, made in slices, because a group may have many members."""
        answer, slices = await response, context.slices()
        group_id = answer.group_id
        named = await slices.each(self._topics, answer.members)
        topics = sorted(set(chain.from_iterable(named)))
        if not all(await slices.each(partial(may_describe_topic, context), topics)):
            error = GatewayError.TOPIC_AUTHORIZATION_FAILED
            return {"group_id": group_id, "error_code": error, "error_message": self.hidden}
        # Kafka's API layer refuses this one, and that without a text (row SD1).
        has_text = answer.error_code is not ErrorCode.INVALID_GROUP_ID
        described: dict[str, Any] = {
            "error_code": answer.error_code,
            "error_message": answer.error_message if has_text else None,
            "group_id": group_id,
            "group_state": answer.group_state,
            "group_epoch": answer.group_epoch,
            "assignment_epoch": answer.assignment_epoch,
            "assignor_name": answer.assignor_name,
            "members": await slices.each(self.member, answer.members),
        }
        if with_operations and answer.error_code is ErrorCode.NONE:
            described["authorized_operations"] = group_operations(context, group_id)
        return described

    def _topics(self, member: Any) -> set[str]:
        return {topic.topic_name for assigned in self.assignments(member) for topic in assigned}


def assignment_fields(assigned: Sequence[AssignedTopicPartitions]) -> Fields:
    """The assignment of a member in a description."""
    return {
        "topic_partitions": [
            {"topic_id": topic.topic_id, "topic_name": topic.topic_name, "partitions": topic.partitions}
            for topic in assigned
        ]
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
        "assignment": assignment_fields(member.assignment),
        "target_assignment": assignment_fields(member.target_assignment),
        "member_type": member.member_type,
    }


_DESCRIPTION = Description(
    ConsumerGroupDescribe,
    is_on=lambda services: services.consumer_protocol,
    assignments=lambda member: (member.assignment, member.target_assignment),  # row AD6
    member=_member,
    hidden="The group has topics that the client is not authorized to describe.",
)

CONSUMER_GROUP_DESCRIBE = Api(
    key=ApiKey.ConsumerGroupDescribe, serve=_DESCRIPTION.serve, of_consumer_protocol=True
)
