"""The settings that a share group can have of its own, and that the coordinator reads. Row SN14."""

from state.kafka.context import StepContext
from state.kafka.modern.settings import GroupSettings, ModernSettings

SETTINGS = ModernSettings("share", session="SN14", heartbeat="SN14", assignment="SN14")


def settings_of(context: StepContext) -> GroupSettings:
    """Return the settings in force for the group: its own, else the coordinator's."""
    return SETTINGS.in_force(context.group.configs, context.config)
