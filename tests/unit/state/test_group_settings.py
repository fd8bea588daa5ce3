"""The settings in force for a group: its own ones within the coordinator's bounds, else the coordinator's."""

from state.config import CoordinatorConfig
from state.kafka.consumer.settings import SETTINGS
from state.kafka.modern.settings import GroupSettings


def test_a_group_without_its_own_has_the_coordinators() -> None:
    """Row CF21: also after the coordinator's have changed."""
    config = CoordinatorConfig()
    assert SETTINGS.in_force({}, config) == GroupSettings(45_000, 5_000, 1_000)
    changed = config.with_settings({"group.consumer.assignment.interval.ms": 0})
    assert SETTINGS.in_force({}, changed) == GroupSettings(45_000, 5_000, 0)


def test_a_value_out_of_the_bounds_of_today_is_brought_into_them() -> None:
    """Rows CF19 to CF21 (KIP-1240)."""
    own = {
        "consumer.session.timeout.ms": 60_000,
        "consumer.heartbeat.interval.ms": 5_000,
        "consumer.assignment.interval.ms": 7,
    }
    config = CoordinatorConfig()
    assert SETTINGS.in_force(own, config) == GroupSettings(60_000, 5_000, 7)
    narrow = config.with_settings(
        {
            "group.consumer.max.session.timeout.ms": 50_000,
            "group.consumer.heartbeat.interval.ms": 6_000,
            "group.consumer.min.heartbeat.interval.ms": 6_000,
            "group.consumer.min.assignment.interval.ms": 100,
        }
    )
    assert SETTINGS.in_force(own, narrow) == GroupSettings(50_000, 6_000, 100)
