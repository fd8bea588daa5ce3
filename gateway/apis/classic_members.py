"""Requests of members of classic groups: JoinGroup (key 11), SyncGroup (14), Heartbeat (12), LeaveGroup (13).

The coordinator parks a JoinGroup until the rebalance completes, and a SyncGroup until the leader has sent the
assignment.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from kafka.protocol.api_key import ApiKey
from msgspec.structs import asdict

from assignors.kafka.server_side import is_for_coordinator
from gateway.apis.api import GROUP_REFUSED, Api, describable_topics, may_read_group
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.topics import are_too_many, images_of
from gateway.coordinator.backend import PARKED_TIMEOUT_MS
from gateway.upstream.connections import UpstreamLost
from gateway.wire import offload
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.kafka.requests import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    Protocol,
    SyncGroup,
)
from kafka_why.contract.kafka.responses import (
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    ProtocolError,
    decode_subscribed_topics,
    decode_subscription,
)

_FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
_FIRST_VERSION_WITH_NULLABLE_PROTOCOL = 7
# A member may join because a topic has just grown.
_PARTITIONS_AGE_MAX_S = 1.0

log = structlog.get_logger()


async def serve_join(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a JoinGroup to the coordinator, with the metadata of the topics that it may need."""
    if not may_read_group(context, request.group_id):
        return _join_refusal(context.version)
    has_timeout = context.version >= _FIRST_VERSION_WITH_REBALANCE_TIMEOUT
    rebalance_timeout_ms = request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms
    partitions_per_topic: dict[str, int] = {}
    topics = None
    if not context.oversized_bytes:  # `send` refuses an oversized request, which needs no metadata
        partitions_per_topic = await _partitions_per_topic(context, request.protocols)
        topics = await _topic_images(context, request)
    response = context.send(
        JoinGroup(
            **context.coordinator_header(request.group_id),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocols=[Protocol(protocol.name, protocol.metadata) for protocol in request.protocols],
            reason=request.reason,
            partitions_per_topic=partitions_per_topic,
            topics=topics,
        ),
        max(PARKED_TIMEOUT_MS, rebalance_timeout_ms),
    )
    return Deferred(response, partial(_join_fields, context.version), holds_back=True)


def _join_refusal(version: int) -> Fields:
    """Return the response to a client without READ on the group."""
    return {
        "error_code": GatewayError.GROUP_AUTHORIZATION_FAILED,
        "generation_id": -1,
        "protocol_name": None if version >= _FIRST_VERSION_WITH_NULLABLE_PROTOCOL else "",
    }


def _join_fields(version: int, answer: JoinGroupResponse) -> Fields:
    no_protocol = None if version >= _FIRST_VERSION_WITH_NULLABLE_PROTOCOL else ""
    return {
        "error_code": answer.error_code,
        "generation_id": answer.generation_id,
        "protocol_type": answer.protocol_type,
        "protocol_name": no_protocol if answer.protocol_name is None else answer.protocol_name,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [asdict(member) for member in answer.members],
    }


async def _partitions_per_topic(context: RequestContext, protocols: Iterable[Any]) -> dict[str, int]:
    """Return the partition counts, by topic, of the topics to which the member subscribes in protocols whose
    assignments the coordinator computes. It is empty if no broker answers.
    """
    subscribed: set[str] = set()
    for protocol in protocols:
        if is_for_coordinator(protocol.name):
            with suppress(ProtocolError):  # the coordinator refuses malformed metadata
                subscribed.update(decode_subscribed_topics(protocol.metadata))
    # A topic that the client may not describe counts as absent.
    describable = describable_topics(context, sorted(subscribed))
    if not describable:
        return {}
    try:
        topics = await context.services.cluster.topics(describable, _PARTITIONS_AGE_MAX_S)
    except UpstreamLost as error:
        log.warning("no metadata of the topics to assign", error=str(error))
        return {}
    return {name: topic.partitions for name, topic in topics.items()}


async def _topic_images(context: RequestContext, request: Any) -> TopicImages | None:
    """Return the metadata of the topics that the member subscribes to or owns partitions of.

    A classic member may join a group of the consumer protocol (KIP-848), which needs the metadata. As in
    Kafka, DESCRIBE is not required. Return None if the member cannot be in such a group, if no broker
    answers, or if the metadata does not fit into one request.
    """
    if not context.services.consumer_protocol or request.protocol_type != PROTOCOL_TYPE:
        return None
    metadata = [protocol.metadata for protocol in request.protocols]
    is_large = sum(map(len, metadata)) > offload.AT_ONCE_BYTES
    names = await offload.run_if(is_large, _topic_names, metadata)
    if are_too_many(names):
        return None
    return await images_of(context, sorted(names))


def _topic_names(metadata: Iterable[bytes]) -> set[str]:
    """Return the topics that a member's protocols subscribe to or own partitions of."""
    names: set[str] = set()
    for protocol_metadata in metadata:
        with suppress(ProtocolError):  # the coordinator decides about malformed metadata
            subscription = decode_subscription(protocol_metadata)
            names.update(subscription.topics, (owned.topic for owned in subscription.owned_partitions))
    return names


JOIN_GROUP = Api(key=ApiKey.JoinGroup, serve=serve_join, parks=JoinGroupResponse)


_FIRST_SYNC_WITH_PROTOCOL = 5


def serve_sync(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a SyncGroup to the coordinator. The group leader's request has the assignments of all members. The
    response has the assignment of this member.
    """
    if not may_read_group(context, request.group_id):
        return _sync_refusal(context, request)
    response = context.send(
        SyncGroup(
            **context.coordinator_header(request.group_id),
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=[MemberAssignment(a.member_id, a.assignment) for a in request.assignments],
        ),
        PARKED_TIMEOUT_MS,
    )
    return Deferred(response, _sync_fields, holds_back=True)


def _sync_refusal(context: RequestContext, request: Any) -> Fields:
    """Return the response to a client without READ on the group. As in Kafka, the error of a request without
    protocol takes precedence.
    """
    has_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.version >= _FIRST_SYNC_WITH_PROTOCOL and not has_protocol:
        return {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
    return GROUP_REFUSED


def _sync_fields(answer: SyncGroupResponse) -> Fields:
    return {
        "error_code": answer.error_code,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }


SYNC_GROUP = Api(key=ApiKey.SyncGroup, serve_at_once=serve_sync, parks=SyncGroupResponse)


def serve_heartbeat(context: RequestContext, request: Any) -> Fields | Deferred:
    """Pass the member's heartbeat to the coordinator."""
    if not may_read_group(context, request.group_id):
        return GROUP_REFUSED
    response = context.send(
        Heartbeat(
            **context.coordinator_header(request.group_id),
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        )
    )
    return Deferred(response, lambda answer: {"error_code": answer.error_code})


HEARTBEAT = Api(key=ApiKey.Heartbeat, serve_at_once=serve_heartbeat, is_heartbeat=True)


_FIRST_LEAVE_WITH_MEMBERS = 3


def serve_leave(context: RequestContext, request: Any) -> Fields | Deferred:
    """Remove members from the group."""
    if not may_read_group(context, request.group_id):
        return GROUP_REFUSED
    response = context.send(
        LeaveGroup(**context.coordinator_header(request.group_id), members=_leaving_members(context, request))
    )
    return Deferred(response, partial(_leave_fields, context.version))


def _leave_fields(version: int, answer: LeaveGroupResponse) -> Fields:
    if version < _FIRST_LEAVE_WITH_MEMBERS:
        # The request removes one member. Its error is the error of the response.
        return {"error_code": answer.error_code or next((m.error_code for m in answer.members), 0)}
    return {"error_code": answer.error_code, "members": [asdict(member) for member in answer.members]}


def _leaving_members(context: RequestContext, request: Any) -> list[LeavingMember]:
    if context.version < _FIRST_LEAVE_WITH_MEMBERS:
        return [LeavingMember(request.member_id)]
    return [LeavingMember(m.member_id, m.group_instance_id, m.reason) for m in request.members]


LEAVE_GROUP = Api(key=ApiKey.LeaveGroup, serve_at_once=serve_leave)
