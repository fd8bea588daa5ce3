"""The settings that a share group can have of its own, and that the coordinator reads. Row SN14."""

from state.kafka.modern.settings import ModernSettings

SETTINGS = ModernSettings("share", session="SN14", heartbeat="SN14", assignment="SN14")
