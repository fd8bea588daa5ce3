"""The armed timers of a share group: the sessions of its members, that of the requests that wait, and that of
the tasks for the share coordinator.
"""

from collections.abc import Iterator

from state.kafka.share_group import ShareGroup
from state.kafka.timers import Timer, TimerKind


def armed(group: ShareGroup) -> Iterator[Timer]:
    """The timers of the group and all members."""
    for member_id in group.members:
        yield from armed_of(group, TimerKind.HEARTBEAT, member_id)
    yield from armed_of(group, TimerKind.PARKED, "")
    yield from armed_of(group, TimerKind.TASK, "")


def armed_of(group: ShareGroup, kind: TimerKind, member_id: str) -> Iterator[Timer]:
    """The timer of this kind of one member, or of the group, if it is armed."""
    if kind is TimerKind.PARKED:
        if group.parked:
            yield min(parked.deadline_ms for parked in group.parked), kind, ""
        return
    if kind is TimerKind.TASK:
        if group.overdue_deadline_ms is not None:
            yield group.overdue_deadline_ms, kind, ""
        return
    member = group.members.get(member_id)
    if member is not None and member.session_deadline_ms is not None:
        yield member.session_deadline_ms, TimerKind.HEARTBEAT, member_id
