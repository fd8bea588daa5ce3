"""The settings: Kafka's names, defaults and bounds, and the errors for wrong values."""

import json
from dataclasses import replace

import pytest

from kafka_why.numbers import INT32_MAX
from state.config import ConfigChange, ConfigError, Configs, CoordinatorConfig, MigrationPolicy
from state.protocol import NEVER_MS, Outage
from state.timeline import Period, Periods


def test_defaults_are_those_of_kafka_and_rocketmq() -> None:
    assert CoordinatorConfig().settings() == {
        "coordinator.regex.resolve.at.once": "true",
        "coordinator.share.assign.at.once": "true",
        "coordinator.streams.topology.replace.when.empty": "false",
        "group.consumer.assignment.interval.ms": 1_000,
        "group.consumer.assignors": "uniform,range",
        "group.consumer.heartbeat.interval.ms": 5_000,
        "group.consumer.max.assignment.interval.ms": 15_000,
        "group.consumer.max.heartbeat.interval.ms": 15_000,
        "group.consumer.max.session.timeout.ms": 60_000,
        "group.consumer.max.size": INT32_MAX,
        "group.consumer.migration.policy": "bidirectional",
        "group.consumer.min.assignment.interval.ms": 0,
        "group.consumer.min.heartbeat.interval.ms": 5_000,
        "group.consumer.min.session.timeout.ms": 45_000,
        "group.consumer.regex.refresh.interval.ms": 600_000,
        "group.consumer.session.timeout.ms": 45_000,
        "group.coordinator.rebalance.protocols": "classic,consumer,streams",
        "group.initial.rebalance.delay.ms": 3_000,
        "group.max.session.timeout.ms": 1_800_000,
        "group.max.partitions": 20_000,
        "group.max.size": INT32_MAX,
        "group.min.session.timeout.ms": 6_000,
        "group.share.assignment.interval.ms": 1_000,
        "group.share.heartbeat.interval.ms": 5_000,
        "group.share.max.assignment.interval.ms": 15_000,
        "group.share.max.heartbeat.interval.ms": 15_000,
        "group.share.max.session.timeout.ms": 60_000,
        "group.share.max.size": 200,
        "group.share.min.assignment.interval.ms": 0,
        "group.share.min.heartbeat.interval.ms": 5_000,
        "group.share.min.session.timeout.ms": 45_000,
        "group.share.session.timeout.ms": 45_000,
        "group.streams.acceptable.recovery.lag": 10_000,
        "group.streams.assignment.interval.ms": 1_000,
        "group.streams.heartbeat.interval.ms": 5_000,
        "group.streams.initial.rebalance.delay.ms": 3_000,
        "group.streams.max.assignment.interval.ms": 15_000,
        "group.streams.max.heartbeat.interval.ms": 15_000,
        "group.streams.max.session.timeout.ms": 60_000,
        "group.streams.max.size": INT32_MAX,
        "group.streams.max.standby.replicas": 2,
        "group.streams.min.assignment.interval.ms": 0,
        "group.streams.min.heartbeat.interval.ms": 5_000,
        "group.streams.min.session.timeout.ms": 45_000,
        "group.streams.min.task.offset.interval.ms": 15_000,
        "group.streams.num.standby.replicas": 0,
        "group.streams.rack.aware.assignment.tags": "",
        "group.streams.session.timeout.ms": 45_000,
        "group.streams.task.offset.interval.ms": 60_000,
        "offset.metadata.max.bytes": 4_096,
        "offsets.retention.check.interval.ms": 600_000,
        "offsets.retention.minutes": 10_080,
        "rocketmq.channel.expired.timeout.ms": 120_000,
        "rocketmq.lock.max.live.ms": 60_000,
        "rocketmq.scan.interval.ms": 10_000,
    }


def test_settings_are_accepted_as_text_or_number_and_others_keep_defaults() -> None:
    config = CoordinatorConfig().with_settings({"group.max.size": "7", "group.initial.rebalance.delay.ms": 0})
    assert config.group_max_size == 7
    assert config.group_initial_rebalance_delay_ms == 0
    assert config.group_min_session_timeout_ms == 6_000
    assert CoordinatorConfig().with_settings(config.settings()) == config
    quick = CoordinatorConfig().with_settings({"rocketmq.scan.interval.ms": "500"})
    assert (quick.rocketmq.scan_interval_ms, quick.rocketmq.lock_max_live_ms) == (500, 60_000)


def test_text_settings_are_parsed() -> None:
    """Rows CF1, CF9, CF10, RX3."""
    config = CoordinatorConfig().with_settings(
        {
            "coordinator.regex.resolve.at.once": "False",
            "group.consumer.assignors": "range, uniform",
            "group.consumer.migration.policy": "UPGRADE",
            "group.coordinator.rebalance.protocols": "classic",
        }
    )
    assert not config.regex_resolve_at_once
    assert config.group_consumer_assignors == ("range", "uniform")
    assert config.group_consumer_migration_policy is MigrationPolicy.UPGRADE
    assert not config.consumer_protocol
    assert CoordinatorConfig().with_settings(config.settings()) == config
    assert json.loads(json.dumps(config.settings())) == config.settings()


@pytest.mark.parametrize(
    ("policy", "upgrade", "downgrade"),
    [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_po1_po4_migration_policy_decides_upgrade_and_downgrade(
    policy: str, upgrade: bool, downgrade: bool
) -> None:
    """Rows PO1 to PO4."""
    config = CoordinatorConfig().with_settings({"group.consumer.migration.policy": policy})
    allowed = config.group_consumer_migration_policy
    assert (allowed.allows_upgrade, allowed.allows_downgrade) == (upgrade, downgrade)


def test_namespace_is_not_a_setting_and_not_shown() -> None:
    config = CoordinatorConfig(member_id_namespace="11111111-1111-1111-1111-111111111111")
    assert config.with_settings({"group.max.size": 1}).member_id_namespace == config.member_id_namespace
    assert "1111" not in repr(config)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"group.max.sise": "1"}, "unknown setting 'group.max.sise'; did you mean group.max.size or"),
        ({"group.max.size": "many"}, "group.max.size must be a whole number, not 'many'"),
        ({"group.max.size": "1.5"}, "group.max.size must be a whole number, not '1.5'"),
        ({"rocketmq.scan.interval.ms": 0}, "rocketmq.scan.interval.ms must be from 1 to 2147483647, not 0"),
        ({"group.max.size": 0}, "group.max.size must be from 1 to 2147483647, not 0"),
        ({"group.min.session.timeout.ms": 2**31}, "must be from -2147483648 to 2147483647, not 2147483648"),
        (
            {"group.min.session.timeout.ms": 10, "group.max.session.timeout.ms": 9},
            r"group.min.session.timeout.ms \(10\) is above group.max.session.timeout.ms \(9\)",
        ),
        (
            {"group.consumer.assignors": "uniform,cooperative-sticky"},
            "group.consumer.assignors has 'cooperative-sticky'; known are: uniform, range",
        ),
        ({"group.consumer.assignors": ""}, "group.consumer.assignors has ''; known are: uniform, range"),
        ({"group.consumer.assignors": "range,range"}, "group.consumer.assignors has a name twice"),
        (
            {"group.consumer.migration.policy": "both"},
            "must be one of bidirectional, upgrade, downgrade, disabled, not 'both'",
        ),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "must have 'classic'"),
        (
            {"group.coordinator.rebalance.protocols": "classic,share"},
            "has 'share'; known are: classic, consumer, streams",
        ),
        (
            {"group.streams.num.standby.replicas": 3},
            r"group.streams.num.standby.replicas \(3\) is above "
            r"group.streams.max.standby.replicas \(2\)",
        ),
        (
            {"group.streams.task.offset.interval.ms": 1},
            r"group.streams.min.task.offset.interval.ms \(15000\) is above "
            r"group.streams.task.offset.interval.ms \(1\)",
        ),
        ({"group.streams.rack.aware.assignment.tags": "a,a"}, "must be a list of different names"),
        ({"coordinator.regex.resolve.at.once": "1"}, "must be one of true, false, not '1'"),
        (
            {"group.consumer.session.timeout.ms": 44_999},
            r"group.consumer.session.timeout.ms \(44999\) is not from "
            r"group.consumer.min.session.timeout.ms \(45000\) to "
            r"group.consumer.max.session.timeout.ms \(60000\)",
        ),
        (
            {"group.consumer.min.heartbeat.interval.ms": 15_001},
            r"group.consumer.min.heartbeat.interval.ms \(15001\) is above "
            r"group.consumer.max.heartbeat.interval.ms \(15000\)",
        ),
        (
            {"group.consumer.assignment.interval.ms": 15_001},
            r"group.consumer.assignment.interval.ms \(15001\) is not from",
        ),
        (
            {"group.consumer.min.session.timeout.ms": 5_000, "group.consumer.session.timeout.ms": 5_000},
            r"heartbeat.interval.ms \(5000\) is not below group.consumer.session.timeout.ms \(5000\)",
        ),
        ({"member.id.namespace": "x"}, "unknown setting 'member.id.namespace'"),
        ({"group.share.max.size": 1_001}, "group.share.max.size must be from 1 to 1000, not 1001"),
        (
            {"group.share.session.timeout.ms": 70_000},
            r"group.share.session.timeout.ms \(70000\) is not from group.share.min.session.timeout.ms",
        ),
        (
            {"group.share.min.session.timeout.ms": 1, "group.share.session.timeout.ms": 5_000},
            r"group.share.heartbeat.interval.ms \(5000\) is not below group.share.session.timeout.ms",
        ),
    ],
)
def test_invalid_setting_is_named_in_the_error(settings: dict[str, str | int], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        CoordinatorConfig().with_settings(settings)


SLOW, FAST = CoordinatorConfig(group_max_size=1), CoordinatorConfig(group_max_size=2)
CHANGE_MS = 50_000
TO_FAST = [ConfigChange(CHANGE_MS, FAST)]
OUTAGE = Outage(CHANGE_MS, 90_000)


def test_last_of_two_simultaneous_configuration_changes_applies() -> None:
    configs = Configs(SLOW, TO_FAST).each(lambda config: replace(config, group_max_size=3))
    assert configs == Configs(
        replace(SLOW, group_max_size=3), [ConfigChange(CHANGE_MS, replace(FAST, group_max_size=3))]
    )
    configs = Configs(SLOW, [ConfigChange(5, SLOW), ConfigChange(5, FAST)])
    assert [configs.at(at_ms) for at_ms in (5, 6)] == [SLOW, FAST]


def test_periods_are_split_at_outages_and_configuration_changes() -> None:
    periods = Periods(Configs(SLOW, [*TO_FAST, ConfigChange(95_000, SLOW)]), [OUTAGE])
    before = Period(SLOW, 0, CHANGE_MS, OUTAGE)
    between = Period(FAST, CHANGE_MS + 1, 95_000, None)
    last = Period(SLOW, 95_001, NEVER_MS, None)
    found = [periods.at(ms) for ms in (0, CHANGE_MS, 90_000, 95_000, 95_001)]
    assert found == [before, before, between, between, last]
    assert Periods(Configs(SLOW), ()).at(5) == Period(SLOW, 0, NEVER_MS, None)
