"""Streams groups (KIP-1071): StreamsGroupHeartbeat (key 88), the only request of members, and
StreamsGroupDescribe (89). The gateway adds topics' metadata to heartbeats, and creates internal topics with
the client's rights.
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
from gateway.apis.topics import images_bytes, images_of, is_too_much
from gateway.authorization.acls import Operation, ResourceType
from gateway.log_text import quoted
from gateway.wire.codec import Fields
from gateway.wire.heartbeats import decode_streams_heartbeat
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

_NAMED_MAX = 3
# More metadata is added to a heartbeat only once per interval.
_SMALL_BYTES = 16 * 1024
_REMEMBERED_HEARTBEATS = 2
_TOOLS_FIELDS = frozenset({"pending", "member_state"})  # of a member's description
_NOT_REQUESTED, _NOT_STORED = 0, 1  # StreamsGroupDescribeResponse.TopologyDescriptionStatus

_TOO_MUCH = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The topology has more topics than one request to the coordinator can describe.",
}


async def serve_heartbeat(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a member's heartbeat to the coordinator, with the metadata of its topics. Then create the internal
    topics that are missing.
    """
    refused = _refused(context, request.group_id)
    if refused is not None:
        return refused
    if context.oversized_bytes:  # it is not sent
        return Deferred(_send(context, request, None, None), partial(_heartbeat_fields, context))
    topology, requested = None, _due_topics(context, request)
    if request.topology is not None:
        slices = context.slices()
        refused = await _topology_refused(context, slices, request.topology.subtopologies)
        if refused is not None:
            return refused
        to_subtopology = partial(convert, type=Subtopology, from_attributes=True)
        subtopologies = await slices.each(to_subtopology, request.topology.subtopologies)
        topology = StreamsTopology(request.topology.epoch, subtopologies)
        requested = sorted(required_topics(topology))
    if is_too_much(requested):
        return _TOO_MUCH
    topics = await images_of(context, requested) if requested and request.member_epoch >= 0 else None
    response = _send(context, request, topology, topics)
    answer = response if topics is None else asyncio.ensure_future(_create_topics(context, response))
    return Deferred(answer, partial(_heartbeat_fields, context))


def heartbeat_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """Answer as `serve_heartbeat` does. Return None for requests about topics, which are rare."""
    if request.topology is not None:
        return None
    if context.caches.requested_topics.is_requested(request.group_id, request.member_id):
        return None
    refused = _refused(context, request.group_id)
    return refused or Deferred(_send(context, request, None, None), partial(_heartbeat_fields, context))


def added_bytes(context: RequestContext, request: Any) -> int:
    """Return the size of the metadata that the member's heartbeat needs.

    The coordinator's answer to a heartbeat without topology has about the same size.
    """
    if context.oversized_bytes:
        return 0  # it is not sent
    if request.topology is not None:
        subtopologies = request.topology.subtopologies
        return images_bytes(chain.from_iterable(map(named_topics, subtopologies)))
    return images_bytes(context.caches.requested_topics.get(request.group_id, request.member_id) or ())


def _due_topics(context: RequestContext, request: Any) -> list[str] | None:
    """Return the topics whose metadata the coordinator has requested, or None."""
    requested, pace = context.caches.requested_topics, context.caches.topic_metadata
    names = requested.get(request.group_id, request.member_id)
    is_large = request.topology is None and names is not None and images_bytes(names) > _SMALL_BYTES
    # A heartbeat is small, so many topics are reported at most once per heartbeat interval.
    if is_large and not pace.try_start():
        return None
    return requested.pop(request.group_id, request.member_id)


def _refused(context: RequestContext, group_id: str) -> Fields | None:
    """Rows KSH1 and KSH2: return the refusal of a request, or None."""
    if not context.services.streams_protocol:
        return OFF
    return None if may_read_group(context, group_id) else GROUP_REFUSED


async def _topology_refused(
    context: RequestContext, slices: Slices, subtopologies: Sequence[Any]
) -> Fields | None:
    """Rows KSH3 to KSH5: return the refusal of a topology, or None."""
    named = await slices.each(named_topics, subtopologies)
    names = sorted(set(chain.from_iterable(named)))
    if is_too_much(names):
        return _TOO_MUCH
    # The coordinator's own topics are internal, too.
    internal = KAFKAS_INTERNAL_TOPICS | context.services.internal_topics.names
    if not internal.isdisjoint(names):
        return _invalid_topology("has internal topics of the cluster", internal.intersection(names))
    illegal = [name for name in names if not is_topic_name(name)]
    if illegal:
        return _invalid_topology("has names that no topic can have", illegal)
    is_allowed = all(await slices.each(_decider(context, Operation.DESCRIBE), names))
    return None if is_allowed else TOPIC_REFUSED


def _decider(context: RequestContext, operation: Operation) -> Callable[[str], bool]:
    """Return a function that returns True if the client may do this operation on a topic."""
    authorizer = context.services.authorizer
    if authorizer is None:
        return lambda name: True
    # This caches nothing, because a topology may have many topics.
    return authorizer.decider(context.principal, context.client_host, operation, ResourceType.TOPIC)


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
        )
    )


def _tasks(tasks: Any) -> list[TaskIds] | None:
    return convert(tasks, list[TaskIds] | None, from_attributes=True)


def _offsets(offsets: Any) -> list[TaskOffset] | None:
    return convert(offsets, list[TaskOffset] | None, from_attributes=True)


def _heartbeat_fields(context: RequestContext, answer: StreamsGroupHeartbeatResponse) -> Fields:
    if answer.needs_topics is not UNSET:
        context.caches.topic_metadata.interval_ms = answer.heartbeat_interval_ms
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
    return structs.replace(answer, status=[_with_outcome(one, outcome) for one in answer.status])


async def _create(
    context: RequestContext, topics: Sequence[CreatableStreamsTopic], heartbeat_interval_ms: int
) -> str:
    """Create internal topics with the client's rights, at most once per heartbeat interval.

    Return why topics are not created: for lack of rights, or because they could not be created a short time
    ago (rows KST17 to KST20).
    """
    names = [topic.name for topic in topics]
    if not may_on_cluster(context, Operation.CREATE):
        allowed = await context.slices().each(_decider(context, Operation.CREATE), names)
        denied = [name for name, may in zip(names, allowed, strict=True) if not may]
        if denied:
            return f"The client is not authorized to create {_listed(denied)}."
    creation, pace = context.services.streams_topics, context.caches.topic_creation
    pace.interval_ms = heartbeat_interval_ms
    if pace.try_start():
        remembered_s = _REMEMBERED_HEARTBEATS * heartbeat_interval_ms / 1_000
        creation.create(context.principal, topics, context.ask_as_client, remembered_s)
    failed = creation.failures(context.principal, names)
    return f"Not created: {_listed([f'{name} ({why})' for name, why in failed.items()])}." if failed else ""


def _listed(topics: list[str]) -> str:
    return listed(topics, "topic", _NAMED_MAX)


def _with_outcome(status: StreamsStatus, outcome: str) -> StreamsStatus:
    """Add the outcome of the creation to the status that reports missing internal topics."""
    if not outcome or status.status_code != StatusCode.MISSING_INTERNAL_TOPICS:
        return status
    return structs.replace(status, status_detail=f"{status.status_detail} {outcome}")


def _subtopologies(answer: StreamsGroupDescribeResponse) -> Sequence[SubtopologyDescription]:
    return [] if answer.topology is None else answer.topology.subtopologies


def _member_fields(member: StreamsGroupMemberDescription) -> Fields:
    fields = to_builtins(member)
    return {name: value for name, value in fields.items() if name not in _TOOLS_FIELDS}


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
    decode=decode_streams_heartbeat,
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
