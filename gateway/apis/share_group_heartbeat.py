"""ShareGroupHeartbeat (key 76), the one request of a member of a share group (KIP-932)."""

from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.guards import GROUP_REFUSED, may_read_group
from gateway.apis.modern_groups import (
    TOO_MUCH,
    TOPIC_REFUSED,
    Description,
    assignment_fields,
    heartbeat_fields,
    may_describe_all,
)
from gateway.apis.shares_at_brokers import HIDDEN, are_at_brokers
from gateway.apis.topic_facts import images_of, is_too_much
from gateway.wire.codec import Fields
from gateway.wire.heartbeats import decode_share_heartbeat
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.responses import ShareGroupMemberDescription
from kafka_why.contract.kafka.share_requests import ShareGroupDescribe, ShareGroupHeartbeat, TopicImages
from state.kafka.share.heartbeat import MEMBER_ID_MAX_CHARS

OFF = {"error_code": ErrorCode.UNSUPPORTED_VERSION}
"""The response where there are no share groups (row SH1)."""

_INVALID = {"error_code": ErrorCode.INVALID_REQUEST}


async def serve(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a member's heartbeat to the coordinator, with what the brokers say of its topics."""
    refused = _refused(context, request)
    if refused is not None:
        return refused
    names = request.subscribed_topic_names
    if is_too_much(names):
        return TOO_MUCH
    topics = None
    if request.member_epoch >= 0 and names is not None:
        topics = await images_of(context, names)
    return TOO_MUCH if is_too_much(topics) else _send(context, request, topics)


def serve_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """As `serve`, None if the request is about topics: most heartbeats are not."""
    if request.subscribed_topic_names is not None:
        return None
    return _refused(context, request) or _send(context, request, None)


def _refused(context: RequestContext, request: Any) -> Fields | None:
    """Rows SH1 to SH4, and SF24: the coordinator's own topics are no queues."""
    if not context.services.share_groups.are_ours:
        return OFF
    if not may_read_group(context, request.group_id):
        return GROUP_REFUSED
    if not 0 < len(request.member_id) <= MEMBER_ID_MAX_CHARS:
        return _INVALID
    names = request.subscribed_topic_names or ()
    if not context.services.internal_topics.names.isdisjoint(names):
        return TOPIC_REFUSED
    return None if may_describe_all(context, names) else TOPIC_REFUSED


def _send(context: RequestContext, request: Any, topics: TopicImages | None) -> Deferred:
    response = context.send(
        ShareGroupHeartbeat(
            **context.to_group(request.group_id),
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            subscribed_topic_names=request.subscribed_topic_names,
            topics=topics,
        )
    )
    return Deferred(response, heartbeat_fields)


API = Api(
    key=ApiKey.ShareGroupHeartbeat,
    serve=serve,
    serve_at_once=serve_at_once,
    decode=decode_share_heartbeat,
    is_passed=are_at_brokers,
)


def _member(member: ShareGroupMemberDescription) -> Fields:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "assignment": assignment_fields(member.assignment),
    }


_DESCRIPTION = Description(
    ShareGroupDescribe,
    is_on=lambda services: services.share_groups.are_ours,
    assignments=lambda member: (member.assignment,),  # row SA2
    member=_member,
    hidden=HIDDEN,
)

DESCRIBE = Api(key=ApiKey.ShareGroupDescribe, serve=_DESCRIPTION.serve, is_passed=are_at_brokers)
