"""The settings that a group of the consumer protocol can have of its own. Rows CF19 to CF21."""

from collections.abc import Mapping

from msgspec import Struct

from state.config import CoordinatorConfig, SettingValue
from state.kafka.group_settings import GroupSetting, SettingBounds, values_in_force

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


class GroupSettings(Struct, frozen=True):
    """The values in force for a group, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def _session_timeout(config: CoordinatorConfig) -> SettingBounds:
    return SettingBounds(
        config.group_consumer_session_timeout_ms,
        config.group_consumer_min_session_timeout_ms,
        config.group_consumer_max_session_timeout_ms,
    )


def _heartbeat_interval(config: CoordinatorConfig) -> SettingBounds:
    return SettingBounds(
        config.group_consumer_heartbeat_interval_ms,
        config.group_consumer_min_heartbeat_interval_ms,
        config.group_consumer_max_heartbeat_interval_ms,
    )


def _assignment_interval(config: CoordinatorConfig) -> SettingBounds:
    return SettingBounds(
        config.group_consumer_assignment_interval_ms,
        config.group_consumer_min_assignment_interval_ms,
        config.group_consumer_max_assignment_interval_ms,
    )


SETTINGS = (
    GroupSetting(ASSIGNMENT_INTERVAL, "CF21", _assignment_interval),
    GroupSetting(HEARTBEAT_INTERVAL, "CF20", _heartbeat_interval),
    GroupSetting(SESSION_TIMEOUT, "CF19", _session_timeout),
)


def conflict_of(values: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the row and a sentence if these values in force do not go together, else None."""
    session_ms, interval_ms = values[SESSION_TIMEOUT], values[HEARTBEAT_INTERVAL]
    if session_ms > interval_ms:
        return None
    return "CF19", f"{SESSION_TIMEOUT} ({session_ms}) must be above {HEARTBEAT_INTERVAL} ({interval_ms})"


def settings_in_force(configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> GroupSettings:
    """Return the settings in force for a group with these settings of its own."""
    if not configs:  # each heartbeat asks, and few groups have settings of their own
        return GroupSettings(
            config.group_consumer_session_timeout_ms,
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_assignment_interval_ms,
        )
    values = values_in_force(SETTINGS, configs, config)
    return GroupSettings(values[SESSION_TIMEOUT], values[HEARTBEAT_INTERVAL], values[ASSIGNMENT_INTERVAL])
