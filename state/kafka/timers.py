"""The deadlines of a group and their order.

The order of ties is decided here, because Kafka leaves it open: the earlier deadline; then session before
rebalance before join before sync before retention; then, in a classic group, the order in which members
joined, members before pending ids, and in a consumer group the member id (row TM14).
"""

from collections.abc import Iterator
from enum import IntEnum

from msgspec import Struct

from state.kafka.any_group import KafkaGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember


class TimerKind(IntEnum):
    """The kinds of timers, in the order that decides ties. HEARTBEAT is a member's session timeout.

    In a classic group, JOIN and SYNC are timers of the rebalance. In a consumer group they are timers of a
    classic member, and REBALANCE is that of a member that has to revoke partitions.
    """

    HEARTBEAT = 0
    JOIN = 1
    SYNC = 2
    RETENTION = 3
    REBALANCE = 4


_ORDER = (TimerKind.HEARTBEAT, TimerKind.REBALANCE, TimerKind.JOIN, TimerKind.SYNC, TimerKind.RETENTION)
_RANK = {kind: rank for rank, kind in enumerate(_ORDER)}


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


def next_deadline_ms(group: KafkaGroup) -> int | None:
    """Return the time of the earliest deadline in ms, None if no deadline is armed. A quarantined group has
    no deadlines.
    """
    return min((at_ms for at_ms, _, _ in _armed(group)), default=None)


def due_deadlines(group: KafkaGroup, until_ms: int) -> list[DeadlineReached]:
    """Return the deadlines up to `until_ms` in their order."""
    due = [DeadlineReached(*timer) for timer in _armed(group) if timer[0] <= until_ms]
    by_member = isinstance(group, ConsumerGroup)
    return sorted(due, key=lambda d: (d.deadline_ms, _RANK[d.kind], d.member_id if by_member else ""))


def is_armed(group: KafkaGroup, deadline: DeadlineReached) -> bool:
    """Whether the deadline is still armed, at the same time."""
    if group.quarantined is not None:
        return False
    return _armed_at_ms(group, deadline.kind, deadline.member_id) == deadline.deadline_ms


def _armed_at_ms(group: KafkaGroup, kind: TimerKind, member_id: str) -> int | None:
    """Return the time of one timer in ms, without a visit to all members. None: it is not armed."""
    if kind is TimerKind.RETENTION:
        return group.retention_deadline_ms
    timers: Iterator[Timer]
    if not isinstance(group, ClassicGroup):
        member = group.members.get(member_id)
        timers = iter(()) if member is None else _armed_by_member(member)
    elif kind is TimerKind.HEARTBEAT:
        timers = _armed_by_classic(group, member_id)
    else:
        timers = _armed_in_classic_rebalance(group)
    return next((at_ms for at_ms, of_kind, _ in timers if of_kind is kind), None)


def _armed(group: KafkaGroup) -> Iterator[Timer]:
    """The armed timers, of a classic group in the order that decides ties."""
    if group.quarantined is not None:
        return
    if isinstance(group, ClassicGroup):
        yield from _armed_in_classic(group)
    else:
        yield from _armed_in_consumer(group)
    if group.retention_deadline_ms is not None:
        yield group.retention_deadline_ms, TimerKind.RETENTION, ""


def _armed_in_classic(group: ClassicGroup) -> Iterator[Timer]:
    for member in group.members.values():
        if (at_ms := member.heartbeat_deadline_ms) is not None:
            yield at_ms, TimerKind.HEARTBEAT, member.member_id
    for member_id, pending in group.pending_members.items():
        yield pending.heartbeat_deadline_ms, TimerKind.HEARTBEAT, member_id
    yield from _armed_in_classic_rebalance(group)


def _armed_by_classic(group: ClassicGroup, member_id: str) -> Iterator[Timer]:
    subject = group.members.get(member_id) or group.pending_members.get(member_id)
    if subject is not None and (at_ms := subject.heartbeat_deadline_ms) is not None:
        yield at_ms, TimerKind.HEARTBEAT, member_id


def _armed_in_classic_rebalance(group: ClassicGroup) -> Iterator[Timer]:
    if group.join_phase is not None:
        yield group.join_phase.deadline_ms, TimerKind.JOIN, ""
    if group.sync_deadline_ms is not None:
        yield group.sync_deadline_ms, TimerKind.SYNC, ""


def _armed_in_consumer(group: ConsumerGroup) -> Iterator[Timer]:
    for member in group.members.values():
        yield from _armed_by_member(member)


def _armed_by_member(member: ConsumerMember) -> Iterator[Timer]:
    if (at_ms := member.session_deadline_ms) is not None:
        yield at_ms, TimerKind.HEARTBEAT, member.member_id
    if (at_ms := member.rebalance_deadline_ms) is not None:
        yield at_ms, TimerKind.REBALANCE, member.member_id
    classic = member.classic
    if classic is not None and classic.join_deadline_ms is not None:
        yield classic.join_deadline_ms, TimerKind.JOIN, member.member_id
    if classic is not None and classic.sync_deadline_ms is not None:
        yield classic.sync_deadline_ms, TimerKind.SYNC, member.member_id
