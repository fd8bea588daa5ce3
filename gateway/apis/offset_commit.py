"""OffsetCommit (key 8). Partitions that are not there are refused here, the rest goes to the coordinator."""

from collections.abc import Sequence
from typing import Any

from gateway.apis.context import Call
from gateway.apis.topics import FIRST_VERSION_WITH_IDS, Asked, Outcomes, look_up
from gateway.wire.codec import Fields
from state.errors import ErrorCode
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit
from state.kafka.responses import OffsetCommitResponse


async def serve(call: Call, request: Any) -> Fields:
    """Keep offsets of the partitions that there are."""
    topics = await look_up(call, request.topics, by_id=call.version >= FIRST_VERSION_WITH_IDS)
    outcomes = Outcomes()
    if topics is None:
        for topic in request.topics:
            asked = Asked(topic.name, topic.topic_id, None)
            for partition in topic.partitions:
                outcomes.add(asked, partition.partition_index, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return {"topics": outcomes.fields()}
    valid = _valid(request, topics, outcomes)
    if valid:
        await _commit(call, request, valid, outcomes)
    return {"topics": outcomes.fields()}


def _valid(request: Any, topics: Sequence[Asked], outcomes: Outcomes) -> list[tuple[Asked, list[Any]]]:
    """What can be committed; what cannot is an outcome."""
    valid = []
    for asked, topic in zip(topics, request.topics, strict=True):
        for partition in topic.partitions:
            if not asked.has(partition.partition_index):
                outcomes.add(asked, partition.partition_index, asked.missing)
        there = [p for p in topic.partitions if asked.has(p.partition_index)]
        if there:
            valid.append((asked, there))
    return valid


async def _commit(
    call: Call, request: Any, valid: Sequence[tuple[Asked, list[Any]]], outcomes: Outcomes
) -> None:
    answer = await call.services.backend.ask(
        OffsetCommit(
            **call.to_group(request.group_id),
            generation_id=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=[_committed(asked, partitions) for asked, partitions in valid],
        ),
        OffsetCommitResponse,
    )
    if answer.error_code is not ErrorCode.NONE:
        error = answer.error_code
        outcomes.merge(
            (asked, [(p.partition_index, error) for p in partitions]) for asked, partitions in valid
        )
        return
    outcomes.merge(
        (asked, [(p.partition_index, p.error_code) for p in topic.partitions])
        for (asked, _), topic in zip(valid, answer.topics, strict=True)
    )


def _committed(asked: Asked, partitions: Sequence[Any]) -> CommittedTopic:
    name = asked.name if asked.topic is None else asked.topic.name
    return CommittedTopic(
        name,
        [
            CommittedPartition(
                p.partition_index, p.committed_offset, p.committed_leader_epoch, p.committed_metadata
            )
            for p in partitions
        ],
    )
