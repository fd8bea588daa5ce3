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
_CLASSIC_MEMBER = 0  # the `member_type` of a member of the classic protocol in ConsumerGroupDescribe


def snapshot_of(answer: AnyDescription) -> GroupSnapshot:
    """Return the group that an answer without an error describes. Fields that the answer lacks are empty.

    A group that does not exist has the state Dead.
    """
    if isinstance(answer, DescribeGroupResponse):
        return snapshot_without_times(
            answer.group_id,
            answer.group_state,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_data,
            members=[
                _member_snapshot(
                    m, m.group_instance_id, metadata=m.member_metadata, assignment=m.member_assignment
                )
                for m in answer.members
            ],
        )
    if isinstance(answer, StreamsGroupDescribeResponse):
        pending = answer.pending or {}
        members = [_streams_member_snapshot(m, pending.get(m.member_id, NO_TASKS)) for m in answer.members]
        return _snapshot_with_epochs(answer, STREAMS, members, streams=answer.streams)
    members_with_epochs = [_member_with_epochs_snapshot(member) for member in answer.members]
    if isinstance(answer, ShareGroupDescribeResponse):
        return _snapshot_with_epochs(answer, SHARE, members_with_epochs, share=ShareSnapshot({}, {}, {}))
    return _snapshot_with_epochs(answer, PROTOCOL_TYPE, members_with_epochs)


def _snapshot_with_epochs(
    answer: EpochsDescription, protocol_type: str, members: list[MemberSnapshot], **details: Any
) -> GroupSnapshot:
    """Return the snapshot of a group of the consumer, share or streams protocol."""
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


def _member_snapshot(member: Any, instance_id: str | None, **fields: Any) -> MemberSnapshot:
    """Return the snapshot of a member with these fields. The answers do not have its timeouts."""
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


def _member_with_epochs_snapshot(
    member: ConsumerGroupMemberDescription | ShareGroupMemberDescription,
) -> MemberSnapshot:
    """Return the snapshot of a member of a consumer or share group."""
    # The response about a share group has no targets, because each member's assignment is its target.
    instance_id, regex, target, member_type = None, "", member.assignment, "share"
    if isinstance(member, ConsumerGroupMemberDescription):
        instance_id, regex, target = (
            member.instance_id,
            member.subscribed_topic_regex,
            member.target_assignment,
        )
        member_type = "classic" if member.member_type == _CLASSIC_MEMBER else "consumer"
    return _member_snapshot(
        member,
        instance_id,
        consumer=ConsumerMemberSnapshot(
            member_epoch=member.member_epoch,
            previous_epoch=-1,
            state="",
            rack_id=member.rack_id,
            subscribed_topic_names=member.subscribed_topic_names,
            subscribed_topic_regex=regex,
            server_assignor=None,
            assigned=_by_name(member.assignment),
            revoking={},
            target=_by_name(target),
            member_type=member_type,
        ),
    )


def _streams_member_snapshot(
    member: StreamsGroupMemberDescription, pending: StreamsAssignment
) -> MemberSnapshot:
    """Return the snapshot of a member that still has to give up the `pending` tasks."""
    endpoint = member.user_endpoint
    return _member_snapshot(
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
    """Return the changelog lag of each task, if the member has reported its offset and its end offset."""
    ends = {(end.subtopology_id, end.partition): end.offset for end in member.task_end_offsets}
    return {
        f"{task.subtopology_id}_{task.partition}": max(
            ends[task.subtopology_id, task.partition] - task.offset, 0
        )
        for task in member.task_offsets
        if (task.subtopology_id, task.partition) in ends
    }


def _by_role(tasks: StreamsAssignment) -> NamedPartitions:
    """Return the tasks' partitions by role and subtopology, such as `standby 0`."""
    roles = ((ACTIVE, tasks.active_tasks), (STANDBY, tasks.standby_tasks), (WARM_UP, tasks.warmup_tasks))
    return {
        f"{role} {task_ids.subtopology_id}": task_ids.partitions
        for role, tasks_in_role in roles
        for task_ids in tasks_in_role
    }


def _by_name(assignment: Iterable[AssignedTopicPartitions]) -> NamedPartitions:
    return {topic.topic_name: topic.partitions for topic in assignment}


def offsets_of(answer: OffsetFetchResponse, description: AnyDescription | None) -> GroupOffsets:
    """Return the offsets of a group. `description` has the offsets that are pending in open transactions.

    If it is None, there are no pending offsets.
    """
    committed = {
        TopicPartition(topic.name, p.partition_index): OffsetWithEpoch(
            p.committed_offset, p.committed_leader_epoch
        )
        for topic in answer.topics
        for p in topic.partitions
    }
    pending_by_topic = {} if description is None else getattr(description, "pending_offsets", UNSET) or {}
    pending = {
        TopicPartition(topic, partition): offset
        for topic, offsets in pending_by_topic.items()
        for partition, offset in offsets.items()
    }
    return GroupOffsets(committed, pending, answer.error_code)
