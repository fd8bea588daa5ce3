"""Which groups hurt by their metrics over time, which rightly do not, and after how long it is known."""

import pytest

from tests.harness.lag_stories import (
    FALLING_BEHIND,
    GAUGES,
    NO_OWNER,
    STORIES,
    STUCK,
    found_after_s,
    recorded,
)

FOUND_S = {
    "stuck": (STUCK, 130),
    "poison record": (STUCK, 130),
    "slow": (FALLING_BEHIND, 540),
    "no members": (NO_OWNER, 120),
}
"""Seconds from the turn of a story until the metrics show it; docs/lag.md has them."""


@pytest.mark.parametrize("name", STORIES)
def test_each_lag_story_raises_only_its_gauge_and_keeps_it_raised(name: str) -> None:
    series = recorded(STORIES[name])
    gauge, after_s = FOUND_S.get(name, ("", None))
    assert {each: found_after_s(series[each]) for each in GAUGES} == {
        each: after_s if each == gauge else None for each in GAUGES
    }
    if gauge:
        begin = series[gauge].index(1)
        assert set(series[gauge][begin:]) == {1}
