"""OffsetCommit (key 8). The gateway refuses unknown partitions, the coordinator decides about the rest."""

from asyncio import Future
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.apis.authorized import may_read_group, may_read_topic
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.topics import FIRST_VERSION_WITH_IDS, Codes, NamedTopic, Outcomes, look_up, look_up_at_once
from gateway.authorization.acls import Operation
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from state.errors import ErrorCode
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit
from state.kafka.responses import OffsetCommitResponse


async def serve(context: RequestContext, request: Any) -> Fields | Deferred:
    """Commit the offsets of the existing partitions."""
    if not may_read_group(context, request.group_id):
        return _refused(request, GatewayError.GROUP_AUTHORIZATION_FAILED)
    topics = await look_up(
        context, request.topics, Operation.READ, by_id=context.version >= FIRST_VERSION_WITH_IDS
    )
    if topics is None:
        return _refused(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _serve(context, request, topics)


def serve_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """As `serve`, None if topics have to be looked up at a broker."""
    if not may_read_group(context, request.group_id):
        return _refused(request, GatewayError.GROUP_AUTHORIZATION_FAILED)
    topics = look_up_at_once(
        context, request.topics, Operation.READ, by_id=context.version >= FIRST_VERSION_WITH_IDS
    )
    return None if topics is None else _serve(context, request, topics)


def _serve(context: RequestContext, request: Any, topics: Sequence[NamedTopic]) -> Fields | Deferred:
    outcomes = Outcomes()
    valid = valid_partitions(context, request, topics, outcomes)
    if not valid:
        return {"topics": outcomes.fields()}
    return Deferred(_commit(context, request, valid), partial(outcome_fields, valid, outcomes))


def _refused(request: Any, error: Codes) -> Fields:
    """The same error for all partitions."""
    outcomes = Outcomes()
    for topic in request.topics:
        named = NamedTopic(topic.name, topic.topic_id, None)
        outcomes.add_all(named, (p.partition_index for p in topic.partitions), error)
    return {"topics": outcomes.fields()}


def valid_partitions(
    context: RequestContext, request: Any, topics: Sequence[NamedTopic], outcomes: Outcomes
) -> list[tuple[NamedTopic, list[Any]]]:
    """Return the partitions that can be committed. Adds the errors of the others to `outcomes`."""
    valid = []
    for named, topic in zip(topics, request.topics, strict=True):
        name = named.name if named.topic is None else named.topic.name
        if name and not may_read_topic(context, name):
            indexes = (p.partition_index for p in topic.partitions)
            outcomes.add_all(named, indexes, GatewayError.TOPIC_AUTHORIZATION_FAILED)
            continue
        for partition in topic.partitions:
            if not named.has(partition.partition_index):
                outcomes.add(named, partition.partition_index, named.missing)
        there = [p for p in topic.partitions if named.has(p.partition_index)]
        if there:
            valid.append((named, there))
    return valid


def _commit(
    context: RequestContext, request: Any, valid: Sequence[tuple[NamedTopic, list[Any]]]
) -> Future[OffsetCommitResponse]:
    return context.ask(
        OffsetCommit(
            **context.to_group(request.group_id),
            generation_id=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=[committed_topic(named, partitions) for named, partitions in valid],
        ),
        OffsetCommitResponse,
    )


def outcome_fields(
    valid: Sequence[tuple[NamedTopic, list[Any]]], outcomes: Outcomes, answer: OffsetCommitResponse
) -> Fields:
    """The errors of all partitions. `outcomes` has those of the partitions that do not exist."""
    if answer.error_code is not ErrorCode.NONE:
        error = answer.error_code
        outcomes.merge(
            (named, [(p.partition_index, error) for p in partitions]) for named, partitions in valid
        )
    else:
        outcomes.merge(
            (named, [(p.partition_index, p.error_code) for p in topic.partitions])
            for (named, _), topic in zip(valid, answer.topics, strict=True)
        )
    return {"topics": outcomes.fields()}


def committed_topic(named: NamedTopic, partitions: Sequence[Any]) -> CommittedTopic:
    assert named.topic is not None
    return CommittedTopic(
        named.topic.name,
        [
            CommittedPartition(
                p.partition_index, p.committed_offset, p.committed_leader_epoch, p.committed_metadata
            )
            for p in partitions
        ],
        named.topic.topic_id,
    )
