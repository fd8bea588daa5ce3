"""What `state.kafka.step` calls for a group of the classic protocol, and for a group that does not exist."""

from collections.abc import Callable
from typing import Any

from state.errors import ErrorCode
from state.kafka.classic import rebalance
from state.kafka.classic.expiry import deadline_reached
from state.kafka.classic.heartbeat import heartbeat
from state.kafka.classic.join import join
from state.kafka.classic.leave import leave
from state.kafka.classic.reported_topics import topic_metadata
from state.kafka.classic.sync import sync
from state.kafka.classic.takeover import shift_deadlines, take_over
from state.kafka.context import RuleId, StepContext
from state.kafka.requests import Heartbeat, JoinGroup, LeaveGroup, ReplyTo, SyncGroup
from state.kafka.responses import JoinGroupResponse, SyncGroupResponse

__all__ = [
    "HANDLERS",
    "answer_parked",
    "deadline_reached",
    "release",
    "shift_deadlines",
    "take_over",
    "topic_metadata",
]

HANDLERS: dict[type, Callable[[StepContext, Any, ReplyTo], None]] = {
    JoinGroup: join,
    SyncGroup: sync,
    Heartbeat: heartbeat,
    LeaveGroup: leave,
}


def answer_parked(context: StepContext, row: RuleId) -> None:
    """Answer every parked request with an error, because the group's deadlines stop."""
    group = context.classic
    for member in group.members.values():
        if member.parked_join is not None:
            context.reply(member.parked_join, JoinGroupResponse, row, ErrorCode.UNKNOWN_SERVER_ERROR)
        if member.parked_sync is not None:
            context.reply(member.parked_sync, SyncGroupResponse, row, ErrorCode.UNKNOWN_SERVER_ERROR)
        group.set_parked_join(member, None)
        member.parked_sync = None
        member.is_new = False


def release(context: StepContext) -> int | None:
    """Let the deadlines of a released group go on. Return the deadline in ms of its rebalance, if any."""
    rebalance.renew_due_round(context)
    phase = context.classic.join_phase
    return phase.deadline_ms if phase else None
