"""The settings that a group of the consumer protocol can have of its own. Rows CF19 to CF21."""

from state.kafka.modern.settings import ModernSettings

SETTINGS = ModernSettings("consumer", session="CF19", heartbeat="CF20", assignment="CF21")
