"""The settings that a group with epochs can have of its own: of both protocols under like names. Rows CF19 to
CF21, SN14, SN22.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from kafka_why.contract.settings import SettingValue
from state.config import CoordinatorConfig
from state.kafka.context import StepContext
from state.kafka.group_settings import GroupSetting, SettingBounds, values_in_force


class GroupSettings(Struct, frozen=True):
    """The values in force for a group, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class ModernSettings:
    """The settings of the groups of one protocol. `prefix` is that of their names: `consumer`, `share`. The
    rows are those that refuse a value.
    """

    def __init__(self, prefix: str, *, session: str, heartbeat: str, assignment: str) -> None:
        self._prefix = prefix
        self.session_timeout = f"{prefix}.session.timeout.ms"
        self.heartbeat_interval = f"{prefix}.heartbeat.interval.ms"
        self.assignment_interval = f"{prefix}.assignment.interval.ms"
        self._session_row = session
        self.settings = (
            GroupSetting(self.assignment_interval, assignment, self._bounds_of("assignment_interval")),
            GroupSetting(self.heartbeat_interval, heartbeat, self._bounds_of("heartbeat_interval")),
            GroupSetting(self.session_timeout, session, self._bounds_of("session_timeout")),
        )

    def _bounds_of(self, what: str) -> Callable[[CoordinatorConfig], SettingBounds]:
        names = [f"group_{self._prefix}_{bound}{what}_ms" for bound in ("", "min_", "max_")]
        return lambda config: SettingBounds(*(getattr(config, name) for name in names))

    def conflict_of(self, values: Mapping[str, int]) -> tuple[str, str] | None:
        """Return the row and a sentence if these values in force do not go together, else None."""
        session_ms, interval_ms = values[self.session_timeout], values[self.heartbeat_interval]
        if session_ms > interval_ms:
            return None
        message = (
            f"{self.session_timeout} ({session_ms}) must be above {self.heartbeat_interval} ({interval_ms})"
        )
        return self._session_row, message

    def of(self, context: StepContext) -> GroupSettings:
        """Return the settings in force for the group: its own, else the coordinator's."""
        return self.in_force(context.group.configs, context.config)

    def in_force(self, configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> GroupSettings:
        """Return the settings in force for a group with these settings of its own."""
        if not configs:  # each heartbeat asks, and few groups have settings of their own
            return self._of_coordinator(config)
        values = values_in_force(self.settings, configs, config)
        return GroupSettings(
            values[self.session_timeout], values[self.heartbeat_interval], values[self.assignment_interval]
        )

    def _of_coordinator(self, config: CoordinatorConfig) -> GroupSettings:
        names = ("session_timeout", "heartbeat_interval", "assignment_interval")
        return GroupSettings(*(getattr(config, f"group_{self._prefix}_{name}_ms") for name in names))
