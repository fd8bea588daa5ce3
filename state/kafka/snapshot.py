"""The view of a Kafka group on the groups topic, for listing and describing groups."""

from msgspec import Struct

from state.kafka.group import Group, GroupState
from state.messages import RECORD_VERSION


class MemberSnapshot(Struct, frozen=True):
    """One member. As in Kafka, `metadata` is that of the selected protocol, b"" unless the group is
    Stable.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    assignment: bytes
    rejoined: bool


class GroupSnapshot(Struct, frozen=True):
    """The group after history entry number `seq` of this incarnation.

    `truncated` is True if the members' metadata and assignments were omitted because the record would be too
    large.
    """

    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    state: str
    state_timestamp_ms: int
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str | None
    members: list[MemberSnapshot]
    pending_members: list[str]
    last_rebalance_at_ms: int | None
    last_rebalance_reason: str
    quarantined: str | None
    subscribed_topics: list[str] | None = None
    truncated: bool = False
    version: int = RECORD_VERSION


def snapshot(group: Group) -> GroupSnapshot:
    """Return a copy of the group for readers."""
    stable = group.state is GroupState.STABLE
    members = [
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
    return GroupSnapshot(
        group_id=group.group_id,
        incarnation=group.incarnation,
        seq=group.seq,
        at_ms=group.clock_ms,
        state=group.state.value,
        state_timestamp_ms=group.state_timestamp_ms,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name if stable else None,
        leader_id=group.leader_id,
        members=members,
        pending_members=list(group.pending_members),
        last_rebalance_at_ms=group.last_rebalance_at_ms,
        last_rebalance_reason=group.last_rebalance_reason,
        quarantined=group.quarantined,
        subscribed_topics=group.subscribed_topics,
    )
