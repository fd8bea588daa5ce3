"""What `state.kafka.step` calls for a group of the consumer protocol."""

from collections.abc import Callable
from typing import Any

from state.kafka.consumer.classic_join import join
from state.kafka.consumer.classic_members import heartbeat, leave, sync
from state.kafka.consumer.expiry import deadline_reached
from state.kafka.consumer.takeover import renew_due_deadlines, shift_deadlines, take_over
from state.kafka.consumer.topics import topic_metadata
from state.kafka.context import RuleId, StepContext
from state.kafka.requests import Heartbeat, JoinGroup, LeaveGroup, ReplyTo, SyncGroup

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
    """No request is parked in a group of the consumer protocol: each is answered at once."""


def release(context: StepContext) -> None:
    """Let the deadlines of a released group go on. There is no deadline of the whole group."""
    renew_due_deadlines(context)
