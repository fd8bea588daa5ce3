"""The settings of streams groups. Rows KSF2 to KSF18.

Source: GroupConfig.java, GroupCoordinatorConfig.java.

A row, such as KSF2, is a rule of docs/rules-streams.md.
"""

from collections.abc import Mapping

from kafka_why.contract.messages import SettingValue
from state.config import CoordinatorConfig, GroupSetting, SettingBounds, values_in_force
from state.kafka.modern import ModernSettings

SETTINGS = ModernSettings("streams", session="KSF2", heartbeat="KSF4", assignment="KSF8")

INITIAL_DELAY = "streams.initial.rebalance.delay.ms"
STANDBY_REPLICAS = "streams.num.standby.replicas"
RACK_AWARE_TAGS = "streams.rack.aware.assignment.tags"
ACCEPTABLE_LAG = "streams.acceptable.recovery.lag"
TASK_OFFSET_INTERVAL = "streams.task.offset.interval.ms"
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1

OWN_SETTINGS = (
    GroupSetting(
        INITIAL_DELAY,
        "KSF7",
        lambda config: SettingBounds(
            config.group_streams_initial_rebalance_delay_ms, at_least=0, at_most=_INT32_MAX
        ),
    ),
    GroupSetting(
        STANDBY_REPLICAS,
        "KSF12",
        lambda config: SettingBounds(
            config.group_streams_num_standby_replicas,
            at_least=0,
            at_most=config.group_streams_max_standby_replicas,
        ),
    ),
)
"""The settings that only streams groups have."""

INTERNAL_SETTINGS = (
    GroupSetting(
        ACCEPTABLE_LAG,
        "KSF15",
        lambda config: SettingBounds(
            config.group_streams_acceptable_recovery_lag, at_least=0, at_most=_INT64_MAX
        ),
    ),
    GroupSetting(
        TASK_OFFSET_INTERVAL,
        "KSF16",
        lambda config: SettingBounds(
            config.group_streams_task_offset_interval_ms,
            at_least=config.group_streams_min_task_offset_interval_ms,
            at_most=_INT32_MAX,
        ),
    ),
    GroupSetting("streams.num.warmup.replicas", "KSF14", lambda _: SettingBounds(2, at_least=0, at_most=20)),
)
"""Settings that Kafka does not list: their names are not in an answer to DescribeConfigs."""


def value_of(name: str, configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> int:
    """Return the value in force of one setting of a group whose own settings are `configs`."""
    return values_in_force((_SETTING_BY_NAME[name],), configs, config)[name]


_SETTING_BY_NAME = {setting.name: setting for setting in (*OWN_SETTINGS, *INTERNAL_SETTINGS)}


def rack_aware_tags(configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> str:
    """Return the tags of rack-aware assignment, joined by commas, "" without any."""
    return str(configs.get(RACK_AWARE_TAGS, config.group_streams_rack_aware_assignment_tags))


def assignment_configs(configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> dict[str, str]:
    """Return the settings of the assignment whose change needs a new target (row KSH51)."""
    settings = {"num.standby.replicas": str(value_of(STANDBY_REPLICAS, configs, config))}
    if tags := rack_aware_tags(configs, config):
        settings["rack.aware.assignment.tags"] = tags
    return settings
