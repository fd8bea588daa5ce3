"""The session of a member, and the settings of its group."""

from state.kafka.consumer.settings import SETTINGS
from state.kafka.consumer_group import ConsumerMember
from state.kafka.context import StepContext
from state.kafka.modern.settings import GroupSettings


def settings_of(context: StepContext) -> GroupSettings:
    """Return the settings in force for the group: its own, else the coordinator's."""
    return SETTINGS.in_force(context.group.configs, context.config)


def arm_session(context: StepContext, member: ConsumerMember) -> None:
    """Arm the member's session timeout from now on (rows TM1, TM2)."""
    if member.classic is None:
        timeout_ms = settings_of(context).session_timeout_ms
    else:
        timeout_ms = member.classic.session_timeout_ms
    member.session_deadline_ms = context.deadline(timeout_ms)
