"""A group's own settings, and those of protocols that the coordinator does not implement."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import Struct

from kafka_why.contract.messages import SettingValue
from kafka_why.numbers import INT32_MAX
from state.config import ConfigError, CoordinatorConfig, whole_number

# A group's own settings, for all protocols. Rows CF19 to CF22.
#
# Each protocol has its own (`KafkaProtocol.settings`). A group's own value stays stored when the
# coordinator's bounds change, and is clamped where it is used (KIP-1240). Source: GroupConfig.java,
# GroupConfigManager.java.


class SettingBounds(Struct, frozen=True):
    """The coordinator's value of a setting, the default of groups, and the bounds of both."""

    value: int
    at_least: int
    at_most: int


class GroupSetting(Struct, frozen=True):
    """A setting by Kafka's name. `row` refuses a value out of bounds."""

    name: str
    row: str
    bounds: Callable[[CoordinatorConfig], SettingBounds]


def values_in_force(
    settings: Iterable[GroupSetting], configs: Mapping[str, SettingValue], config: CoordinatorConfig
) -> dict[str, int]:
    """Return each setting's value in force for a group whose own settings are `configs`."""
    return {setting.name: _value(setting, configs, config) for setting in settings}


def _value(setting: GroupSetting, configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> int:
    bounds = setting.bounds(config)
    if setting.name not in configs:
        return bounds.value
    return min(max(int(configs[setting.name]), bounds.at_least), bounds.at_most)


# Settings of protocols that the coordinator does not have: stored, but without effect.
#
# A value has to be valid for Kafka under the brokers' default settings. Source: GroupConfig.java,
# ShareGroupConfig.java, GroupCoordinatorConfig.java.


_DURATION = r"P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d{1,9})?S)?)?"
_RESET = re.compile(rf"earliest|latest|by_duration:{_DURATION}", re.IGNORECASE)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{0,249}")

BOOLEAN, STRING, INT, LIST = 1, 2, 3, 7

ReadSetting = Callable[[str, str], SettingValue]


class StoredSetting(Struct, frozen=True):
    """A setting by Kafka's name, with Kafka's default. `read` parses a given value, or raises ConfigError.
    `config_type` is that of a DescribeConfigsResponse.
    """

    name: str
    default: str
    read: ReadSetting
    config_type: int = STRING


def _number(name: str, default: int, at_least: int, at_most: int = INT32_MAX) -> StoredSetting:
    return StoredSetting(name, str(default), partial(whole_number, at_least=at_least, at_most=at_most), INT)


def _one_of(name: str, given: str, known: tuple[str, ...]) -> str:
    if given.lower() not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {given!r}")
    return given.lower()


def _reset(name: str, given: str) -> str:
    if not _RESET.fullmatch(given):
        raise ConfigError(
            f"{name} must be earliest, latest or by_duration:<ISO 8601 duration>, not {given!r}"
        )
    return given


def _tags(name: str, given: str) -> str:
    tags = [tag.strip() for tag in given.split(",")] if given.strip() else []
    if not all(tags) or len(set(tags)) < len(tags):
        raise ConfigError(f"{name} must be a list of different names, not {given!r}")
    return ",".join(tags)


def _topic(name: str, given: str) -> str:
    if given.startswith("__") or not _TOPIC.fullmatch(given):
        raise ConfigError(f"{name} must be the name of a topic that does not begin with '__', not {given!r}")
    return given


_BOOLEANS = ("true", "false")

KEPT_SETTINGS = (
    StoredSetting(
        "errors.deadletterqueue.copy.record.enable", "false", partial(_one_of, known=_BOOLEANS), BOOLEAN
    ),
    StoredSetting("errors.deadletterqueue.topic.name", "", _topic),
    StoredSetting("share.auto.offset.reset", "latest", _reset),
    _number("share.delivery.count.limit", 5, 2, 10),
    StoredSetting(
        "share.isolation.level",
        "read_uncommitted",
        partial(_one_of, known=("read_committed", "read_uncommitted")),
    ),
    _number("share.partition.max.record.locks", 2_000, 100, 4_000),
    _number("share.record.lock.duration.ms", 30_000, 15_000, 60_000),
    StoredSetting("share.renew.acknowledge.enable", "true", partial(_one_of, known=_BOOLEANS), BOOLEAN),
    _number("streams.assignment.interval.ms", 1_000, 0, 15_000),
    StoredSetting("streams.assignor.name", "sticky", partial(_one_of, known=("sticky",))),
    _number("streams.heartbeat.interval.ms", 5_000, 5_000, 15_000),
    _number("streams.initial.rebalance.delay.ms", 3_000, 0),
    _number("streams.num.standby.replicas", 0, 0, 2),
    StoredSetting("streams.rack.aware.assignment.tags", "", _tags, LIST),
    _number("streams.session.timeout.ms", 45_000, 45_000, 60_000),
)
