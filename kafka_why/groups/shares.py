"""Share groups of this coordinator, described."""

from msgspec import structs

from kafka_why.contract.kafka.responses import (
    ConsumerGroupMemberDescription,
    ShareGroupDescribeResponse,
    ShareGroupMemberDescription,
)
from kafka_why.groups.described import SHARE, EpochsDescription


def described(answer: ShareGroupDescribeResponse) -> EpochsDescription:
    """Return the description of a group that is a share group. Kafka's has no target assignments, so a member
    that is not at the group's epoch has what it has.
    """
    fields = {**structs.asdict(answer), "members": [_member(member) for member in answer.members]}
    return EpochsDescription(group_type=SHARE, sources={}, **fields)


def _member(member: ShareGroupMemberDescription) -> ConsumerGroupMemberDescription:
    """The member in the fields of one of the consumer protocol."""
    return ConsumerGroupMemberDescription(
        instance_id=None,
        subscribed_topic_regex="",
        target_assignment=member.assignment,
        member_type=1,
        **structs.asdict(member),
    )
