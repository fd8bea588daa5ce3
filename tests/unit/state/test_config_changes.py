"""The periods of a log, in each of which one configuration is in force. Properties have the steps."""

from dataclasses import replace

from state.config import ConfigChange, Configs, CoordinatorConfig
from state.protocol import Outage
from state.timeline import NEVER_MS, Period, Periods

SLOW, FAST = CoordinatorConfig(group_max_size=1), CoordinatorConfig(group_max_size=2)
CHANGE_MS = 50_000
TO_FAST = [ConfigChange(CHANGE_MS, FAST)]
OUTAGE = Outage(CHANGE_MS, 90_000)


def test_last_configuration_change_of_a_time_counts() -> None:
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
