"""Conversion of the coordinator's responses about a group to the group's snapshot."""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from kafka_why.contract.kafka.history import SHARE, STREAMS
from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMemberDescription,
    DescribeGroupResponse,
    EpochsDescription,
    OffsetFetchResponse,
    ShareGroupDescribeResponse,
    ShareGroupMemberDescription,
)
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    NamedPartitions,
    ShareSnapshot,
    StreamsMemberSnapshot,
)
from kafka_why.contract.kafka.streams_responses import (
    NO_TASKS,
    StreamsAssignment,
    StreamsGroupDescribeResponse,
    StreamsGroupMemberDescription,
)
from kafka_why.contract.protocols.streams_protocol import ACTIVE, STANDBY, WARM_UP
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE, TopicPartition
from kafka_why.groups.gather import snapshot_without_times
from kafka_why.groups.list_groups import GroupOffsets, OffsetWithEpoch

AnyDescription = (
    DescribeGroupResponse
    | ConsumerGroupDescribeResponse
    | ShareGroupDescribeResponse
    | StreamsGroupDescribeResponse
)
_CLASSIC_MEMBER = 0


def snapshot_of(answer: AnyDescription) -> GroupSnapshot:
    """Return the group that an answer without an error describes. Fields that no answer has are empty.

    A group that does not exist is Dead.
    """
    if isinstance(answer, DescribeGroupResponse):
        return snapshot_without_times(
            answer.group_id,
            answer.group_state,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_data,
            members=[
                _member(m, m.group_instance_id, metadata=m.member_metadata, assignment=m.member_assignment)
                for m in answer.members
            ],
        )
    if isinstance(answer, StreamsGroupDescribeResponse):
        pending = answer.pending or {}
        members = [_streams_member(m, pending.get(m.member_id, NO_TASKS)) for m in answer.members]
        return _with_epochs(answer, STREAMS, members, streams=answer.streams)
    of_members = [_member_with_epochs(member) for member in answer.members]
    if isinstance(answer, ShareGroupDescribeResponse):
        return _with_epochs(answer, SHARE, of_members, share=ShareSnapshot({}, {}, {}))
    return _with_epochs(answer, PROTOCOL_TYPE, of_members)


def _with_epochs(
    answer: EpochsDescription, protocol_type: str, members: list[MemberSnapshot], **details: Any
) -> GroupSnapshot:
    return snapshot_without_times(
        answer.group_id,
        answer.group_state,
        generation=answer.group_epoch,
        protocol_type=protocol_type,
        members=members,
        consumer=ConsumerGroupSnapshot(
            assignment_epoch=answer.assignment_epoch,
            assignor_name=answer.assignor_name,
            topics={},
            resolved_regexes={},
            unknown_topics=[],
            unresolved_regexes=[],
            **details,
        ),
    )


def _member(member: Any, instance_id: str | None, **fields: Any) -> MemberSnapshot:
    return MemberSnapshot(
        member_id=member.member_id,
        group_instance_id=instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=0,
        rebalance_timeout_ms=0,
        rejoined=False,
        **{"metadata": b"", "assignment": b"", **fields},
    )


def _member_with_epochs(
    member: ConsumerGroupMemberDescription | ShareGroupMemberDescription,
) -> MemberSnapshot:
    # A share group's members have no target in a response. It is their assignment.
    instance_id, pattern, target, type_ = None, "", member.assignment, "share"
    if isinstance(member, ConsumerGroupMemberDescription):
        instance_id, pattern, target = (
            member.instance_id,
            member.subscribed_topic_regex,
            member.target_assignment,
        )
        type_ = "classic" if member.member_type == _CLASSIC_MEMBER else "consumer"
    return _member(
        member,
        instance_id,
        consumer=ConsumerMemberSnapshot(
            member_epoch=member.member_epoch,
            previous_epoch=-1,
            state="",
            rack_id=member.rack_id,
            subscribed_topic_names=member.subscribed_topic_names,
            subscribed_topic_regex=pattern,
            server_assignor=None,
            assigned=_by_name(member.assignment),
            revoking={},
            target=_by_name(target),
            member_type=type_,
        ),
    )


def _streams_member(member: StreamsGroupMemberDescription, pending: StreamsAssignment) -> MemberSnapshot:
    endpoint = member.user_endpoint
    return _member(
        member,
        member.instance_id,
        consumer=ConsumerMemberSnapshot(
            member_epoch=member.member_epoch,
            previous_epoch=-1,
            state="",
            rack_id=member.rack_id,
            subscribed_topic_names=[],
            subscribed_topic_regex="",
            server_assignor=None,
            assigned=_by_role(member.assignment),
            revoking=_by_role(pending),
            target=_by_role(member.target_assignment),
            member_type=STREAMS,
            streams=StreamsMemberSnapshot(
                member.topology_epoch,
                member.process_id,
                None if endpoint is None else str(endpoint),
                {tag.key: tag.value for tag in member.client_tags},
                _lags(member),
            ),
        ),
    )


def _lags(member: StreamsGroupMemberDescription) -> dict[str, int]:
    ends = {(end.subtopology_id, end.partition): end.offset for end in member.task_end_offsets}
    return {
        f"{at.subtopology_id}_{at.partition}": max(ends[at.subtopology_id, at.partition] - at.offset, 0)
        for at in member.task_offsets
        if (at.subtopology_id, at.partition) in ends
    }


def _by_role(tasks: StreamsAssignment) -> NamedPartitions:
    roles = ((ACTIVE, tasks.active_tasks), (STANDBY, tasks.standby_tasks), (WARM_UP, tasks.warmup_tasks))
    return {
        f"{role} {task_ids.subtopology_id}": task_ids.partitions
        for role, listed in roles
        for task_ids in listed
    }


def _by_name(assignment: Iterable[AssignedTopicPartitions]) -> NamedPartitions:
    return {topic.topic_name: topic.partitions for topic in assignment}


def offsets_of(answer: OffsetFetchResponse, description: AnyDescription | None) -> GroupOffsets:
    """Return the offsets of a group. `description`, if any, has the pending offsets."""
    committed = {
        TopicPartition(topic.name, p.partition_index): OffsetWithEpoch(
            p.committed_offset, p.committed_leader_epoch
        )
        for topic in answer.topics
        for p in topic.partitions
    }
    found = {} if description is None else getattr(description, "pending_offsets", UNSET) or {}
    pending = {TopicPartition(topic, n): offset for topic, of in found.items() for n, offset in of.items()}
    return GroupOffsets(committed, pending, answer.error_code)
