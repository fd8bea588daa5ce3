"""Conversion of the coordinator's responses about a group to the group's snapshot."""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMemberDescription,
    DescribeGroupResponse,
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
)
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE, TopicPartition
from kafka_why.groups.gather import snapshot_without_times
from kafka_why.groups.list_groups import GroupOffsets, OffsetWithEpoch

AnyDescription = DescribeGroupResponse | ConsumerGroupDescribeResponse | ShareGroupDescribeResponse
_CLASSIC_MEMBER = 0


def snapshot_of(answer: AnyDescription) -> GroupSnapshot:
    """Return the group that an answer without an error describes. A group that does not exist is Dead.

    Times, timeouts and other fields that no answer has are empty.
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
    is_share = isinstance(answer, ShareGroupDescribeResponse)
    return snapshot_without_times(
        answer.group_id,
        answer.group_state,
        generation=answer.group_epoch,
        protocol_type="share" if is_share else PROTOCOL_TYPE,
        members=[_member_with_epochs(member) for member in answer.members],
        consumer=ConsumerGroupSnapshot(
            assignment_epoch=answer.assignment_epoch,
            assignor_name=answer.assignor_name,
            topics={},
            resolved_regexes={},
            unknown_topics=[],
            unresolved_regexes=[],
            share=ShareSnapshot({}, {}, {}) if is_share else UNSET,
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
    """Return the member. A response about a share group has no target assignments, so the target of its
    members is their present assignment.
    """
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


def _by_name(assignment: Iterable[AssignedTopicPartitions]) -> NamedPartitions:
    return {topic.topic_name: topic.partitions for topic in assignment}


def offsets_of(answer: OffsetFetchResponse, description: AnyDescription | None) -> GroupOffsets:
    """Return the offsets of a group. `description`, if given, has the pending offsets."""
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
