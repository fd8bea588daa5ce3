"""The settings that a group of the consumer protocol can have of its own. Rows CF19 to CF22.

A group's own value stays stored when the coordinator's bounds change, and is brought into the bounds where it
is used (KIP-1240). Source: GroupConfig.java, GroupConfigManager.java.
"""

from collections.abc import Mapping

from msgspec import Struct

from state.config import CoordinatorConfig

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
GROUP_CONFIG_NAMES = (ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, SESSION_TIMEOUT)


class SettingBounds(Struct, frozen=True):
    """The coordinator's value of a setting, which a group without its own has, and the bounds of both."""

    value: int
    at_least: int
    at_most: int


class GroupSettings(Struct, frozen=True):
    """The values in force for a group, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def bounds_of(config: CoordinatorConfig) -> dict[str, SettingBounds]:
    """Return what the coordinator has for each setting of a group, by Kafka's name of the group's setting."""
    return {
        SESSION_TIMEOUT: SettingBounds(
            config.group_consumer_session_timeout_ms,
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        ),
        HEARTBEAT_INTERVAL: SettingBounds(
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        ),
        ASSIGNMENT_INTERVAL: SettingBounds(
            config.group_consumer_assignment_interval_ms,
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        ),
    }


def values_in_force(configs: Mapping[str, int], config: CoordinatorConfig) -> dict[str, int]:
    """Return the value of each setting that is in force for a group with these settings of its own."""
    return {
        name: min(max(configs[name], bounds.at_least), bounds.at_most) if name in configs else bounds.value
        for name, bounds in bounds_of(config).items()
    }


def settings_in_force(configs: Mapping[str, int], config: CoordinatorConfig) -> GroupSettings:
    """Return the settings in force for a group with these settings of its own."""
    if not configs:  # each heartbeat asks, and few groups have settings of their own
        return GroupSettings(
            config.group_consumer_session_timeout_ms,
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_assignment_interval_ms,
        )
    values = values_in_force(configs, config)
    return GroupSettings(values[SESSION_TIMEOUT], values[HEARTBEAT_INTERVAL], values[ASSIGNMENT_INTERVAL])
