"""A group of the consumer protocol as it was at a moment: its epochs, and what each member has, gives up and
waits for.
"""

from collections.abc import Mapping, Sequence

from kafka_why.contract.kafka.snapshot import NamedPartitions, named
from kafka_why.contract.kafka.states import LEAVE_GROUP_STATIC_MEMBER_EPOCH, MemberState
from kafka_why.escaping import VisibleText
from kafka_why.groups.tables import Column, render_table
from kafka_why.partition_text import number_list
from kafka_why.why.names import Names
from kafka_why.why.wording import count
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.timers import TimerKind

WHATS: Mapping[TimerKind, str] = {
    TimerKind.HEARTBEAT: "the session of {} ends",
    TimerKind.REBALANCE: "{} has to have given up its partitions",
    TimerKind.JOIN: "{}, on the classic protocol, has to have joined again",
    TimerKind.SYNC: "{}, on the classic protocol, has to have synced",
    TimerKind.RETENTION: "offsets are checked for expiry",
}
"""What happens at a deadline of a group of the consumer protocol."""

_STATES = {
    MemberState.STABLE: "has its target",
    MemberState.UNREVOKED_PARTITIONS: "has to give up partitions",
    MemberState.UNRELEASED_PARTITIONS: "waits for partitions",
}


def headline(group: ConsumerGroup) -> str:
    """`epoch 7, target assignment of epoch 6, 3 members, 1 of them classic, assignor uniform`."""
    parts = [f"epoch {group.group_epoch}"]
    if group.assignment_epoch != group.group_epoch:
        parts.append(f"target assignment of epoch {group.assignment_epoch}")
    parts.append(count(len(group.members), "member"))
    if classic := sum(member.classic is not None for member in group.members.values()):
        parts.append(f"{classic} of them on the classic protocol")
    if group.target_assignor:
        parts.append(f"assignor {group.target_assignor}")
    return ", ".join(parts)


def consumer_member_table(group: ConsumerGroup, names: Names) -> VisibleText:
    """Format the members with their epochs, what they hold, and what is missing to their targets."""
    topics = group.names_by_id()
    columns = [Column("MEMBER"), Column("HOST", 10), Column("EPOCH", 5), Column("STATE", 10)]
    columns += [Column("HOLDS"), Column("GIVES-UP"), Column("WAITS-FOR", 0)]
    rows = [
        [
            names.of(member.member_id),
            member.client_host or None,
            member.member_epoch,
            _state(group, member),
            partitions_text(named(member.assigned, topics)),
            partitions_text(named(member.pending_revocation, topics)),
            partitions_text(_awaited(group, member, topics)),
        ]
        for member in group.members.values()
    ]
    return render_table(columns, rows)


def _state(group: ConsumerGroup, member: ConsumerMember) -> str:
    if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return "left for a while"
    if member.state is MemberState.STABLE and member.member_epoch < group.assignment_epoch:
        return "is not at its target yet"
    return _STATES[member.state]


def _awaited(group: ConsumerGroup, member: ConsumerMember, topics: dict[bytes, str]) -> NamedPartitions:
    """The partitions of the member's target that it does not have."""
    target = group.target.get(member.member_id, {})
    missing = {
        topic_id: [n for n in numbers if n not in member.assigned.get(topic_id, {})]
        for topic_id, numbers in target.items()
    }
    return named({topic_id: numbers for topic_id, numbers in missing.items() if numbers}, topics)


def partitions_text(partitions: Mapping[str, Sequence[int]]) -> str | None:
    """Return `orders 0-3 7; prices 1`, None without partitions."""
    return "; ".join(f"{topic} {number_list(numbers)}" for topic, numbers in partitions.items()) or None
