"""Deadlines after time stood still: in an outage (row F5), or in a quarantine (row F4)."""

from state.inputs import Outage
from state.kafka.context import StepContext
from state.kafka.history import EntryType


def take_over(context: StepContext, outage: Outage) -> None:
    """Restart all sessions and shift all other timers by the length of the outage, because no heartbeat was
    handled in it.

    No member expires because of the outage. In Kafka, too, a new coordinator restarts all sessions
    (GroupMetadataManager.onLoaded). Kafka also restarts every rebalance; here a rebalance continues, see
    docs/rules.md.
    """
    group = context.classic
    if not (group.members or group.pending_members):
        return
    row = context.rule("F5")
    shift_deadlines(context, outage.length_ms)
    context.record(
        row,
        EntryType.TAKEN_OVER,
        f"no coordinator ran for {outage.length_ms} ms: sessions begin anew, rounds go on",
        members=list(group.members),
        deadline_ms=group.join_phase.deadline_ms if group.join_phase else None,
    )


def shift_deadlines(context: StepContext, by_ms: int) -> None:
    """Restart sessions, and shift other deadlines by `by_ms`, the time for which time stood still.

    The deadlines of rebalances, of pending ids and of new members' parked JoinGroups are shifted. The time of
    a retention pass is not.
    """
    group = context.classic
    for member in group.members.values():
        if member.is_new and member.heartbeat_deadline_ms is not None:
            member.heartbeat_deadline_ms = context.deadline_at(member.heartbeat_deadline_ms + by_ms)
        elif member.heartbeat_deadline_ms is not None or not member.waits():
            context.arm_session(member)
    for pending in group.pending_members.values():
        pending.heartbeat_deadline_ms = context.deadline_at(pending.heartbeat_deadline_ms + by_ms)
    if group.join_phase is not None:
        group.join_phase.deadline_ms = context.deadline_at(group.join_phase.deadline_ms + by_ms)
    if group.sync_deadline_ms is not None:
        group.sync_deadline_ms = context.deadline_at(group.sync_deadline_ms + by_ms)
