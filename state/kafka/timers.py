"""The deadlines of a group and their order.

The order of ties is decided here, because Kafka leaves it open: the earlier deadline; then heartbeat before
join before sync before retention; then the order in which members joined, members before pending ids.
"""

from collections.abc import Iterator
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


def deadlines(group: Group) -> Iterator[DeadlineReached]:
    """Return every armed deadline. A quarantined group has none."""
    if group.quarantined is not None:
        return
    for member in group.members.values():
        if member.heartbeat_deadline_ms is not None:
            yield DeadlineReached(member.heartbeat_deadline_ms, TimerKind.HEARTBEAT, member.member_id)
    for member_id, pending in group.pending_members.items():
        yield DeadlineReached(pending.heartbeat_deadline_ms, TimerKind.HEARTBEAT, member_id)
    if group.join_phase is not None:
        yield DeadlineReached(group.join_phase.deadline_ms, TimerKind.JOIN)
    if group.sync_deadline_ms is not None:
        yield DeadlineReached(group.sync_deadline_ms, TimerKind.SYNC)
    if group.retention_deadline_ms is not None:
        yield DeadlineReached(group.retention_deadline_ms, TimerKind.RETENTION)


def next_deadline(group: Group) -> DeadlineReached | None:
    """Return the earliest deadline, None if no deadline is armed."""
    return min(deadlines(group), key=lambda d: (d.deadline_ms, d.kind), default=None)
