"""The armed timers of a group. All of them are those of members."""

from collections.abc import Iterator

from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.timers import Timer, TimerKind


def armed(group: ConsumerGroup) -> Iterator[Timer]:
    """The timers of all members."""
    for member in group.members.values():
        yield from _of_member(member)


def armed_of(group: ConsumerGroup, kind: TimerKind, member_id: str) -> Iterator[Timer]:
    """The timers of one member, if it is a member."""
    member = group.members.get(member_id)
    return iter(()) if member is None else _of_member(member)


def _of_member(member: ConsumerMember) -> Iterator[Timer]:
    if (at_ms := member.session_deadline_ms) is not None:
        yield at_ms, TimerKind.HEARTBEAT, member.member_id
    if (at_ms := member.rebalance_deadline_ms) is not None:
        yield at_ms, TimerKind.REBALANCE, member.member_id
    classic = member.classic
    if classic is not None and classic.join_deadline_ms is not None:
        yield classic.join_deadline_ms, TimerKind.JOIN, member.member_id
    if classic is not None and classic.sync_deadline_ms is not None:
        yield classic.sync_deadline_ms, TimerKind.SYNC, member.member_id
