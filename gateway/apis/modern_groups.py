"""Groups of the consumer protocol (KIP-848) and share groups (KIP-932). Their members join, report and leave
by ConsumerGroupHeartbeat (key 68) and ShareGroupHeartbeat (76). ConsumerGroupDescribe (69) and
ShareGroupDescribe (77) describe groups.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import structlog
from kafka.protocol.api_key import ApiKey
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from gateway.apis.api import (
    GROUP_REFUSED,
    Api,
    group_operations,
    may_describe_group,
    may_describe_topic,
    may_read_group,
)
from gateway.apis.batch import answer_per_group
from gateway.apis.context import Deferred, PendingReports, RequestContext, Services
from gateway.apis.shares_at_brokers import HIDDEN, are_at_brokers
from gateway.apis.topics import are_too_many, images_of, resolution_of
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.kafka.requests import (
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    RegexResolution,
    TopicIdPartitions,
)
from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    ShareGroupHeartbeatResponse,
)
from kafka_why.contract.kafka.share_requests import ShareGroupDescribe, ShareGroupHeartbeat, TopicImages
from kafka_why.contract.messages import ErrorCode, Request
from state.kafka.share.heartbeat import MEMBER_ID_MAX_CHARS

OFF = {"error_code": ErrorCode.UNSUPPORTED_VERSION}
"""The response to a heartbeat while its protocol is switched off (rows HB1, SH1)."""

log = structlog.get_logger()


async def serve_consumer_heartbeat(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a member's heartbeat to the coordinator, with metadata of the topics to which it subscribes."""
    refused = _consumer_refusal(context, request)
    if refused is not None:
        return refused
    if are_too_many(request.subscribed_topic_names):
        return _TOO_MANY_TOPICS
    topics, regex = None, None
    requested_resolution: dict[str, RegexResolution] | UnsetType = UNSET
    if request.member_epoch >= 0 and request.subscribed_topic_names is not None:
        topics = await images_of(context, request.subscribed_topic_names)
    if request.member_epoch >= 0 and request.subscribed_topic_regex:
        regex = await resolution_of(context, request.subscribed_topic_regex)
    requested_pattern = context.caches.requested_patterns.pop(request.group_id, request.member_id)
    is_pattern_unchanged = request.member_epoch > 0 and request.subscribed_topic_regex is None
    if requested_pattern is not None and is_pattern_unchanged:
        requested_resolution = await _resolve_requested(context, requested_pattern, topics)
    if are_too_many(topics, None if regex is None else regex.topics):
        return _TOO_MANY_TOPICS
    return _send_consumer(context, request, topics, regex, requested_resolution)


async def _resolve_requested(
    context: RequestContext, pattern: str, topics: TopicImages | None
) -> dict[str, RegexResolution] | UnsetType:
    """Resolve a pattern that the coordinator requested.

    Return UNSET if it cannot be resolved now, or if its topics do not fit into a request together with
    `topics`. The coordinator then repeats its request.
    """
    resolution = await resolution_of(context, pattern, is_requested=True)
    if resolution is None:
        return UNSET
    if are_too_many(topics, resolution.topics):
        log.warning("a pattern matches more topics than a request can carry", topics=len(resolution.topics))
        return UNSET
    return {pattern: resolution}


def consumer_heartbeat_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """Answer as `serve_consumer_heartbeat` does. Return None if topics need metadata, which is rare."""
    if request.subscribed_topic_names is not None or request.subscribed_topic_regex:
        return None
    if context.caches.requested_patterns.get(request.group_id, request.member_id) is not None:
        return None
    return _consumer_refusal(context, request) or _send_consumer(context, request)


def _consumer_refusal(context: RequestContext, request: Any) -> Fields | None:
    """Rows HB1 to HB3: return the refusal of a heartbeat, or None."""
    if not context.services.consumer_protocol:
        return OFF
    if not may_read_group(context, request.group_id):
        return GROUP_REFUSED
    return None if may_describe_all(context, request.subscribed_topic_names) else TOPIC_REFUSED


def _send_consumer(
    context: RequestContext,
    request: Any,
    topics: TopicImages | None = None,
    regex: RegexResolution | None = None,
    requested_resolution: dict[str, RegexResolution] | UnsetType = UNSET,
) -> Deferred:
    """Send a heartbeat with this metadata. `regex` has the topics of the pattern in this heartbeat.
    `requested_resolution` has those of the pattern in an earlier heartbeat, which the coordinator requested.
    """
    owned = request.topic_partitions
    response = context.send(
        ConsumerGroupHeartbeat(
            **context.coordinator_header(request.group_id),
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            subscribed_topic_names=request.subscribed_topic_names,
            subscribed_topic_regex=request.subscribed_topic_regex,
            server_assignor=request.server_assignor,
            topic_partitions=(
                None if owned is None else [TopicIdPartitions(t.topic_id, t.partitions) for t in owned]
            ),
            topics=topics,
            regex=regex,
            checks_topics=UNSET if context.services.authorizer is None else True,
            looked=requested_resolution,
        )
    )
    return Deferred(response, partial(_consumer_fields, context.caches.requested_patterns))


def _consumer_fields(patterns: PendingReports[str], answer: ConsumerGroupHeartbeatResponse) -> Fields:
    if answer.look is not UNSET and answer.member_id is not None:  # the coordinator requests its topics
        patterns.add(answer.group_id, answer.member_id, answer.look)
    return _heartbeat_fields(answer)


CONSUMER_GROUP_HEARTBEAT = Api(
    key=ApiKey.ConsumerGroupHeartbeat,
    serve=serve_consumer_heartbeat,
    serve_at_once=consumer_heartbeat_at_once,
    is_heartbeat=True,
    is_offered=lambda services: services.consumer_protocol,
)


_INVALID = {"error_code": ErrorCode.INVALID_REQUEST}


async def serve_share_heartbeat(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a member's heartbeat to the coordinator, with metadata of the topics to which it subscribes."""
    refused = _share_refusal(context, request)
    if refused is not None:
        return refused
    names = request.subscribed_topic_names
    if are_too_many(names):
        return _TOO_MANY_TOPICS
    topics = None
    if request.member_epoch >= 0 and names is not None:
        topics = await images_of(context, names)
    return _send_share(context, request, topics)


def share_heartbeat_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """Answer as `serve_share_heartbeat` does. Return None if topics need metadata, which is rare."""
    if request.subscribed_topic_names is not None:
        return None
    return _share_refusal(context, request) or _send_share(context, request, topics=None)


def _share_refusal(context: RequestContext, request: Any) -> Fields | None:
    """Rows SH1 to SH4: return the refusal of a heartbeat, or None."""
    if not context.services.share_groups.are_ours:
        return OFF
    if not may_read_group(context, request.group_id):
        return GROUP_REFUSED
    if not 0 < len(request.member_id) <= MEMBER_ID_MAX_CHARS:
        return _INVALID
    names = request.subscribed_topic_names or ()
    # Share groups consume topics as queues, which the coordinator's own topics are not.
    if not context.services.internal_topics.names.isdisjoint(names):
        return TOPIC_REFUSED
    return None if may_describe_all(context, names) else TOPIC_REFUSED


def _send_share(context: RequestContext, request: Any, topics: TopicImages | None) -> Deferred:
    response = context.send(
        ShareGroupHeartbeat(
            **context.coordinator_header(request.group_id),
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            subscribed_topic_names=request.subscribed_topic_names,
            topics=topics,
        )
    )
    return Deferred(response, _heartbeat_fields)


SHARE_GROUP_HEARTBEAT = Api(
    key=ApiKey.ShareGroupHeartbeat,
    serve=serve_share_heartbeat,
    serve_at_once=share_heartbeat_at_once,
    is_heartbeat=True,
    is_passed=are_at_brokers,
)


TOPIC_REFUSED = {"error_code": GatewayError.TOPIC_AUTHORIZATION_FAILED}
_TOO_MANY_TOPICS = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The member subscribes to more topics than one request to the coordinator can describe.",
}


def may_describe_all(context: RequestContext, names: Iterable[str] | None) -> bool:
    """Return True if the client may describe each of these topics (rows HB3, SH4)."""
    return all(may_describe_topic(context, name) for name in names or ())


def _heartbeat_fields(answer: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse) -> Fields:
    return {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval_ms": answer.heartbeat_interval_ms,
        "assignment": None if answer.assignment is None else _assignment_fields(answer.assignment),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The API that describes groups of one type. The coordinator gets one `request` for each group.

    `fields` gets the client's request and the coordinator's answer. It returns the fields of the response
    that only this type has.
    """

    request: Callable[..., Request[Any]]
    is_on: Callable[[Services], bool]  # True if the coordinator has groups of this type
    # The error text if the client may not describe one of the group's topics.
    hidden: str = "The group has topics that the client is not authorized to describe."
    # The group's topics are those of all its `parts`: `topics` returns the names in one part.
    parts: Callable[[Any], Sequence[Any]] = attrgetter("members")
    topics: Callable[[Any], set[str]] = lambda member: _topic_names(member)
    member_fields: Callable[[Any], Fields] = lambda member: _member_fields(member)
    fields: Callable[[Any, Any], Fields] = lambda request, answer: {}

    async def serve(self, context: RequestContext, request: Any) -> Deferred:
        """Return the epochs, members and assignments of the groups."""
        start = partial(self._start, context, request)
        return answer_per_group(context, start, request.group_ids, lambda groups: {"groups": groups})

    def _start(self, context: RequestContext, request: Any, group_id: str) -> Fields | Deferred:
        """Start the request about a group, or return the refusal."""
        if not self.is_on(context.services):
            return {"group_id": group_id, "error_code": ErrorCode.UNSUPPORTED_VERSION}
        if not may_describe_group(context, group_id):
            return {"group_id": group_id, "error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
        response = context.send(self.request(**context.coordinator_header(group_id)), ANSWER_TIMEOUT_MS)
        described = asyncio.ensure_future(self._describe(context, request, response))
        return Deferred(described, lambda fields: fields)

    async def _describe(self, context: RequestContext, request: Any, response: Awaitable[Any]) -> Fields:
        """Return the part of the response about a group."""
        # The response is built in slices, because a group may have many members.
        answer, slices = await response, context.slices()
        group_id = answer.group_id
        topics_of_parts = await slices.each(self.topics, self.parts(answer))
        topics = sorted(set(chain.from_iterable(topics_of_parts)))
        if not all(await slices.each(partial(may_describe_topic, context), topics)):
            error = GatewayError.TOPIC_AUTHORIZATION_FAILED
            return {"group_id": group_id, "error_code": error, "error_message": self.hidden}
        # As in Kafka, where another layer refuses invalid group ids, this error has no text.
        has_message = answer.error_code is not ErrorCode.INVALID_GROUP_ID
        described: dict[str, Any] = {
            "error_code": answer.error_code,
            "error_message": answer.error_message if has_message else None,
            "group_id": group_id,
            "group_state": answer.group_state,
            "group_epoch": answer.group_epoch,
            "assignment_epoch": answer.assignment_epoch,
            "assignor_name": answer.assignor_name,
            "members": await slices.each(self.member_fields, answer.members),
            **self.fields(request, answer),
        }
        if request.include_authorized_operations and answer.error_code is ErrorCode.NONE:
            described["authorized_operations"] = group_operations(context, group_id)
        return described


def _topic_names(member: Any) -> set[str]:
    return {topic.topic_name for assigned in _assignments(member).values() for topic in assigned}


def _assignments(member: Any) -> dict[str, Sequence[AssignedTopicPartitions]]:
    """Return the assignments of a member by field. A member of a consumer group has two (row AD6)."""
    return {
        name: getattr(member, name) for name in ("assignment", "target_assignment") if hasattr(member, name)
    }


def _member_fields(member: Any) -> Fields:
    assignments = {name: _assignment_fields(assigned) for name, assigned in _assignments(member).items()}
    return {**asdict(member), **assignments}


def _assignment_fields(assigned: Sequence[AssignedTopicPartitions]) -> Fields:
    return {"topic_partitions": [asdict(topic) for topic in assigned]}


CONSUMER_GROUP_DESCRIBE = Api(
    key=ApiKey.ConsumerGroupDescribe,
    serve=Description(request=ConsumerGroupDescribe, is_on=lambda services: services.consumer_protocol).serve,
    is_offered=lambda services: services.consumer_protocol,
)
SHARE_GROUP_DESCRIBE = Api(
    key=ApiKey.ShareGroupDescribe,
    serve=Description(
        request=ShareGroupDescribe, is_on=lambda services: services.share_groups.are_ours, hidden=HIDDEN
    ).serve,
    is_passed=are_at_brokers,
)
