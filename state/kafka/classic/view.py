"""The view of a group on the groups topic."""

from msgspec import UNSET

from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.kafka.states import GroupState
from state.kafka.classic_group import ClassicGroup
from state.kafka.view_fields import common_fields


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
