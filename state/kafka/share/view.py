"""A share group as readers see it: its view on the groups topic, ShareGroupDescribe and
DescribeShareGroupOffsets.
"""

from uuid import UUID

from assignors.kafka import simple
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import (
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeResponse,
    ShareGroupMemberDescription,
    ShareTopicPartitions,
)
from kafka_why.contract.kafka.share_requests import DescribeShareGroupOffsets, ShareGroupDescribe
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    ShareSnapshot,
    ShareTask,
    ShareTaskPartitions,
    named,
)
from kafka_why.contract.kafka.states import MemberState
from state.kafka.context import StepContext
from state.kafka.modern.responses import described_partitions
from state.kafka.protocol import common_fields, topic_snapshots
from state.kafka.share_group import Asked, ShareGroup, ShareMember

# ShareGroupDescribe, and DescribeShareGroupOffsets as far as the coordinator knows. Rows SD3, SO3.
#
# Source: GroupMetadataManager.shareGroupDescribe, ShareGroup.asDescribedGroup,
# ShareGroupMember.asShareGroupDescribeMember, GroupCoordinatorService.describeShareGroupAllOffsets.


def describe(context: StepContext, _: ShareGroupDescribe, reply_to: ReplyTo) -> None:
    """Answer with the group, and its members by id with what they have, of topics that exist."""
    group = context.group_of(ShareGroup)
    names = group.names_by_id()
    context.reply(
        reply_to,
        ShareGroupDescribeResponse,
        context.rule("SD3"),
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=simple.NAME,
        members=[
            ShareGroupMemberDescription(
                member_id=member.member_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.subscribed_topic_names,
                assignment=described_partitions(member.assigned, names),
            )
            for _, member in sorted(group.members.items())
        ],
    )


def describe_offsets(context: StepContext, _: DescribeShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Answer with the partitions that are initialized, of topics that exist, by name."""
    group = context.group_of(ShareGroup)
    names = group.names_by_id()
    found = sorted((names[id_], id_) for id_ in group.initialized if id_ in names)
    context.reply(
        reply_to,
        DescribeShareGroupOffsetsResponse,
        context.rule("SO3"),
        topics=[
            ShareTopicPartitions(name, UUID(bytes=id_), group.initialized[id_].partitions)
            for name, id_ in found
        ],
    )


def view_of(group: ShareGroup) -> GroupSnapshot:
    """Return a copy of the group for readers."""
    names = group.names_by_id()
    return GroupSnapshot(
        **common_fields(group),
        protocol_name=None,
        leader_id=None,
        members=[_member(group, member, names) for member in group.members.values()],
        pending_members=[],
        subscribed_topics=sorted(group.subscribed()),
        consumer=ConsumerGroupSnapshot(
            assignment_epoch=group.assignment_epoch,
            assignor_name=simple.NAME,
            topics=topic_snapshots(group.topics),
            resolved_regexes={},
            unknown_topics=group.unknown_topics(),
            unresolved_regexes=[],
            share=share_snapshot(group),
        ),
    )


def share_snapshot(group: ShareGroup) -> ShareSnapshot:
    """Return how far the group's partitions are, with the open tasks."""
    return ShareSnapshot(
        initializing={topic.name: sorted(topic.partitions) for topic in group.initializing.values()},
        initialized={topic.name: topic.partitions for topic in group.initialized.values()},
        deleting={topic.name: sorted(topic.partitions) for topic in group.deleting.values()},
        tasks=open_tasks(group),
    )


def _member(group: ShareGroup, member: ShareMember, names: dict[bytes, str]) -> MemberSnapshot:
    return MemberSnapshot(
        member_id=member.member_id,
        group_instance_id=None,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=0,
        rebalance_timeout_ms=0,
        metadata=b"",
        assignment=b"",
        rejoined=False,
        consumer=ConsumerMemberSnapshot(
            member_epoch=member.member_epoch,
            previous_epoch=member.previous_epoch,
            state=MemberState.STABLE.value,
            rack_id=member.rack_id,
            subscribed_topic_names=member.subscribed_topic_names,
            subscribed_topic_regex="",
            server_assignor=None,
            assigned=named(member.assigned, names),
            revoking={},
            target=named(group.target.get(member.member_id, {}), names),
            member_type=group.type_name,
        ),
    )


def open_tasks(group: ShareGroup) -> list[ShareTask]:
    """Return the open tasks, the oldest first. A task has partitions of like requests together."""
    tasks: dict[str, ShareTask] = {}
    for topic_id, initializing in group.initializing.items():
        alike: dict[Asked, list[int]] = {}
        for number, asked in initializing.partitions.items():
            if asked.task:
                alike.setdefault(asked, []).append(number)
        for asked, numbers in alike.items():
            task = tasks.setdefault(asked.task, ShareTask(asked.task, "initialize", asked.at_ms, []))
            task.topics.append(
                ShareTaskPartitions(
                    str(UUID(bytes=topic_id)),
                    initializing.name,
                    sorted(numbers),
                    asked.state_epoch,
                    asked.start_offset,
                    asked.error_code,
                    asked.altered,
                )
            )
    for topic_id, deleting in group.deleting.items():
        numbers = sorted(number for number, code in deleting.partitions.items() if not code)
        if deleting.task and numbers:
            task = tasks.setdefault(deleting.task, ShareTask(deleting.task, "delete", deleting.at_ms, []))
            task.topics.append(ShareTaskPartitions(str(UUID(bytes=topic_id)), deleting.name, numbers))
    return sorted(tasks.values(), key=lambda task: (task.asked_at_ms, task.task))
