"""LeaveGroup: removal of a batch of members (KIP-345). Rows L2 to L8."""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.kafka.requests import LeaveGroup, LeavingMember, ReplyTo
from kafka_why.contract.kafka.responses import JoinGroupResponse, LeaveGroupResponse, LeftMember
from state.kafka.classic import rebalance
from state.kafka.classic_group import ClassicGroup, Member
from state.kafka.context import RuleId, StepContext, Verdict, deciding


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    """Remove each member of the batch, then rebalance once."""
    verdicts = [_leave_one(context, leaving) for leaving in request.members]
    left = [(leaving, error) for leaving, (_, error) in zip(request.members, verdicts, strict=True)]
    gone = [leaving for leaving, error in left if error is ErrorCode.NONE]
    if gone:
        _maybe_prepare_rebalance_or_complete_join(context, gone)
    members = [LeftMember(leaving.member_id, leaving.group_instance_id, error) for leaving, error in left]
    context.reply(reply_to, LeaveGroupResponse, deciding(verdicts), members=members)


def _leave_one(context: StepContext, leaving: LeavingMember) -> Verdict:
    group = context.group_of(ClassicGroup)
    if not leaving.member_id:
        instance_id = leaving.group_instance_id
        if instance_id is None or instance_id not in group.static_members:
            return context.rule("L3"), ErrorCode.UNKNOWN_MEMBER_ID
        member = group.members[group.static_members[instance_id]]
        return _remove_member(context, context.rule("L2"), member, leaving.reason)
    if leaving.member_id in group.pending_members:
        row = context.rule("L4")
        pending = group.pending_members[leaving.member_id]
        group.remove(leaving.member_id)
        context.record(
            row,
            EntryType.PENDING_MEMBER_REMOVED,
            "left before it joined",
            member_id=leaving.member_id,
            client_id=pending.client_id,
            client_reason=leaving.reason,
        )
        return row, ErrorCode.NONE
    error = group.validate_member(leaving.member_id, leaving.group_instance_id)
    if error is not ErrorCode.NONE:
        return context.rule("L5"), error
    return _remove_member(context, context.rule("L6"), group.members[leaving.member_id], leaving.reason)


def _remove_member(context: StepContext, rule: RuleId, member: Member, client_reason: str | None) -> Verdict:
    if member.parked_join is not None:
        context.reply(member.parked_join, JoinGroupResponse, rule, ErrorCode.UNKNOWN_MEMBER_ID)
    if member.parked_sync is not None:
        # Kafka never answers the parked sync of a member that leaves.
        rebalance.supersede(context, rule, member.parked_sync, "the member left")
    context.group_of(ClassicGroup).remove(member.member_id)
    context.record_member(
        rule, EntryType.MEMBER_REMOVED, member, "left the group", client_reason=client_reason
    )
    return rule, ErrorCode.NONE


def _maybe_prepare_rebalance_or_complete_join(context: StepContext, gone: list[LeavingMember]) -> None:
    """Rows L7 and L8. As in Kafka, a pending id that leaves a formed group starts a rebalance."""
    group = context.group_of(ClassicGroup)
    if group.state is GroupState.PREPARING_REBALANCE:
        context.rule("L8")
        rebalance.maybe_complete_join(context)
    elif group.state is not GroupState.EMPTY:
        row = context.rule("L7")
        names = ", ".join(m.member_id or m.group_instance_id or "" for m in gone)
        rebalance.prepare(context, row, f"left by request: {names}", client_reason=gone[0].reason)
