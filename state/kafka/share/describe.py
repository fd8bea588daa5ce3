"""ShareGroupDescribe. Row SD3.

Source: GroupMetadataManager.shareGroupDescribe, ShareGroup.asDescribedGroup,
ShareGroupMember.asShareGroupDescribeMember.
"""

from assignors.kafka import simple
from state.kafka.context import StepContext
from state.kafka.modern.answered import described_partitions
from state.kafka.requests import ReplyTo
from state.kafka.responses import ShareGroupDescribeResponse, ShareGroupMemberDescription
from state.kafka.share_group import ShareGroup
from state.kafka.share_requests import ShareGroupDescribe


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
