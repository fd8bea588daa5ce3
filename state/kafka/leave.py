"""LeaveGroup: a batch of members goes now (KIP-345). Rows L1 to L8."""

from state.errors import ErrorCode
from state.kafka import rebalance
from state.kafka.context import StepContext
from state.kafka.group import GroupState, Member
from state.kafka.history import EntryType
from state.kafka.requests import LeaveGroup, LeavingMember, ReplyTo
from state.kafka.responses import JoinGroupResponse, LeaveGroupResponse, LeftMember


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    """Take out each member of the batch, then rebalance once for all of them."""
    left = [(leaving, _leave_one(context, leaving)) for leaving in request.members]
    gone = [leaving for leaving, error in left if error is ErrorCode.NONE]
    if gone:
        _after_the_batch(context, gone)
    members = [LeftMember(leaving.member_id, leaving.group_instance_id, error) for leaving, error in left]
    context.reply(reply_to, LeaveGroupResponse, members=members)


def _leave_one(context: StepContext, leaving: LeavingMember) -> ErrorCode:
    if not context.has_group:
        context.rule("L1")
        return ErrorCode.UNKNOWN_MEMBER_ID
    group = context.group
    if not leaving.member_id:
        instance_id = leaving.group_instance_id
        if instance_id is None or instance_id not in group.static_members:
            context.rule("L3")
            return ErrorCode.UNKNOWN_MEMBER_ID
        context.rule("L2")
        _take_out(context, group.members[group.static_members[instance_id]], leaving.reason)
        return ErrorCode.NONE
    if leaving.member_id in group.pending_members:
        context.rule("L4")
        pending = group.pending_members[leaving.member_id]
        group.remove(leaving.member_id)
        context.record(
            EntryType.PENDING_MEMBER_REMOVED,
            "left before it joined",
            member_id=leaving.member_id,
            client_id=pending.client_id,
            client_reason=leaving.reason,
        )
        return ErrorCode.NONE
    error = group.validate_member(leaving.member_id, leaving.group_instance_id)
    if error is not ErrorCode.NONE:
        context.rule("L5")
        return error
    context.rule("L6")
    _take_out(context, group.members[leaving.member_id], leaving.reason)
    return ErrorCode.NONE


def _take_out(context: StepContext, member: Member, client_reason: str | None) -> None:
    if member.parked_join is not None:
        context.reply(member.parked_join, JoinGroupResponse, ErrorCode.UNKNOWN_MEMBER_ID)
    if member.parked_sync is not None:
        # Kafka never answers the parked sync of a member that leaves.
        rebalance.supersede(context, member.parked_sync, "the member left")
    context.group.remove(member.member_id)
    context.record_member(EntryType.MEMBER_REMOVED, member, "left the group", client_reason=client_reason)


def _after_the_batch(context: StepContext, gone: list[LeavingMember]) -> None:
    """Rows L7 and L8. A pending id that leaves a formed group starts a rebalance too, as in Kafka."""
    group = context.group
    if group.state is GroupState.PREPARING_REBALANCE:
        context.rule("L8")
        rebalance.maybe_complete_join(context)
    elif group.state is not GroupState.EMPTY:
        context.rule("L7")
        names = ", ".join(m.member_id or m.group_instance_id or "" for m in gone)
        rebalance.prepare(context, f"left by request: {names}", client_reason=gone[0].reason)
