"""A JoinGroup or SyncGroup that is too large for the log. Rows J9, S10 and S11.

Source: GroupMetadataManager.java (classicGroupSync), where the record of the group is too large for
`__consumer_offsets`. Kafka writes no record of a JoinGroup, so there the SyncGroup fails.
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import OversizedRequest, ReplyTo
from kafka_why.contract.kafka.responses import OversizedRequestResponse
from kafka_why.contract.kafka.states import GroupState
from state.kafka.classic import rebalance
from state.kafka.classic.session import arm_session
from state.kafka.classic.sync import remove_pending_sync_member, validate
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import StepContext, Verdict
from state.kafka.oversized import FAILED, reason_of, refuse_join


def oversized(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse the request for good. If it has the group's assignment, the round fails."""
    if request.kind == "JoinGroup":
        refuse_join(context, context.rule("J9"), request, reply_to)
    else:
        context.reply(reply_to, OversizedRequestResponse, *_sync(context, request))


def oversized_no_group(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Create the group for a JoinGroup, so that its history says why there are no members."""
    if request.kind == "SyncGroup":
        error = ErrorCode.UNKNOWN_MEMBER_ID
        context.reply(reply_to, OversizedRequestResponse, context.rule("S1"), error)
        return
    row = context.rule("J9")
    context.create_group(ClassicGroup, row, "first JoinGroup for this group id")
    refuse_join(context, row, request, reply_to)


def _sync(context: StepContext, request: OversizedRequest) -> Verdict:
    refusal = validate(context, request)
    if refusal is not None:
        return refusal
    group = context.group_of(ClassicGroup)
    member = group.members[request.member_id]
    if group.state is GroupState.PREPARING_REBALANCE:
        return context.rule("S6"), ErrorCode.REBALANCE_IN_PROGRESS
    if group.state is GroupState.STABLE or group.leader_id != member.member_id:
        return context.rule("S11"), FAILED
    row = context.rule("S10")
    remove_pending_sync_member(group, member)
    rebalance.reset_assignments(context, row, FAILED)
    arm_session(context, member)
    rebalance.prepare(context, row, reason_of(request), member_id=member.member_id)
    return row, FAILED
