"""Due deadlines: sessions (rows T), the join phase (rows I, C) and missing syncs (row Y)."""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.responses import JoinGroupResponse
from kafka_why.contract.kafka.states import GroupState
from state.kafka.classic import rebalance
from state.kafka.classic_group import ClassicGroup, Member
from state.kafka.context import StepContext
from state.kafka.timers import DeadlineReached, TimerKind


def deadline_reached(context: StepContext, deadline: DeadlineReached) -> None:
    """Handle a due deadline of a member or of a rebalance."""
    group = context.group_of(ClassicGroup)
    match deadline.kind:
        case TimerKind.HEARTBEAT if deadline.member_id in group.pending_members:
            _expire_pending_member(context, deadline.member_id)
        case TimerKind.HEARTBEAT:
            _expire_member_heartbeat(context, group.members[deadline.member_id])
        case TimerKind.JOIN:
            _join_phase_over(context)
        case TimerKind.SYNC:
            _expire_pending_sync(context)


def _expire_pending_member(context: StepContext, member_id: str) -> None:
    row = context.rule("T2")
    group = context.group_of(ClassicGroup)
    pending = group.pending_members[member_id]
    group.remove(member_id)
    context.record(
        row,
        EntryType.PENDING_MEMBER_REMOVED,
        "did not join with the id it was given within its session timeout",
        member_id=member_id,
        client_id=pending.client_id,
        client_host=pending.client_host,
    )
    _complete_if_all_joined(context)


def _expire_member_heartbeat(context: StepContext, member: Member) -> None:
    group = context.group_of(ClassicGroup)
    member.heartbeat_deadline_ms = None
    if member.is_new and member.parked_join is not None:
        row = context.rule("T3")
        context.reply(member.parked_join, JoinGroupResponse, row, ErrorCode.UNKNOWN_MEMBER_ID)
        reason = "its first JoinGroup waited for longer than a new member may"
    elif member.parked_join is not None or member.parked_sync is not None:
        # The member waits for the coordinator. Its session is armed again when the member is answered.
        context.rule("T4")
        return
    else:
        row = context.rule("T5")
        reason = f"no heartbeat within its session timeout of {member.session_timeout_ms} ms"
    group.remove(member.member_id)
    context.record_member(row, EntryType.MEMBER_REMOVED, member, reason)
    if group.state is GroupState.PREPARING_REBALANCE:
        _complete_if_all_joined(context)
    else:
        why = f"member {member.member_id} expired: {reason}"
        rebalance.prepare(context, row, why, member_id=member.member_id)


def _complete_if_all_joined(context: StepContext) -> None:
    """Complete the join phase if every member has joined.

    As in Kafka, this includes an initial rebalance: an expiry can end the initial delay early.
    """
    group = context.group_of(ClassicGroup)
    if group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined():
        rebalance.complete_join(context)


def _join_phase_over(context: StepContext) -> None:
    phase = context.group_of(ClassicGroup).join_phase
    assert phase is not None, "the join deadline stands in the join phase"
    if phase.initial_remaining_ms is None:
        rebalance.complete_join(context)
    else:
        rebalance.initial_delay_over(context, phase, phase.initial_remaining_ms)


def _expire_pending_sync(context: StepContext) -> None:
    """Row Y2: remove members that joined and did not sync within the rebalance timeout (KAFKA-12890)."""
    row = context.rule("Y2")
    group = context.group_of(ClassicGroup)
    group.sync_deadline_ms = None
    overdue = [m for m in group.members.values() if m.pending_sync]
    for member in overdue:
        group.remove(member.member_id)
        context.record_member(
            row, EntryType.MEMBER_REMOVED, member, "did not sync within the rebalance timeout"
        )
    names = ", ".join(m.member_id for m in overdue)
    rebalance.prepare(context, row, f"no SyncGroup within the rebalance timeout from {names}")
