"""ConsumerGroupDescribe. Rows AD3 to AD5.

Source: GroupMetadataManager.consumerGroupDescribe, ConsumerGroup.asDescribedGroup,
ConsumerGroupMember.asConsumerGroupDescribeMember.
"""

from collections.abc import Mapping

from msgspec import UNSET

from kafka_why.contract.kafka.requests import ConsumerGroupDescribe, ReplyTo
from kafka_why.contract.kafka.responses import ConsumerGroupDescribeResponse, ConsumerGroupMemberDescription
from state.kafka.consumer.target import preferred_assignor
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import StepContext
from state.kafka.modern.answered import described_partitions
from state.kafka.offsets.pending import pending_offsets

_CLASSIC, _CONSUMER = 0, 1  # the types of members (KIP-1099)


def describe(context: StepContext, _: ConsumerGroupDescribe, reply_to: ReplyTo) -> None:
    """Answer with the group, its members, and what they have and are to have."""
    group = context.group_of(ConsumerGroup)
    names = group.names_by_id()
    context.reply(
        reply_to,
        ConsumerGroupDescribeResponse,
        context.rule("AD3"),
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group, context.config),
        members=[_member(group, member, names) for member in group.members.values()],
        pending_offsets=pending_offsets(group) if group.pending else UNSET,
    )


def _member(
    group: ConsumerGroup, member: ConsumerMember, names: Mapping[bytes, str]
) -> ConsumerGroupMemberDescription:
    """Row AD4. The assignment is what the member answers for, until it has given up what it has to (AD5)."""
    held: dict[bytes, set[int]] = {}
    for partitions in (member.assigned, member.pending_revocation):
        for topic_id, numbers in partitions.items():
            held.setdefault(topic_id, set()).update(numbers)
    return ConsumerGroupMemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=described_partitions(held, names),
        target_assignment=described_partitions(group.target.get(member.member_id, {}), names),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )
