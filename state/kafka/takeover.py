"""Time stood still for a group: no coordinator ran (row F5), or the group was quarantined (row F4)."""

from state.inputs import Outage
from state.kafka.context import StepContext
from state.kafka.history import EntryType


def take_over(context: StepContext, outage: Outage) -> None:
    """Nobody could be heard of meanwhile: sessions begin anew, every other timer has as long to go as before.

    So nobody expires for it, as in Kafka, where a new coordinator begins all sessions anew
    (GroupMetadataManager.onLoaded). Kafka also begins every round anew; here one goes on, see docs/rules.md.
    """
    group = context.group
    if group.quarantined is not None or not (group.members or group.pending_members):
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
    """Time stood still for `by_ms`, up to now: sessions begin anew, and the deadlines of rounds, of pending
    ids and of new members' first wait have as long to go as before. A retention pass keeps its time.
    """
    group = context.group
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
