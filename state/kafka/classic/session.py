"""The session of a member."""

from state.kafka.classic_group import Member
from state.kafka.context import StepContext


def arm_session(context: StepContext, member: Member) -> None:
    """Arm the member's session timeout from now on."""
    member.heartbeat_deadline_ms = context.deadline(member.session_timeout_ms)
