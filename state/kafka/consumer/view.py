"""The view of a group on the groups topic."""

from msgspec import UNSET

from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    Partitions,
    named,
)
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.view_fields import common_fields, topic_snapshots


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
