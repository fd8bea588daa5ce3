"""A group as readers see it: its view on the groups topic, and ConsumerGroupDescribe (rows AD3 to AD5)."""

from collections.abc import Mapping

from msgspec import UNSET

from kafka_why.contract.kafka.requests import ConsumerGroupDescribe, ReplyTo
from kafka_why.contract.kafka.responses import ConsumerGroupDescribeResponse, ConsumerGroupMemberDescription
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    Partitions,
    named,
)
from state.kafka.consumer.target import preferred_assignor
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import StepContext
from state.kafka.modern.responses import described_partitions
from state.kafka.offsets.pending import pending_offsets
from state.kafka.protocol import common_fields, topic_snapshots

# ConsumerGroupDescribe. Rows AD3 to AD5.
#
# Source: GroupMetadataManager.consumerGroupDescribe, ConsumerGroup.asDescribedGroup,
# ConsumerGroupMember.asConsumerGroupDescribeMember.


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
        members=[_described_member(group, member, names) for member in group.members.values()],
        pending_offsets=pending_offsets(group) if group.pending else UNSET,
    )


def _described_member(
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


def view_of(group: ConsumerGroup) -> GroupSnapshot:
    """Return a copy of the group for readers."""
    return GroupSnapshot(
        **common_fields(group),
        protocol_name=None,
        leader_id=None,
        members=_members(group),
        pending_members=[],
        subscribed_topics=sorted(group.subscribed()),
        consumer=_details(group),
    )


def _members(group: ConsumerGroup) -> list[MemberSnapshot]:
    names = group.names_by_id()
    return [
        MemberSnapshot(
            member_id=m.member_id,
            group_instance_id=m.instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            session_timeout_ms=0 if m.classic is None else m.classic.session_timeout_ms,
            rebalance_timeout_ms=m.rebalance_timeout_ms,
            metadata=b"",
            assignment=b"",
            rejoined=False,
            consumer=_member(m, group.target.get(m.member_id, {}), names),
        )
        for m in group.members.values()
    ]


def _member(member: ConsumerMember, target: Partitions, names: dict[bytes, str]) -> ConsumerMemberSnapshot:
    return ConsumerMemberSnapshot(
        member_epoch=member.member_epoch,
        previous_epoch=member.previous_epoch,
        state=member.state.value,
        rack_id=member.rack_id,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        server_assignor=member.server_assignor,
        assigned=named(member.assigned, names),
        revoking=named(member.pending_revocation, names),
        target=named(target, names),
        member_type="consumer" if member.classic is None else "classic",
    )


def _details(group: ConsumerGroup) -> ConsumerGroupSnapshot:
    return ConsumerGroupSnapshot(
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.target_assignor,
        topics=topic_snapshots(group.topics),
        resolved_regexes={p: r.topics for p, r in sorted(group.resolved_regexes.items())},
        unknown_topics=group.unknown_topics(),
        unresolved_regexes=group.unresolved_regexes(),
        checked_regexes={p: c.seen for p, c in sorted(group.checked_regexes.items())} or UNSET,
    )
