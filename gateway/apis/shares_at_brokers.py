"""Requests of share groups (KIP-932) that pass to the brokers' own coordinators: what the ACLs forbid.

The errors are those of KafkaApis.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Passed, Screen
from gateway.apis.context import RequestContext, Services
from gateway.apis.guards import (
    GROUP_REFUSED,
    Entries,
    described_topics,
    group_operations,
    may_delete_group,
    may_describe_group,
    may_describe_topic,
    may_read_group,
    may_read_topic,
)
from gateway.apis.screened import Screened
from gateway.wire import beside
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError

_TOPIC_DENIED = GatewayError.TOPIC_AUTHORIZATION_FAILED
_DENIED = {"error_code": _TOPIC_DENIED, "error_message": "Topic authorization failed."}
_GROUP_DENIED = GatewayError.GROUP_AUTHORIZATION_FAILED
_NO_ID = UUID(int=0)
CHANGE_REFUSED = {**GROUP_REFUSED, "error_message": "Group authorization failed."}
"""Of the refusals of a group only those of a change of its offsets have a text."""
HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


def are_at_brokers(services: Services) -> bool:
    """Whether the brokers' own coordinators have the share groups."""
    return services.share_groups.are_at_brokers


async def _guard_heartbeat(context: RequestContext, message: bytes) -> Screened | None:
    """READ on the group, DESCRIBE on each topic."""
    request = await beside.decode_passed(context.header, message)
    if not may_read_group(context, request.group_id):
        return Screened(None, GROUP_REFUSED)
    names = list(dict.fromkeys(request.subscribed_topic_names or ()))
    may = await context.slices().each(partial(may_describe_topic, context), names)
    return None if all(may) else Screened(None, {"error_code": _TOPIC_DENIED})


_ERROR_CODE = slice(9, 11)  # of a ShareGroupHeartbeat's response: after its header and the throttle time


async def _watch_heartbeat(context: RequestContext, message: bytes) -> Screened | None:
    """A broker that is not the coordinator says so to members first."""

    def saw(response: bytes) -> None:
        if int.from_bytes(response[_ERROR_CODE]) == GatewayError.NOT_COORDINATOR:
            context.services.share_groups.expire_leaders()

    return Screened(message, {}, saw=saw)


def _undescribed_group(context: RequestContext, group_id: str) -> GatewayError | None:
    return None if may_describe_group(context, group_id) else _GROUP_DENIED


_DESCRIBED = Entries(
    "group_ids",
    "groups",
    _undescribed_group,
    lambda group_id, error: {"group_id": group_id, "error_code": error},
)


async def _guard_description(context: RequestContext, message: bytes) -> Screened | None:
    """DESCRIBE on each group, and on each topic of its members' assignments."""
    request = await beside.decode_passed(context.header, message)

    async def change(response: Any) -> None:
        for group in response.groups:
            topics = {
                topic.topic_name for member in group.members for topic in member.assignment.topic_partitions
            }
            if not all(may_describe_topic(context, topic) for topic in sorted(topics)):
                group.error_code, group.error_message, group.members = _TOPIC_DENIED, HIDDEN, []
            elif request.include_authorized_operations and not group.error_code:
                group.authorized_operations = group_operations(context, group.group_id)

    screened = await _DESCRIBED.guard(context, message)
    remaining, refused = (message, {}) if screened is None else (screened.remaining, screened.refused)
    return Screened(remaining, refused, change)


_OFFSETS = Entries(
    "groups",
    "groups",
    lambda context, group: _undescribed_group(context, group.group_id),
    lambda group, error: {"group_id": group.group_id, "error_code": error},
)


async def guard_offsets(context: RequestContext, message: bytes) -> Screened | None:
    """DESCRIBE on each group and each topic. A topic that the request names has an error, others are left
    out.
    """
    request = await beside.decode_passed(context.header, message)
    named = {group.group_id for group in request.groups if group.topics is not None}

    async def change(response: Any) -> None:
        for group in response.groups:
            shown = set(described_topics(context, [topic.topic_name for topic in group.topics]))
            if group.group_id not in named:
                group.topics = [topic for topic in group.topics if topic.topic_name in shown]
                continue
            for topic in group.topics:
                if topic.topic_name not in shown:
                    _deny(topic)

    screened = await _OFFSETS.guard(context, message)
    remaining, refused = (message, {}) if screened is None else (screened.remaining, screened.refused)
    return Screened(remaining, refused, change)


def _deny(topic: Any) -> None:
    topic.topic_id = _NO_ID
    for partition in topic.partitions:
        partition.error_code, partition.error_message = _DENIED["error_code"], _DENIED["error_message"]
        partition.start_offset, partition.leader_epoch, partition.lag = -1, 0, -1


def _guard_change(may: Callable[[RequestContext, str], bool], refused: Callable[[Any], Fields]) -> Screen:
    """The check of a change of offsets: an operation on the group, READ on each topic."""
    topics = Entries(
        "topics",
        "responses",
        lambda context, topic: None if may_read_topic(context, topic.topic_name) else _TOPIC_DENIED,
        lambda topic, error: refused(topic),
    )

    async def guard(context: RequestContext, message: bytes) -> Screened | None:
        request = await beside.decode_passed(context.header, message)
        if not may(context, request.group_id):
            return Screened(None, CHANGE_REFUSED)
        return await topics.guard(context, message)

    return guard


def denied_partitions(topic: Any) -> Fields:
    """The part of a response to AlterShareGroupOffsets for a topic that the client may not read."""
    partitions = [{"partition_index": p.partition_index, **_DENIED} for p in topic.partitions]
    return {"topic_name": topic.topic_name, "partitions": partitions}


def denied_topic(topic: Any) -> Fields:
    """The same for DeleteShareGroupOffsets."""
    return {"topic_name": topic.topic_name, **_DENIED}


ROWS = (
    Passed(key=ApiKey.ShareGroupHeartbeat, guard=_guard_heartbeat, screen=_watch_heartbeat),
    Passed(key=ApiKey.ShareGroupDescribe, guard=_guard_description),
    Passed(
        key=ApiKey.AlterShareGroupOffsets,
        guard=_guard_change(may_read_group, denied_partitions),
    ),
    Passed(
        key=ApiKey.DeleteShareGroupOffsets,
        guard=_guard_change(may_delete_group, denied_topic),
    ),
)
