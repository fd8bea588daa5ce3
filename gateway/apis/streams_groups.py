"""Streams groups (KIP-1071): StreamsGroupHeartbeat (key 88), the only request of members, and
StreamsGroupDescribe (89). The gateway adds topics' metadata to heartbeats. It creates a topology's internal
topics (changelogs and repartition topics) with the client's rights.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from kafka.protocol.api_key import ApiKey
from msgspec import UNSET, convert, structs, to_builtins

from gateway.apis.api import GROUP_REFUSED, Api, may_on_cluster, may_read_group
from gateway.apis.context import Deferred, RequestContext, Services
from gateway.apis.modern_groups import OFF, TOPIC_REFUSED, Description
from gateway.apis.slices import Slices
from gateway.apis.topics import are_too_many, images_bytes, images_of
from gateway.authorization.acls import Operation, ResourceType
from gateway.log_text import quoted
from gateway.wire.codec import Fields
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.snapshot import listed
from kafka_why.contract.kafka.streams_responses import (
    CreatableStreamsTopic,
    KeyValue,
    StatusCode,
    StreamsEndpoint,
    StreamsGroupDescribe,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResponse,
    StreamsGroupMemberDescription,
    StreamsStatus,
    StreamsTopology,
    Subtopology,
    SubtopologyDescription,
    TaskIds,
    TaskOffset,
)
from kafka_why.contract.layout import KAFKAS_INTERNAL_TOPICS, is_topic_name
from kafka_why.contract.messages import ErrorCode
from state.kafka.streams_topics import named_topics, required_topics

_NAMED_MAX = 3  # the number of topics that a message names
# Larger metadata is added to a heartbeat only once per heartbeat interval.
_SMALL_BYTES = 16 * 1024
_REMEMBERED_HEARTBEATS = 2  # the number of heartbeat intervals for which failures of creation are remembered
# Fields of a member's description for this project's tools. Kafka's response does not have them.
_FIELDS_FOR_TOOLS = frozenset({"pending", "member_state"})
_NOT_REQUESTED, _NOT_STORED = 0, 1  # StreamsGroupDescribeResponse.TopologyDescriptionStatus

_TOO_MANY_TOPICS = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The topology has more topics than one request to the coordinator can describe.",
}


async def serve_heartbeat(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a member's heartbeat to the coordinator, with the metadata of its topics. Then create the internal
    topics that are missing.
    """
    refused = _refusal(context, request.group_id)
    if refused is not None:
        return refused
    if context.oversized_bytes:  # `send` refuses the request, which needs no metadata
        refused_response = _send(context, request, topology=None, topics=None)
        return Deferred(refused_response, partial(_heartbeat_fields, context))
    topology, names = None, _take_due_topics(context, request)
    if request.topology is not None:
        slices = context.slices()
        refused = await _topology_refusal(context, slices, request.topology.subtopologies)
        if refused is not None:
            return refused
        to_subtopology = partial(convert, type=Subtopology, from_attributes=True)
        subtopologies = await slices.each(to_subtopology, request.topology.subtopologies)
        topology = StreamsTopology(request.topology.epoch, subtopologies)
        names = sorted(required_topics(topology))
    if are_too_many(names):
        return _TOO_MANY_TOPICS
    topics = await images_of(context, names) if names and request.member_epoch >= 0 else None
    response = _send(context, request, topology, topics)
    # Only the answer to a heartbeat with metadata can be trusted about topics that are missing now.
    if topics is not None:
        response = asyncio.ensure_future(_create_topics(context, response))
    return Deferred(response, partial(_heartbeat_fields, context))


def heartbeat_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """Answer as `serve_heartbeat` does, or return None for a rare heartbeat that has a topology or needs
    metadata.
    """
    requested_topics = context.caches.requested_topics.get(request.group_id, request.member_id)
    if request.topology is not None or requested_topics is not None:
        return None
    refused = _refusal(context, request.group_id)
    if refused is not None:
        return refused
    response = _send(context, request, topology=None, topics=None)
    return Deferred(response, partial(_heartbeat_fields, context))


def added_bytes(context: RequestContext, request: Any) -> int:
    """Return the size of the metadata that the member's heartbeat needs.

    For a heartbeat without topology, this is also about the size of the coordinator's answer.
    """
    if context.oversized_bytes:
        return 0  # the request is refused
    if request.topology is not None:
        subtopologies = request.topology.subtopologies
        return images_bytes(chain.from_iterable(map(named_topics, subtopologies)))
    return images_bytes(context.caches.requested_topics.get(request.group_id, request.member_id) or ())


def _take_due_topics(context: RequestContext, request: Any) -> list[str] | None:
    """Remove and return the topics whose metadata the coordinator has requested.

    Return None if it has requested none, or if metadata of many topics was added too short a time ago.
    """
    requested_topics, pace = context.caches.requested_topics, context.caches.metadata_pace
    names = requested_topics.get(request.group_id, request.member_id)
    is_large = request.topology is None and names is not None and images_bytes(names) > _SMALL_BYTES
    # A client may send small heartbeats quickly. They must not all become large requests to the coordinator.
    if is_large and not pace.try_start():
        return None
    return requested_topics.pop(request.group_id, request.member_id)


def _refusal(context: RequestContext, group_id: str) -> Fields | None:
    """Return the refusal of a request, or None (row KSH1)."""
    if not context.services.streams_protocol:
        return OFF
    return None if may_read_group(context, group_id) else GROUP_REFUSED


async def _topology_refusal(
    context: RequestContext, slices: Slices, subtopologies: Sequence[Any]
) -> Fields | None:
    """Return the refusal of a topology, or None (row KSH3)."""
    names_of_subtopologies = await slices.each(named_topics, subtopologies)
    names = sorted(set(chain.from_iterable(names_of_subtopologies)))
    if are_too_many(names):
        return _TOO_MANY_TOPICS
    # The coordinator's own topics are internal, too.
    internal = KAFKAS_INTERNAL_TOPICS | context.services.internal_topics.names
    if not internal.isdisjoint(names):
        return _invalid_topology("has internal topics of the cluster", internal.intersection(names))
    illegal = [name for name in names if not is_topic_name(name)]
    if illegal:
        return _invalid_topology("has names that no topic can have", illegal)
    is_allowed = all(await slices.each(_topic_predicate(context, Operation.DESCRIBE), names))
    return None if is_allowed else TOPIC_REFUSED


def _topic_predicate(context: RequestContext, operation: Operation) -> Callable[[str], bool]:
    """Return a function that returns True if the client may do this operation on a topic."""
    authorizer = context.services.authorizer
    if authorizer is None:
        return lambda name: True
    # Unlike `may`, `predicate` caches nothing: a topology may have many topics.
    return authorizer.predicate(context.principal, context.client_host, operation, ResourceType.TOPIC)


def _invalid_topology(why: str, names: Iterable[str]) -> Fields:
    message = f"The topology {why}: {_listed([quoted(name) for name in sorted(names)])}."
    return {"error_code": ErrorCode.STREAMS_INVALID_TOPOLOGY, "error_message": message}


def _send(
    context: RequestContext, request: Any, topology: StreamsTopology | None, topics: TopicImages | None
) -> asyncio.Future[StreamsGroupHeartbeatResponse]:
    return context.send(
        StreamsGroupHeartbeat(
            **context.coordinator_header(request.group_id),
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            endpoint_information_epoch=request.endpoint_information_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topology=topology,
            active_tasks=_tasks(request.active_tasks),
            standby_tasks=_tasks(request.standby_tasks),
            warmup_tasks=_tasks(request.warmup_tasks),
            process_id=request.process_id,
            user_endpoint=convert(request.user_endpoint, StreamsEndpoint | None, from_attributes=True),
            client_tags=convert(request.client_tags, list[KeyValue] | None, from_attributes=True),
            task_offsets=_offsets(request.task_offsets),
            task_end_offsets=_offsets(request.task_end_offsets),
            shutdown_application=request.shutdown_application,
            topics=topics,
            not_created=context.caches.creation_failures.pop(request.group_id, request.member_id) or UNSET,
        )
    )


_tasks = partial(convert, type=list[TaskIds] | None, from_attributes=True)
_offsets = partial(convert, type=list[TaskOffset] | None, from_attributes=True)


def _heartbeat_fields(context: RequestContext, answer: StreamsGroupHeartbeatResponse) -> Fields:
    if answer.needs_topics is not UNSET:
        context.caches.metadata_pace.interval_ms = answer.heartbeat_interval_ms
        context.caches.requested_topics.add(answer.group_id, answer.member_id, answer.needs_topics)
    return {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval_ms": answer.heartbeat_interval_ms,
        "acceptable_recovery_lag": answer.acceptable_recovery_lag,
        "task_offset_interval_ms": answer.task_offset_interval_ms,
        "status": to_builtins(answer.status),
        "active_tasks": to_builtins(answer.active_tasks),
        "standby_tasks": to_builtins(answer.standby_tasks),
        "warmup_tasks": to_builtins(answer.warmup_tasks),
        "endpoint_information_epoch": answer.endpoint_information_epoch,
        "partitions_by_user_endpoint": to_builtins(answer.partitions_by_user_endpoint),
    }


async def _create_topics(
    context: RequestContext, response: Awaitable[StreamsGroupHeartbeatResponse]
) -> StreamsGroupHeartbeatResponse:
    """Create missing internal topics. Return the coordinator's answer with the outcome in the status."""
    answer = await response
    if answer.create_topics is UNSET:
        return answer
    outcome = await _create(context, answer.create_topics, answer.heartbeat_interval_ms)
    if outcome:
        context.caches.creation_failures.add(answer.group_id, answer.member_id, outcome)
    return structs.replace(answer, status=[_with_outcome(status, outcome) for status in answer.status])


async def _create(
    context: RequestContext, topics: Sequence[CreatableStreamsTopic], heartbeat_interval_ms: int
) -> str:
    """Create internal topics with the client's rights, at most once per heartbeat interval.

    Return the reason if the client lacks the right, or if a recent creation has failed, else "".
    """
    names = [topic.name for topic in topics]
    if not may_on_cluster(context, Operation.CREATE):
        are_allowed = await context.slices().each(_topic_predicate(context, Operation.CREATE), names)
        denied = [name for name, is_allowed in zip(names, are_allowed, strict=True) if not is_allowed]
        if denied:
            return f"The client is not authorized to create {_listed(denied)}."
    streams_topics, pace = context.services.streams_topics, context.caches.creation_pace
    pace.interval_ms = heartbeat_interval_ms
    if pace.try_start():
        remembered_s = _REMEMBERED_HEARTBEATS * heartbeat_interval_ms / 1_000
        streams_topics.create(context.principal, topics, context.ask_as_client, remembered_s)
    reasons = streams_topics.failures(context.principal, names)  # by topic
    if not reasons:
        return ""
    return f"Not created: {_listed([f'{name} ({reason})' for name, reason in reasons.items()])}."


_listed = partial(listed, noun="topic", most=_NAMED_MAX)


def _with_outcome(status: StreamsStatus, outcome: str) -> StreamsStatus:
    """Add the outcome of the creation to the status that reports missing internal topics."""
    if not outcome or status.status_code != StatusCode.MISSING_INTERNAL_TOPICS:
        return status
    return structs.replace(status, status_detail=f"{status.status_detail} {outcome}")


def _subtopologies(answer: StreamsGroupDescribeResponse) -> Sequence[SubtopologyDescription]:
    return [] if answer.topology is None else answer.topology.subtopologies


def _member_fields(member: StreamsGroupMemberDescription) -> Fields:
    fields = to_builtins(member)
    return {name: value for name, value in fields.items() if name not in _FIELDS_FOR_TOOLS}


def _group_fields(request: Any, answer: StreamsGroupDescribeResponse) -> Fields:
    is_requested = getattr(request, "include_topology_description", False)  # from version 1 on
    return {
        "assignor_name": answer.assignor_name or None,
        "topology": to_builtins(answer.topology),
        "topology_description_status": _NOT_STORED if is_requested else _NOT_REQUESTED,
    }


def _is_on(services: Services) -> bool:
    return services.streams_protocol


HEARTBEAT = Api(
    key=ApiKey.StreamsGroupHeartbeat,
    serve=serve_heartbeat,
    serve_at_once=heartbeat_at_once,
    is_heartbeat=True,
    added_bytes=added_bytes,
    is_offered=_is_on,
)
DESCRIBE = Api(
    key=ApiKey.StreamsGroupDescribe,
    serve=Description(
        request=StreamsGroupDescribe,
        is_on=_is_on,
        parts=_subtopologies,
        topics=named_topics,
        member_fields=_member_fields,
        fields=_group_fields,
    ).serve,
    is_offered=_is_on,
)
