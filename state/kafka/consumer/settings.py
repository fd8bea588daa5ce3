"""The settings that a group of the consumer protocol can have of its own, and the session of a member."""

from state.kafka.consumer_group import ConsumerMember
from state.kafka.context import StepContext
from state.kafka.modern.target import ModernSettings

SETTINGS = ModernSettings("consumer", session="CF19", heartbeat="CF20", assignment="CF21")


def arm_session(context: StepContext, member: ConsumerMember) -> None:
    """Arm the member's session timeout from now on (rows TM1, TM2)."""
    if member.classic is None:
        timeout_ms = SETTINGS.of(context).session_timeout_ms
    else:
        timeout_ms = member.classic.session_timeout_ms
    member.session_deadline_ms = context.deadline(timeout_ms)
