"""Streams groups (KIP-1071): StreamsGroupHeartbeat (key 88), the only request of members, and
StreamsGroupDescribe (89). The gateway adds topics' metadata to heartbeats, and creates internal topics with
the client's rights.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from kafka.protocol.api_key import ApiKey
from msgspec import UNSET, convert, structs, to_builtins

from gateway.apis.api import GROUP_REFUSED, Api, may_on_cluster, may_read_group
from gateway.apis.context import Deferred, RequestContext, Services
from gateway.apis.modern_groups import OFF, TOPIC_REFUSED, Description, may_describe_all
from gateway.apis.topics import images_of, is_too_much
from gateway.authorization.acls import Operation, ResourceType
from gateway.upstream.cluster import is_topic_name
from gateway.wire.codec import Fields
from gateway.wire.heartbeats import decode_streams_heartbeat
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.streams_requests import (
    StreamsGroupDescribe,
    StreamsGroupHeartbeat,
    StreamsTopology,
    Subtopology,
)
from kafka_why.contract.kafka.streams_responses import (
    CreatableStreamsTopic,
    KeyValue,
    StatusCode,
    StreamsEndpoint,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatResponse,
    StreamsGroupMemberDescription,
    StreamsStatus,
    SubtopologyDescription,
    TaskIds,
    TaskOffset,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.streams_topics import required_topics

# Topic.INTERNAL_TOPICS of Kafka.
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_NAMED_MAX = 3
_REMEMBERED_HEARTBEATS = 2
_TOOLS_FIELDS = frozenset({"pending", "member_state"})  # of a member's description
_NOT_REQUESTED, _NOT_STORED = 0, 1  # StreamsGroupDescribeResponse.TopologyDescriptionStatus

_TOO_MUCH = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The topology has more topics than one request to the coordinator can describe.",
}


async def serve_heartbeat(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a member's heartbeat to the coordinator, with the metadata of its topics."""
    topology = convert(request.topology, StreamsTopology | None, from_attributes=True)
    refused = _refused(context, request.group_id, topology)
    if refused is not None:
        return refused
    requested = context.caches.requested_topics.pop(request.group_id, request.member_id)
    names = requested if topology is None else sorted(required_topics(topology))
    if is_too_much(names):
        return _TOO_MUCH
    topics = await images_of(context, names) if names and request.member_epoch >= 0 else None
    return _send(context, request, topology, topics)


def heartbeat_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """Answer as `serve_heartbeat` does. Return None for requests about topics, which are rare."""
    if request.topology is not None:
        return None
    if context.caches.requested_topics.is_requested(request.group_id, request.member_id):
        return None
    return _refused(context, request.group_id, None) or _send(context, request, None, None)


def _refused(context: RequestContext, group_id: str, topology: StreamsTopology | None) -> Fields | None:
    """Rows KSH1 to KSH5. The coordinator's own topics are internal, too."""
    if not context.services.streams_protocol:
        return OFF
    if not may_read_group(context, group_id):
        return GROUP_REFUSED
    if topology is None:
        return None
    names = sorted(set(chain.from_iterable(map(_all_topics, topology.subtopologies))))
    internal = _INTERNAL | context.services.internal_topics.names
    if not internal.isdisjoint(names):
        return _invalid("has internal topics of the cluster", internal.intersection(names))
    illegal = [name for name in names if not is_topic_name(name)]
    if illegal:
        return _invalid("has names that no topic can have", illegal)
    return None if may_describe_all(context, names) else TOPIC_REFUSED


def _invalid(why: str, names: Iterable[str]) -> Fields:
    message = f"The topology {why}: {', '.join(sorted(names))}."
    return {"error_code": ErrorCode.STREAMS_INVALID_TOPOLOGY, "error_message": message}


def _all_topics(subtopology: Subtopology | SubtopologyDescription) -> set[str]:
    """Return the topics that a client has to be authorized to describe (rows KSH5, KSD5)."""
    internal = (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
    names = (*subtopology.source_topics, *subtopology.repartition_sink_topics)
    return {*names, *(topic.name for topic in internal)}


def _send(
    context: RequestContext, request: Any, topology: StreamsTopology | None, topics: TopicImages | None
) -> Deferred:
    response = context.send(
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
    return Deferred(response, partial(_heartbeat_fields, context))


def _tasks(tasks: Any) -> list[TaskIds] | None:
    return convert(tasks, list[TaskIds] | None, from_attributes=True)


def _offsets(offsets: Any) -> list[TaskOffset] | None:
    return convert(offsets, list[TaskOffset] | None, from_attributes=True)


def _heartbeat_fields(context: RequestContext, answer: StreamsGroupHeartbeatResponse) -> Fields:
    """Return the response to a heartbeat."""
    if answer.needs_topics is not UNSET:
        context.caches.requested_topics.add(answer.group_id, answer.member_id, answer.needs_topics)
    status = answer.status
    if answer.create_topics is not UNSET:
        outcome = _create(context, answer.create_topics, answer.heartbeat_interval_ms)
        status = [_amended(one, outcome) for one in answer.status]
    return {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval_ms": answer.heartbeat_interval_ms,
        "acceptable_recovery_lag": answer.acceptable_recovery_lag,
        "task_offset_interval_ms": answer.task_offset_interval_ms,
        "status": to_builtins(status),
        "active_tasks": to_builtins(answer.active_tasks),
        "standby_tasks": to_builtins(answer.standby_tasks),
        "warmup_tasks": to_builtins(answer.warmup_tasks),
        "endpoint_information_epoch": answer.endpoint_information_epoch,
        "partitions_by_user_endpoint": to_builtins(answer.partitions_by_user_endpoint),
    }


def _create(
    context: RequestContext, topics: Sequence[CreatableStreamsTopic], heartbeat_interval_ms: int
) -> str:
    """Create internal topics with the client's rights. Return why topics are not created: for lack of rights,
    or because they could not be created a short time ago (rows KST17 to KST20).
    """
    names = [topic.name for topic in topics]
    if not may_on_cluster(context, Operation.CREATE):
        denied = [name for name in names if not context.may(Operation.CREATE, ResourceType.TOPIC, name)]
        if denied:
            return f"The client is not authorized to create {_listed(denied)}."
    creation = context.services.streams_topics
    creation.create(topics, context.ask_as_client, _REMEMBERED_HEARTBEATS * heartbeat_interval_ms / 1_000)
    failed = creation.failures(names)
    return f"Not created: {_listed([f'{name} ({why})' for name, why in failed.items()])}." if failed else ""


def _listed(items: Sequence[str]) -> str:
    beyond = len(items) - _NAMED_MAX
    return ", ".join(items[:_NAMED_MAX]) + (f" and {beyond} more" if beyond > 0 else "")


def _amended(status: StreamsStatus, outcome: str) -> StreamsStatus:
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
    is_offered=_is_on,
)
DESCRIBE = Api(
    key=ApiKey.StreamsGroupDescribe,
    serve=Description(
        request=StreamsGroupDescribe,
        is_on=_is_on,
        parts=_subtopologies,
        topics=_all_topics,
        member_fields=_member_fields,
        fields=_group_fields,
    ).serve,
    is_offered=_is_on,
)
