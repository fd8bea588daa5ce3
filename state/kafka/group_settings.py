"""The settings that a group can have of its own, whatever its protocol. Rows CF19 to CF22.

Each protocol has its own ones (`KafkaProtocol.settings`). A group's own value stays stored when the
coordinator's bounds change, and is brought into the bounds where it is used (KIP-1240). Source:
GroupConfig.java, GroupConfigManager.java.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from kafka_why.contract.settings import SettingValue
from state.config import CoordinatorConfig


class SettingBounds(Struct, frozen=True):
    """The coordinator's value of a setting, which a group without its own has, and the bounds of both."""

    value: int
    at_least: int
    at_most: int


class GroupSetting(Struct, frozen=True):
    """A setting by Kafka's name. `row` is the one that refuses a value out of its bounds."""

    name: str
    row: str
    bounds: Callable[[CoordinatorConfig], SettingBounds]


def values_in_force(
    settings: Iterable[GroupSetting], configs: Mapping[str, SettingValue], config: CoordinatorConfig
) -> dict[str, int]:
    """Return the value of each setting that is in force for a group with these settings of its own."""
    return {setting.name: _value(setting, configs, config) for setting in settings}


def _value(setting: GroupSetting, configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> int:
    bounds = setting.bounds(config)
    if setting.name not in configs:
        return bounds.value
    return min(max(int(configs[setting.name]), bounds.at_least), bounds.at_most)
