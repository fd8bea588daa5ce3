"""Heartbeat: renewal of a member's session. The answer says whether the member must rejoin. Rows H3 to H8."""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.requests import Heartbeat, ReplyTo
from kafka_why.contract.kafka.responses import HeartbeatResponse
from state.kafka.classic.rebalance import arm_session
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import StepContext, Verdict


def heartbeat(context: StepContext, request: Heartbeat, reply_to: ReplyTo) -> None:
    """Renew the session of a member of this generation."""
    context.reply(reply_to, HeartbeatResponse, *_renew_session(context, request))


def _renew_session(context: StepContext, request: Heartbeat) -> Verdict:
    group = context.group_of(ClassicGroup)
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return context.rule("H3"), error
    if request.generation_id != group.generation:
        return context.rule("H4"), ErrorCode.ILLEGAL_GENERATION
    arm_session(context, group.members[request.member_id])
    if group.state is GroupState.PREPARING_REBALANCE:
        return context.rule("H6"), ErrorCode.REBALANCE_IN_PROGRESS
    # While the leader assigns, a heartbeat renews the session and has no error (KAFKA-10134).
    row = context.rule("H7" if group.state is GroupState.COMPLETING_REBALANCE else "H8")
    return row, ErrorCode.NONE
