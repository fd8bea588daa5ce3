"""The session of a member."""

from state.kafka.consumer.settings import SETTINGS
from state.kafka.consumer_group import ConsumerMember
from state.kafka.context import StepContext


def arm_session(context: StepContext, member: ConsumerMember) -> None:
    """Arm the member's session timeout from now on (rows TM1, TM2)."""
    if member.classic is None:
        timeout_ms = SETTINGS.of(context).session_timeout_ms
    else:
        timeout_ms = member.classic.session_timeout_ms
    member.session_deadline_ms = context.deadline(timeout_ms)
