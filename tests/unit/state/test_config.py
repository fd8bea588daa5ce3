"""The settings: Kafka's names, defaults and bounds, and the errors for wrong values."""

import pytest

from state.config import INT32_MAX, ConfigError, CoordinatorConfig


def test_defaults_are_those_of_kafka_and_rocketmq() -> None:
    assert CoordinatorConfig().settings() == {
        "group.initial.rebalance.delay.ms": 3_000,
        "group.max.session.timeout.ms": 1_800_000,
        "group.max.partitions": 20_000,
        "group.max.size": INT32_MAX,
        "group.min.session.timeout.ms": 6_000,
        "offset.metadata.max.bytes": 4_096,
        "offsets.retention.check.interval.ms": 600_000,
        "offsets.retention.minutes": 10_080,
        "rocketmq.channel.expired.timeout.ms": 120_000,
        "rocketmq.lock.max.live.ms": 60_000,
        "rocketmq.scan.interval.ms": 10_000,
    }


def test_settings_are_taken_as_text_or_number_and_the_rest_stays() -> None:
    config = CoordinatorConfig().with_settings({"group.max.size": "7", "group.initial.rebalance.delay.ms": 0})
    assert config.group_max_size == 7
    assert config.group_initial_rebalance_delay_ms == 0
    assert config.group_min_session_timeout_ms == 6_000
    assert CoordinatorConfig().with_settings(config.settings()) == config
    quick = CoordinatorConfig().with_settings({"rocketmq.scan.interval.ms": "500"})
    assert (quick.rocketmq.scan_interval_ms, quick.rocketmq.lock_max_live_ms) == (500, 60_000)


def test_the_namespace_is_no_setting_and_not_shown() -> None:
    config = CoordinatorConfig(member_id_namespace="11111111-1111-1111-1111-111111111111")
    assert config.with_settings({"group.max.size": 1}).member_id_namespace == config.member_id_namespace
    assert "1111" not in repr(config)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"group.max.sise": "1"}, "unknown setting 'group.max.sise'; known are: group.initial"),
        ({"group.max.size": "many"}, "group.max.size must be a whole number, not 'many'"),
        ({"group.max.size": "1.5"}, "group.max.size must be a whole number, not '1.5'"),
        ({"rocketmq.scan.interval.ms": 0}, "rocketmq.scan.interval.ms must be from 1 to 2147483647, not 0"),
        ({"group.max.size": 0}, "group.max.size must be from 1 to 2147483647, not 0"),
        ({"group.min.session.timeout.ms": 2**31}, "must be from -2147483648 to 2147483647, not 2147483648"),
        (
            {"group.min.session.timeout.ms": 10, "group.max.session.timeout.ms": 9},
            r"group.min.session.timeout.ms \(10\) is above group.max.session.timeout.ms \(9\)",
        ),
        ({"member.id.namespace": "x"}, "unknown setting 'member.id.namespace'"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str | int], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        CoordinatorConfig().with_settings(settings)
