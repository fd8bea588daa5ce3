"""The coordinator's settings: Kafka's under Kafka's names, RocketMQ's with the prefix `rocketmq.`.

Rows CF1 to CF15 of docs/rules-consumer.md bound the settings of the consumer protocol (KIP-848), and rows SN1
to SN5 of docs/rules-share.md those of share groups (KIP-932). Settings are an input of the core, as requests
are: the same log with the same settings has the same outcome. Source: GroupCoordinatorConfig.java,
BrokerConfig.java.
"""

import difflib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from typing import Any

from msgspec import Struct

from assignors.kafka import BROKER_ASSIGNORS
from kafka_why.contract.messages import SettingValue
from kafka_why.numbers import INT32_MAX, OutOfRange, parse_whole_number, shortened

# A constant in Kafka: a new member is removed if its first JoinGroup has waited for an answer for this time.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000

# An assignment of 20,000 partitions by the coordinator takes at most 2 s (`sticky`, members that subscribe to
# different topics), one of 100,000 takes 25 s. The requests of all groups wait during that time.
GROUP_MAX_PARTITIONS = 20_000

CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"
_PARTS = ("group_consumer", "group_share", "group_streams", "rocketmq")
"""The fields of CoordinatorConfig that have settings of their own, with the field's name as their prefix."""
_INT64_MAX = 2**63 - 1

# RocketMQ has no setting for the timeout of producers. Source: ProducerManager.CHANNEL_EXPIRED_TIMEOUT.
PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS = 120_000


class MigrationPolicy(StrEnum):
    """The allowed conversions of a group with members (rows PO1 to PO4).

    Upgrade: from the classic protocol to the consumer protocol. Downgrade: the other way.
    """

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class ConfigError(ValueError):
    """A setting is unknown, malformed, out of bounds, or contradicts another one."""


def whole_number(name: str, given: SettingValue, at_least: int, at_most: int = INT32_MAX) -> int:
    """Return the value of a setting. Raises ConfigError if it is not a whole number or out of bounds."""
    text = str(given).strip()  # as Kafka's ConfigDef does
    try:
        return parse_whole_number(text, at_least, at_most)
    except OutOfRange:
        raise ConfigError(f"{name} must be from {at_least} to {at_most}, not {shortened(text)}") from None
    except ValueError:
        raise ConfigError(f"{name} must be a whole number, not {shortened(text)!r}") from None


def _parse_names(name: str, given: SettingValue, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the comma-separated names of a setting. Raise ConfigError if one is unknown or occurs twice."""
    names = tuple(part.strip() for part in str(given).split(","))
    unknown = [n for n in names if n not in known]
    if unknown:
        raise ConfigError(f"{name} has {unknown[0]!r}; known are: {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{name} has a name twice: {given!r}")
    return names


def _rebalance_protocols(name: str, given: SettingValue) -> tuple[str, ...]:
    protocols = _parse_names(name, given, (CLASSIC, CONSUMER, STREAMS))
    if CLASSIC not in protocols:
        raise ConfigError(f"{name} must have {CLASSIC!r}, which cannot be switched off in Kafka")
    return protocols


_BOOLEANS = ("true", "false")


def _one_of(name: str, given: SettingValue, known: Sequence[str]) -> str:
    """Return the value of a setting in lower case. Raise ConfigError if it is not one of `known`."""
    text = str(given).lower()
    if text not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {given!r}")
    return text


def _migration_policy(name: str, given: SettingValue) -> MigrationPolicy:
    return MigrationPolicy(_one_of(name, given, tuple(MigrationPolicy)))


def _boolean(name: str, given: SettingValue) -> bool:
    return _one_of(name, given, _BOOLEANS) == "true"


def _tags(name: str, given: SettingValue) -> str:
    """Return comma-separated names without spaces, "" for none. Raise ConfigError if a name is empty or
    occurs twice.
    """
    names = [tag.strip() for tag in str(given).split(",")] if str(given).strip() else []
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"{name} must be a list of different names, not {given!r}")
    return ",".join(names)


def _metadata(name: str, read: Callable[[str, SettingValue], Any]) -> dict[str, Any]:
    """Return the metadata of a setting's field.

    `name` is the dotted name, without the prefix if the field is in one of `_PARTS`. `read` parses a given
    value, or raises ConfigError.
    """
    return {"name": name, "read": read}


def _setting(name: str, default: int, *, at_least: int = -(2**31), at_most: int = INT32_MAX) -> int:
    """Return a dataclass field, typed as its value, for a setting that is a whole number."""
    read = partial(whole_number, at_least=at_least, at_most=at_most)
    value: int = field(default=default, metadata=_metadata(name, read))
    return value


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A RocketMQ broker's settings with RocketMQ's defaults. Users can set the times, in milliseconds.

    `scan_interval_ms` is the time between two scans for silent connections (ClientHousekeepingService).
    `lock_max_live_ms` is the lifetime of a queue's lock (rocketmq.broker.rebalance.lockMaxLiveTime). If
    `enable_fast_channel_event_process` is True, a broadcasting group, too, is notified of closed connections.
    """

    channel_expired_timeout_ms: int = _setting("channel.expired.timeout.ms", 120_000, at_least=1)
    scan_interval_ms: int = _setting("scan.interval.ms", 10_000, at_least=1)
    lock_max_live_ms: int = _setting("lock.max.live.ms", 60_000, at_least=1)
    enable_fast_channel_event_process: bool = False


@dataclass(frozen=True, slots=True)
class ModernGroupConfig:
    """The settings, in milliseconds, that the consumer, share and streams protocols each have."""

    session_timeout_ms: int = _setting("session.timeout.ms", 45_000, at_least=1)
    min_session_timeout_ms: int = _setting("min.session.timeout.ms", 45_000, at_least=1)
    max_session_timeout_ms: int = _setting("max.session.timeout.ms", 60_000, at_least=1)
    heartbeat_interval_ms: int = _setting("heartbeat.interval.ms", 5_000, at_least=1)
    min_heartbeat_interval_ms: int = _setting("min.heartbeat.interval.ms", 5_000, at_least=1)
    max_heartbeat_interval_ms: int = _setting("max.heartbeat.interval.ms", 15_000, at_least=1)
    assignment_interval_ms: int = _setting("assignment.interval.ms", 1_000, at_least=0)
    min_assignment_interval_ms: int = _setting("min.assignment.interval.ms", 0, at_least=0)
    max_assignment_interval_ms: int = _setting("max.assignment.interval.ms", 15_000, at_least=0)


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """All settings that the core reads. Times are in milliseconds; `max_size` counts members.

    Kafka does not have these settings:

    `group_max_partitions` bounds the number of partitions that the coordinator assigns to one group.

    If `regex_resolve_at_once` is True, a request that reports the topics that match a pattern resolves the
    pattern at once (row RX3). If it is False, the result comes later, as in Kafka.

    If `share_assign_at_once` is True, the next heartbeat assigns a share group's initialized partitions. If
    it is False, they wait for the end of the assignment interval, as in Kafka.

    If `streams_topology_replace_when_empty` is True, a member may join an Empty streams group with another
    topology (row KSB6). If it is False, such a member is refused, as in Kafka.

    `member_id_namespace` is the secret UUID from which member ids are derived. It is stored in the checkpoint
    and never published.
    """

    group_min_session_timeout_ms: int = _setting("group.min.session.timeout.ms", 6_000)
    group_max_session_timeout_ms: int = _setting("group.max.session.timeout.ms", 1_800_000)
    group_initial_rebalance_delay_ms: int = _setting("group.initial.rebalance.delay.ms", 3_000)
    group_max_size: int = _setting("group.max.size", INT32_MAX, at_least=1)
    group_consumer: ModernGroupConfig = ModernGroupConfig()
    group_consumer_max_size: int = _setting("group.consumer.max.size", INT32_MAX, at_least=1)
    group_consumer_assignors: tuple[str, ...] = field(
        default=tuple(BROKER_ASSIGNORS),
        metadata=_metadata("group.consumer.assignors", partial(_parse_names, known=tuple(BROKER_ASSIGNORS))),
    )
    group_consumer_migration_policy: MigrationPolicy = field(
        default=MigrationPolicy.BIDIRECTIONAL,
        metadata=_metadata("group.consumer.migration.policy", _migration_policy),
    )
    group_consumer_regex_refresh_interval_ms: int = _setting(
        "group.consumer.regex.refresh.interval.ms", 600_000, at_least=10_000
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] = field(
        default=(CLASSIC, CONSUMER, STREAMS),
        metadata=_metadata("group.coordinator.rebalance.protocols", _rebalance_protocols),
    )
    group_share: ModernGroupConfig = ModernGroupConfig()
    group_share_max_size: int = _setting("group.share.max.size", 200, at_least=1, at_most=1_000)
    group_streams: ModernGroupConfig = ModernGroupConfig()
    group_streams_max_size: int = _setting("group.streams.max.size", INT32_MAX, at_least=1)
    group_streams_initial_rebalance_delay_ms: int = _setting(
        "group.streams.initial.rebalance.delay.ms", 3_000, at_least=0
    )
    group_streams_num_standby_replicas: int = _setting("group.streams.num.standby.replicas", 0, at_least=0)
    group_streams_max_standby_replicas: int = _setting("group.streams.max.standby.replicas", 2, at_least=0)
    group_streams_rack_aware_assignment_tags: str = field(
        default="", metadata=_metadata("group.streams.rack.aware.assignment.tags", _tags)
    )
    group_streams_acceptable_recovery_lag: int = _setting(
        "group.streams.acceptable.recovery.lag", 10_000, at_least=0, at_most=_INT64_MAX
    )
    group_streams_task_offset_interval_ms: int = _setting(
        "group.streams.task.offset.interval.ms", 60_000, at_least=1
    )
    group_streams_min_task_offset_interval_ms: int = _setting(
        "group.streams.min.task.offset.interval.ms", 15_000, at_least=1
    )
    streams_topology_replace_when_empty: bool = field(
        default=False, metadata=_metadata("coordinator.streams.topology.replace.when.empty", _boolean)
    )
    share_assign_at_once: bool = field(
        default=True, metadata=_metadata("coordinator.share.assign.at.once", _boolean)
    )
    regex_resolve_at_once: bool = field(
        default=True, metadata=_metadata("coordinator.regex.resolve.at.once", _boolean)
    )
    group_max_partitions: int = _setting("group.max.partitions", GROUP_MAX_PARTITIONS, at_least=1)
    offset_metadata_max_bytes: int = _setting("offset.metadata.max.bytes", 4_096)
    offsets_retention_minutes: int = _setting("offsets.retention.minutes", 10_080, at_least=1)
    offsets_retention_check_interval_ms: int = _setting(
        "offsets.retention.check.interval.ms", 600_000, at_least=1
    )
    member_id_namespace: str = field(default="00000000-0000-0000-0000-000000000000", repr=False)
    rocketmq: BrokerConfig = BrokerConfig()

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @property
    def consumer_protocol(self) -> bool:
        """Return True if the consumer protocol is switched on (row CF1)."""
        return CONSUMER in self.group_coordinator_rebalance_protocols

    @property
    def streams_protocol(self) -> bool:
        """Return True if the streams protocol is switched on (row KSF1)."""
        return STREAMS in self.group_coordinator_rebalance_protocols

    def with_settings(self, settings: Mapping[str, SettingValue]) -> "CoordinatorConfig":
        """Return a copy of this configuration with `settings` applied. The keys are dotted names.

        Raises ConfigError with the setting, the given value and the allowed values.
        """
        known = {name: (part, setting) for name, part, setting in self._setting_fields()}
        changes: dict[str, dict[str, Any]] = {part: {} for part in ("", *_PARTS)}  # by part and field
        for name, given in settings.items():
            if name not in known:
                similar = difflib.get_close_matches(name, sorted(known))
                hint = f"did you mean {' or '.join(similar)}? " if similar else ""
                raise ConfigError(f"unknown setting {name!r}; {hint}known are: {', '.join(sorted(known))}")
            part, setting = known[name]
            changes[part][setting.name] = setting.metadata["read"](name, given)
        own_changes = changes.pop("")
        parts = {part: replace(getattr(self, part), **part_changes) for part, part_changes in changes.items()}
        changed = replace(self, **own_changes, **parts)
        changed._check_together()
        return changed

    def _setting_fields(self) -> Iterator[tuple[str, str, Field[Any]]]:
        """Yield the dotted name of each setting, its part ("" if it is in no part), and its field."""
        for part in ("", *_PARTS):
            prefix = part.replace("_", ".") + "." if part else ""
            for setting in fields(self._owner(part)):
                if setting.metadata:
                    yield prefix + setting.metadata["name"], part, setting

    def _owner(self, part: str) -> Any:
        """Return the object that has the settings of `part`: a field of `_PARTS`, or this object for ""."""
        return getattr(self, part) if part else self

    def settings(self) -> dict[str, SettingValue]:
        """Return every setting by its dotted name, in the form that `with_settings` accepts."""
        return {
            name: _to_setting_value(getattr(self._owner(part), setting.name))
            for name, part, setting in self._setting_fields()
        }

    def _check_together(self) -> None:
        """Raise ConfigError if two settings contradict each other."""
        values = self.settings()
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                f"group.min.session.timeout.ms ({self.group_min_session_timeout_ms}) is above "
                f"group.max.session.timeout.ms ({self.group_max_session_timeout_ms}): "
                "no member could ever join"
            )
        for protocol in (CONSUMER, SHARE, STREAMS):
            _check_protocol(values, f"group.{protocol}")
        for lower, upper in (
            ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
            ("group.streams.min.task.offset.interval.ms", "group.streams.task.offset.interval.ms"),
        ):
            if int(values[lower]) > int(values[upper]):
                raise ConfigError(f"{lower} ({values[lower]}) is above {upper} ({values[upper]})")


def _check_protocol(values: Mapping[str, SettingValue], prefix: str) -> None:
    """Raise ConfigError if two settings with this prefix contradict each other."""
    for time in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        name, lower, upper = f"{prefix}.{time}", f"{prefix}.min.{time}", f"{prefix}.max.{time}"
        if int(values[lower]) > int(values[upper]):
            raise ConfigError(f"{lower} ({values[lower]}) is above {upper} ({values[upper]})")
        if not int(values[lower]) <= int(values[name]) <= int(values[upper]):
            raise ConfigError(
                f"{name} ({values[name]}) is not from {lower} ({values[lower]}) to {upper} ({values[upper]})"
            )
    interval, session = f"{prefix}.heartbeat.interval.ms", f"{prefix}.session.timeout.ms"
    if int(values[interval]) >= int(values[session]):
        raise ConfigError(
            f"{interval} ({values[interval]}) is not below {session} ({values[session]}): "
            "sessions would end between two heartbeats"
        )


def _to_setting_value(value: int | str | tuple[str, ...]) -> SettingValue:
    """Return the value of a field in the form that `with_settings` accepts."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value) if isinstance(value, str) else value


class ConfigChange(Struct, frozen=True):
    """A configuration that is in force at all times after `after_ms`, until the next change."""

    after_ms: int
    config: CoordinatorConfig


class Configs(Struct, frozen=True):
    """The configurations of a log, by time. `first` is in force until the first of `changes`, which are
    sorted by time. If several changes have the same time, the last one counts.
    """

    first: CoordinatorConfig
    changes: Sequence[ConfigChange] = ()

    def at(self, now_ms: int) -> CoordinatorConfig:
        """Return the configuration in force at a time."""
        count = self.changed_before(now_ms)
        return self.changes[count - 1].config if count else self.first

    def changed_before(self, now_ms: int) -> int:
        """Return the number of changes whose `after_ms` is before this time."""
        return bisect_left(self.changes, now_ms, key=lambda change: change.after_ms)

    def each(self, function: Callable[[CoordinatorConfig], CoordinatorConfig]) -> "Configs":
        """Return a copy in which each configuration is replaced by the function's result for it."""
        changes = [ConfigChange(change.after_ms, function(change.config)) for change in self.changes]
        return Configs(function(self.first), changes)


# A group's own settings, for all protocols. Rows CF19 to CF22.
#
# Each protocol lists the settings of its groups (`KafkaProtocol.settings`). A group's own value stays stored
# when the coordinator's bounds change, and is clamped where it is used (KIP-1240). Source: GroupConfig.java,
# GroupConfigManager.java.


class SettingBounds(Struct, frozen=True):
    """The bounds of a group's value for a setting. `value` is the coordinator's own value, which applies to
    groups without a value.
    """

    value: int
    at_least: int
    at_most: int


class GroupSetting(Struct, frozen=True):
    """A setting of a group, under Kafka's name. `row` is the rule that refuses a value out of bounds."""

    name: str
    row: str
    bounds: Callable[[CoordinatorConfig], SettingBounds]


def values_in_force(
    settings: Iterable[GroupSetting], configs: Mapping[str, SettingValue], config: CoordinatorConfig
) -> dict[str, int]:
    """Return each setting's value in force for a group whose own settings are `configs`: the group's value
    within the setting's bounds, or the coordinator's value if the group has none.
    """
    return {setting.name: _value_in_force(setting, configs, config) for setting in settings}


def _value_in_force(
    setting: GroupSetting, configs: Mapping[str, SettingValue], config: CoordinatorConfig
) -> int:
    bounds = setting.bounds(config)
    if setting.name not in configs:
        return bounds.value
    return min(max(int(configs[setting.name]), bounds.at_least), bounds.at_most)


# Settings of groups that have no effect here: the coordinator only stores them.
#
# A value has to be valid for Kafka under the brokers' default settings. Source: GroupConfig.java,
# ShareGroupConfig.java, GroupCoordinatorConfig.java.


# A java.time.Duration in ISO 8601, such as `P1DT2H` or `PT1.5S`. The lookaheads demand that something follows
# the P and the T.
_DURATION = r"P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d{1,9})?S)?)?"
_OFFSET_RESET = re.compile(rf"earliest|latest|by_duration:{_DURATION}", re.IGNORECASE)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{0,249}")

BOOLEAN, STRING, INT, LIST = 1, 2, 3, 7
"""Types of settings in a DescribeConfigsResponse."""

ReadSetting = Callable[[str, str], SettingValue]
"""A function that parses a given value. It takes the setting's name and the value, or raises ConfigError."""


class StoredSetting(Struct, frozen=True):
    """A setting of a group that is only stored, under Kafka's name and with Kafka's default.

    `read` parses a given value, or raises ConfigError. `config_type` is the type in a
    DescribeConfigsResponse. `of_coordinator` returns the coordinator's own value, which replaces Kafka's
    default. It is None if the coordinator has no such setting.
    """

    name: str
    default: str
    read: ReadSetting
    config_type: int = STRING
    of_coordinator: Callable[[CoordinatorConfig], str] | None = None

    def default_of(self, config: CoordinatorConfig) -> str:
        """Return the value that applies to groups without a value of their own."""
        return self.default if self.of_coordinator is None else self.of_coordinator(config)


def _number(name: str, default: int, *, at_least: int, at_most: int = INT32_MAX) -> StoredSetting:
    return StoredSetting(name, str(default), partial(whole_number, at_least=at_least, at_most=at_most), INT)


def _offset_reset(name: str, given: str) -> str:
    if not _OFFSET_RESET.fullmatch(given):
        raise ConfigError(
            f"{name} must be earliest, latest or by_duration:<ISO 8601 duration>, not {given!r}"
        )
    return given


def _topic_name(name: str, given: str) -> str:
    if given.startswith("__") or not _TOPIC.fullmatch(given):
        raise ConfigError(f"{name} must be the name of a topic that does not begin with '__', not {given!r}")
    return given


STORED_ONLY_SETTINGS = (
    StoredSetting(
        "errors.deadletterqueue.copy.record.enable", "false", partial(_one_of, known=_BOOLEANS), BOOLEAN
    ),
    StoredSetting("errors.deadletterqueue.topic.name", "", _topic_name),
    StoredSetting("share.auto.offset.reset", "latest", _offset_reset),
    _number("share.delivery.count.limit", 5, at_least=2, at_most=10),
    StoredSetting(
        "share.isolation.level",
        "read_uncommitted",
        partial(_one_of, known=("read_committed", "read_uncommitted")),
    ),
    _number("share.partition.max.record.locks", 2_000, at_least=100, at_most=4_000),
    _number("share.record.lock.duration.ms", 30_000, at_least=15_000, at_most=60_000),
    StoredSetting("share.renew.acknowledge.enable", "true", partial(_one_of, known=_BOOLEANS), BOOLEAN),
    StoredSetting("streams.assignor.name", "sticky", partial(_one_of, known=("sticky",))),
    StoredSetting(
        "streams.rack.aware.assignment.tags",
        "",
        _tags,
        LIST,
        lambda config: config.group_streams_rack_aware_assignment_tags,
    ),
)
