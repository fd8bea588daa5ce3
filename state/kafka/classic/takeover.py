"""Deadlines and parked requests when time stands still: in an outage (row F5), in a quarantine (row F4)."""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.responses import JoinGroupResponse, SyncGroupResponse
from state.inputs import Outage
from state.kafka.classic.rebalance import EXTENSION_AT_LEAST_MS
from state.kafka.classic.session import arm_session
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import RuleId, StepContext


def take_over(context: StepContext, outage: Outage) -> None:
    """Restart all sessions and shift all other timers by the length of the outage, because no heartbeat was
    handled in it.

    No member expires because of the outage. In Kafka, too, a new coordinator restarts all sessions
    (GroupMetadataManager.onLoaded). Kafka also restarts every rebalance; here a rebalance continues, see
    docs/rules.md.
    """
    group = context.group_of(ClassicGroup)
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
    group = context.group_of(ClassicGroup)
    for member in group.members.values():
        if member.is_new and member.heartbeat_deadline_ms is not None:
            member.heartbeat_deadline_ms = context.deadline_at(member.heartbeat_deadline_ms + by_ms)
        elif member.heartbeat_deadline_ms is not None or not member.waits():
            arm_session(context, member)
    for pending in group.pending_members.values():
        pending.heartbeat_deadline_ms = context.deadline_at(pending.heartbeat_deadline_ms + by_ms)
    if group.join_phase is not None:
        group.join_phase.deadline_ms = context.deadline_at(group.join_phase.deadline_ms + by_ms)
    if group.sync_deadline_ms is not None:
        group.sync_deadline_ms = context.deadline_at(group.sync_deadline_ms + by_ms)


def answer_parked(context: StepContext, row: RuleId) -> None:
    """Answer every parked request with an error, because the group's deadlines stop."""
    group = context.group_of(ClassicGroup)
    for member in group.members.values():
        if member.parked_join is not None:
            context.reply(member.parked_join, JoinGroupResponse, row, ErrorCode.UNKNOWN_SERVER_ERROR)
        if member.parked_sync is not None:
            context.reply(member.parked_sync, SyncGroupResponse, row, ErrorCode.UNKNOWN_SERVER_ERROR)
        group.set_parked_join(member, None)
        member.parked_sync = None
        member.is_new = False


def release(context: StepContext) -> int | None:
    """Row F4: renew the deadline of a rebalance that is due at the release. Return the end of the join phase
    in ms, if there is one.

    That deadline is the one whose handling raised. It gets its full time again, because waiting members were
    answered with an error and have to come back.
    """
    group = context.group_of(ClassicGroup)
    phase = group.join_phase
    if phase is not None and phase.deadline_ms <= context.now_ms:
        phase.deadline_ms = context.deadline(max(phase.delay_ms, EXTENSION_AT_LEAST_MS))
    if group.sync_deadline_ms is not None and group.sync_deadline_ms <= context.now_ms:
        group.sync_deadline_ms = context.deadline(max(group.rebalance_timeout_ms(), EXTENSION_AT_LEAST_MS))
    return None if phase is None else phase.deadline_ms
