"""Share groups of this coordinator, described."""

from insight.admin.described import SHARE, EpochsDescription
from state.kafka.responses import (
    ConsumerGroupMemberDescription,
    ShareGroupDescribeResponse,
    ShareGroupMemberDescription,
)


def described(answer: ShareGroupDescribeResponse) -> EpochsDescription:
    """Return the description of a group that is a share group. Kafka's has no target assignments, so a member
    that is not at the group's epoch has what it has.
    """
    return EpochsDescription(
        group_type=SHARE,
        sources={},
        group_id=answer.group_id,
        correlation_id=answer.correlation_id,
        request=answer.request,
        error_code=answer.error_code,
        group_state=answer.group_state,
        group_epoch=answer.group_epoch,
        assignment_epoch=answer.assignment_epoch,
        assignor_name=answer.assignor_name,
        members=[_member(member) for member in answer.members],
    )


def _member(member: ShareGroupMemberDescription) -> ConsumerGroupMemberDescription:
    return ConsumerGroupMemberDescription(
        member_id=member.member_id,
        instance_id=None,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex="",
        assignment=member.assignment,
        target_assignment=member.assignment,
        member_type=1,
    )
