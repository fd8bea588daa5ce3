"""ShareGroupDescribe, and DescribeShareGroupOffsets as far as the coordinator knows. Rows SD3, SO3.

Source: GroupMetadataManager.shareGroupDescribe, ShareGroup.asDescribedGroup,
ShareGroupMember.asShareGroupDescribeMember, GroupCoordinatorService.describeShareGroupAllOffsets.
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
from state.kafka.context import StepContext
from state.kafka.modern.answered import described_partitions
from state.kafka.share_group import ShareGroup


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
