"""A group as readers see it: its view on the groups topic, and DescribeGroups (rows V2, V3).

Source: ClassicGroup.describe.
"""

from msgspec import UNSET

from kafka_why.contract.kafka.requests import DescribeGroup, ReplyTo
from kafka_why.contract.kafka.responses import DescribedMember, DescribeGroupResponse
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.kafka.states import GroupState
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import StepContext
from state.kafka.offsets.pending import pending_offsets
from state.kafka.protocol import common_fields


def describe(context: StepContext, _: DescribeGroup, reply_to: ReplyTo) -> None:
    """Answer with the group as Kafka describes it. Protocol and members' metadata are shown only if the group
    is Stable.
    """
    group = context.group_of(ClassicGroup)
    stable = group.state is GroupState.STABLE
    row = context.rule("V2" if stable else "V3")
    members = [
        DescribedMember(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            member_metadata=m.metadata(group.protocol_name) if stable else b"",
            member_assignment=m.assignment,
        )
        for m in group.members.values()
    ]
    context.reply(
        reply_to,
        DescribeGroupResponse,
        row,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=members,
        pending_offsets=pending_offsets(group) if group.pending else UNSET,
    )


def view_of(group: ClassicGroup) -> GroupSnapshot:
    """Return a copy of the group for readers."""
    return GroupSnapshot(
        **common_fields(group),
        protocol_name=group.protocol_name if group.state is GroupState.STABLE else None,
        leader_id=group.leader_id,
        members=_members(group),
        pending_members=list(group.pending_members),
        subscribed_topics=group.subscribed_topics,
        wanted_topics=group.wanted_topics or UNSET,
    )


def _members(group: ClassicGroup) -> list[MemberSnapshot]:
    stable = group.state is GroupState.STABLE
    return [
        MemberSnapshot(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            session_timeout_ms=m.session_timeout_ms,
            rebalance_timeout_ms=m.rebalance_timeout_ms,
            metadata=m.metadata(group.protocol_name) if stable else b"",
            assignment=m.assignment,
            rejoined=m.parked_join is not None,
        )
        for m in group.members.values()
    ]
