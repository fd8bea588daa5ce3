"""The coordinator's settings: Kafka's under Kafka's names, RocketMQ's with the prefix `rocketmq.`.

A setting is an input of the core, as a request is: the same log under the same settings has the same outcome.
Source: GroupCoordinatorConfig.java, BrokerConfig.java.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from assignors.rocketmq.api import MessageRequestMode

INT32_MAX = 2**31 - 1

# Internal in Kafka: a new member is removed when its first JoinGroup was parked for this time.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000

# An assignment of 20,000 partitions by the coordinator takes 2 s at the worst (`sticky`, members that
# subscribe to different topics), one of 100,000 takes 25 s. The requests of all groups wait during that time.
GROUP_MAX_PARTITIONS = 20_000

# Only these times can be set. The other settings of a RocketMQ broker have RocketMQ's defaults.
_ROCKETMQ_SETTINGS = {
    "rocketmq.channel.expired.timeout.ms": "channel_expired_timeout_ms",
    "rocketmq.lock.max.live.ms": "lock_max_live_ms",
    "rocketmq.scan.interval.ms": "scan_interval_ms",
}


# RocketMQ has no setting for the timeout of producers. Source: ProducerManager.CHANNEL_EXPIRED_TIMEOUT.
PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A RocketMQ broker's settings with RocketMQ's defaults. Times are in milliseconds.

    `scan_interval_ms` is the time between two scans for silent connections (ClientHousekeepingService).
    `lock_max_live_ms` is the lifetime of a queue's lock (rocketmq.broker.rebalance.lockMaxLiveTime).
    """

    broker_name: str = "broker"
    channel_expired_timeout_ms: int = 120_000
    scan_interval_ms: int = 10_000
    lock_max_live_ms: int = 60_000
    notify_consumer_ids_changed_enable: bool = True
    enable_fast_channel_event_process: bool = False
    reject_pull_consumer_enable: bool = False
    server_load_balancer_enable: bool = True
    default_message_request_mode: MessageRequestMode = MessageRequestMode.PULL
    default_pop_share_queue_num: int = -1


class ConfigError(ValueError):
    """A setting is unknown, is not a number, or is out of bounds."""


def _setting(name: str, default: int, *, at_least: int = -(2**31)) -> int:
    value: int = field(default=default, metadata={"name": name, "at_least": at_least})
    return value


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """All settings that the core reads. Times are in milliseconds, sizes in members.

    `group_max_partitions` is not a setting of Kafka. It bounds the number of partitions that the coordinator
    assigns to one group.

    `member_id_namespace` is the secret UUID from which member ids are derived. It is pinned in the checkpoint
    and never published.
    """

    group_min_session_timeout_ms: int = _setting("group.min.session.timeout.ms", 6_000)
    group_max_session_timeout_ms: int = _setting("group.max.session.timeout.ms", 1_800_000)
    group_initial_rebalance_delay_ms: int = _setting("group.initial.rebalance.delay.ms", 3_000)
    group_max_size: int = _setting("group.max.size", INT32_MAX, at_least=1)
    group_consumer_session_timeout_ms: int = _setting("group.consumer.session.timeout.ms", 45_000, at_least=1)
    group_consumer_min_session_timeout_ms: int = _setting(
        "group.consumer.min.session.timeout.ms", 45_000, at_least=1
    )
    group_consumer_max_session_timeout_ms: int = _setting(
        "group.consumer.max.session.timeout.ms", 60_000, at_least=1
    )
    group_consumer_heartbeat_interval_ms: int = _setting(
        "group.consumer.heartbeat.interval.ms", 5_000, at_least=1
    )
    group_consumer_min_heartbeat_interval_ms: int = _setting(
        "group.consumer.min.heartbeat.interval.ms", 5_000, at_least=1
    )
    group_consumer_max_heartbeat_interval_ms: int = _setting(
        "group.consumer.max.heartbeat.interval.ms", 15_000, at_least=1
    )
    group_consumer_assignment_interval_ms: int = _setting(
        "group.consumer.assignment.interval.ms", 1_000, at_least=0
    )
    group_consumer_min_assignment_interval_ms: int = _setting(
        "group.consumer.min.assignment.interval.ms", 0, at_least=0
    )
    group_consumer_max_assignment_interval_ms: int = _setting(
        "group.consumer.max.assignment.interval.ms", 15_000, at_least=0
    )
    group_consumer_max_size: int = _setting("group.consumer.max.size", INT32_MAX, at_least=1)
    group_max_partitions: int = _setting("group.max.partitions", GROUP_MAX_PARTITIONS, at_least=1)
    offset_metadata_max_bytes: int = _setting("offset.metadata.max.bytes", 4_096)
    offsets_retention_minutes: int = _setting("offsets.retention.minutes", 10_080, at_least=1)
    offsets_retention_check_interval_ms: int = _setting(
        "offsets.retention.check.interval.ms", 600_000, at_least=1
    )
    member_id_namespace: str = field(default="00000000-0000-0000-0000-000000000000", repr=False)
    rocketmq: BrokerConfig = field(default_factory=BrokerConfig)

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    def with_settings(self, settings: Mapping[str, str | int]) -> "CoordinatorConfig":
        """Return a copy of this configuration with `settings` applied. The keys are dotted names.

        Raises ConfigError with the setting, the given value and the allowed values.
        """
        known = {f.metadata["name"]: f for f in fields(self) if f.metadata}
        changes: dict[str, Any] = {}
        rocketmq: dict[str, Any] = {}
        for name, given in settings.items():
            if name in _ROCKETMQ_SETTINGS:
                rocketmq[_ROCKETMQ_SETTINGS[name]] = _checked(name, given, at_least=1)
            elif name in known:
                changes[known[name].name] = _checked(name, given, known[name].metadata["at_least"])
            else:
                names = ", ".join(sorted([*known, *_ROCKETMQ_SETTINGS]))
                raise ConfigError(f"unknown setting {name!r}; known are: {names}")
        changed = replace(self, rocketmq=replace(self.rocketmq, **rocketmq), **changes)
        if changed.group_min_session_timeout_ms > changed.group_max_session_timeout_ms:
            raise ConfigError(
                f"group.min.session.timeout.ms ({changed.group_min_session_timeout_ms}) is above "
                f"group.max.session.timeout.ms ({changed.group_max_session_timeout_ms}): "
                "no member could ever join"
            )
        return changed

    def settings(self) -> dict[str, int]:
        """Return every setting by its dotted name."""
        kafka = {f.metadata["name"]: getattr(self, f.name) for f in fields(self) if f.metadata}
        return kafka | {name: getattr(self.rocketmq, field) for name, field in _ROCKETMQ_SETTINGS.items()}


def _checked(name: str, given: str | int, at_least: int) -> int:
    try:
        value = int(given)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number, not {given!r}") from None
    if not at_least <= value <= INT32_MAX:
        raise ConfigError(f"{name} must be from {at_least} to {INT32_MAX}, not {value}")
    return value
