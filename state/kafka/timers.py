"""The deadlines of a group and their order.

The order of ties is decided here, because Kafka leaves it open: the earlier deadline; then session before
rebalance before join before sync before parked before task before retention; then, in a classic group, the
order in which members joined, members before pending ids, and in a consumer group the member id (row TM14).
"""

from enum import IntEnum

from msgspec import Struct


class TimerKind(IntEnum):
    """The kinds of timers, in the order that decides ties. HEARTBEAT is a member's session timeout.

    In a classic group, JOIN and SYNC are timers of the rebalance. In a consumer group they are timers of a
    classic member, and REBALANCE is that of a member that has to revoke partitions. In a share group, PARKED
    is that of requests that wait for the share coordinator, and TASK that of the tasks for it.
    """

    HEARTBEAT = 0
    JOIN = 1
    SYNC = 2
    RETENTION = 3
    REBALANCE = 4
    PARKED = 5
    TASK = 6


_ORDER = (
    TimerKind.HEARTBEAT,
    TimerKind.REBALANCE,
    TimerKind.JOIN,
    TimerKind.SYNC,
    TimerKind.PARKED,
    TimerKind.TASK,
    TimerKind.RETENTION,
)
RANK = {kind: rank for rank, kind in enumerate(_ORDER)}


class DeadlineReached(Struct, frozen=True):
    """An event of the core: a deadline is due. `member_id` is "" for a timer of the group."""

    deadline_ms: int
    kind: TimerKind
    member_id: str = ""

    def __str__(self) -> str:
        of = f" of {self.member_id}" if self.member_id else ""
        return f"{self.kind.name.lower()} deadline{of} at {self.deadline_ms}"


Timer = tuple[int, TimerKind, str]
"""The time of a deadline in ms, its kind, and the id of its member, "" for a timer of the group."""
