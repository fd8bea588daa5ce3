"""Heartbeat: a member is alive, and is told whether it has to rejoin. Rows H1 to H8."""

from state.errors import ErrorCode
from state.kafka.context import Turn
from state.kafka.group import GroupState
from state.kafka.requests import Heartbeat, ReplyTo
from state.kafka.responses import HeartbeatResponse


def heartbeat(turn: Turn, request: Heartbeat, reply_to: ReplyTo) -> None:
    """Extend the session of a member of this generation."""
    turn.reply(reply_to, HeartbeatResponse, _judge(turn, request))


def _judge(turn: Turn, request: Heartbeat) -> ErrorCode:
    if not turn.has_group:
        turn.rule("H1")
        return ErrorCode.UNKNOWN_MEMBER_ID
    group = turn.group
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        turn.rule("H3")
        return error
    if request.generation_id != group.generation:
        turn.rule("H4")
        return ErrorCode.ILLEGAL_GENERATION
    turn.arm_session(group.members[request.member_id])
    if group.state is GroupState.PREPARING_REBALANCE:
        turn.rule("H6")
        return ErrorCode.REBALANCE_IN_PROGRESS
    # While the leader assigns, a heartbeat is welcome and says nothing (KAFKA-10134).
    turn.rule("H7" if group.state is GroupState.COMPLETING_REBALANCE else "H8")
    return ErrorCode.NONE
