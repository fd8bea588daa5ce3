"""The armed timers of a group, in the order that decides ties (`state.kafka.timers`)."""

from collections.abc import Iterator

from state.kafka.classic_group import ClassicGroup
from state.kafka.timers import Timer, TimerKind


def armed(group: ClassicGroup) -> Iterator[Timer]:
    """The timers of members, of pending ids, and of the rebalance."""
    for member in group.members.values():
        if (at_ms := member.heartbeat_deadline_ms) is not None:
            yield at_ms, TimerKind.HEARTBEAT, member.member_id
    for member_id, pending in group.pending_members.items():
        yield pending.heartbeat_deadline_ms, TimerKind.HEARTBEAT, member_id
    yield from _of_rebalance(group)


def armed_of(group: ClassicGroup, kind: TimerKind, member_id: str) -> Iterator[Timer]:
    """The timer of the member or pending id, or those of the rebalance, as the kind tells."""
    if kind is not TimerKind.HEARTBEAT:
        yield from _of_rebalance(group)
        return
    subject = group.members.get(member_id) or group.pending_members.get(member_id)
    if subject is not None and (at_ms := subject.heartbeat_deadline_ms) is not None:
        yield at_ms, TimerKind.HEARTBEAT, member_id


def _of_rebalance(group: ClassicGroup) -> Iterator[Timer]:
    if group.join_phase is not None:
        yield group.join_phase.deadline_ms, TimerKind.JOIN, ""
    if group.sync_deadline_ms is not None:
        yield group.sync_deadline_ms, TimerKind.SYNC, ""
