"""The deadlines of a group and their order.

The order of ties is decided here, because Kafka leaves it open: the earlier deadline; then heartbeat before
join before sync before retention; then the order in which members joined, members before pending ids.
"""

from enum import IntEnum

from msgspec import Struct

from state.kafka.group import Group


class TimerKind(IntEnum):
    """Kafka's three kinds of timers and the pass that expires offsets, in the order that decides ties."""

    HEARTBEAT = 0
    JOIN = 1
    SYNC = 2
    RETENTION = 3


class DeadlineReached(Struct, frozen=True):
    """An event of the core: a deadline is due. `member_id` is "" for a timer of the group."""

    deadline_ms: int
    kind: TimerKind
    member_id: str = ""

    def __str__(self) -> str:
        of = f" of {self.member_id}" if self.member_id else ""
        return f"{self.kind.name.lower()} deadline{of} at {self.deadline_ms}"


def next_deadline_ms(group: Group) -> int | None:
    """Return the time of the earliest deadline in ms, None if no deadline is armed. A quarantined group has
    no deadlines.
    """
    if group.quarantined is not None:
        return None
    times_ms = [at_ms for m in group.members.values() if (at_ms := m.heartbeat_deadline_ms) is not None]
    times_ms += [pending.heartbeat_deadline_ms for pending in group.pending_members.values()]
    if group.join_phase is not None:
        times_ms.append(group.join_phase.deadline_ms)
    if group.sync_deadline_ms is not None:
        times_ms.append(group.sync_deadline_ms)
    if group.retention_deadline_ms is not None:
        times_ms.append(group.retention_deadline_ms)
    return min(times_ms, default=None)


def due_deadlines(group: Group, until_ms: int) -> list[DeadlineReached]:
    """Return the deadlines up to `until_ms` in their order."""
    if group.quarantined is not None:
        return []
    due = [
        DeadlineReached(at_ms, TimerKind.HEARTBEAT, member.member_id)
        for member in group.members.values()
        if (at_ms := member.heartbeat_deadline_ms) is not None and at_ms <= until_ms
    ]
    due += [
        DeadlineReached(at_ms, TimerKind.HEARTBEAT, member_id)
        for member_id, pending in group.pending_members.items()
        if (at_ms := pending.heartbeat_deadline_ms) <= until_ms
    ]
    due += [DeadlineReached(at_ms, kind) for at_ms, kind in _group_timers(group) if at_ms <= until_ms]
    return sorted(due, key=lambda d: (d.deadline_ms, d.kind))


def is_armed(group: Group, deadline: DeadlineReached) -> bool:
    """Whether the deadline is still armed, at the same time."""
    if group.quarantined is not None:
        return False
    if deadline.kind is not TimerKind.HEARTBEAT:
        return (deadline.deadline_ms, deadline.kind) in _group_timers(group)
    member_id = deadline.member_id
    subject = group.members.get(member_id) or group.pending_members.get(member_id)
    return subject is not None and subject.heartbeat_deadline_ms == deadline.deadline_ms


def _group_timers(group: Group) -> list[tuple[int, TimerKind]]:
    """The armed timers of the group itself, in the order that decides ties."""
    join_ms = None if group.join_phase is None else group.join_phase.deadline_ms
    timers = (
        (join_ms, TimerKind.JOIN),
        (group.sync_deadline_ms, TimerKind.SYNC),
        (group.retention_deadline_ms, TimerKind.RETENTION),
    )
    return [(at_ms, kind) for at_ms, kind in timers if at_ms is not None]
