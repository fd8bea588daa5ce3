"""The definitions of lag: never negative, monotone, clamped; what is stuck, falls behind or has no owner, and
what is rightly none of these.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.lag.definitions import (
    BEHIND_MS,
    STEPS,
    STUCK_MS,
    UNKNOWN,
    WINDOW_MS,
    HarmfulLags,
    LogBounds,
    Ownership,
    PartitionLag,
    harmful_lags,
    lag_ms,
    lag_records,
    rises,
)
from kafka_why.lag.lag_book import STEP_MS, Trend

P = ("orders", 0)
NOW_MS = 100_000_000
OWNED = Ownership(0, {P: "worker-1"}, frozenset({"orders"}))
NOBODYS = Ownership(0, {}, frozenset({"orders"}))
OFFSETS = st.integers(0, 2**63 - 1)
BOUNDS = st.tuples(OFFSETS, OFFSETS).map(lambda two: LogBounds(min(two), max(two)))
STUCK = PartitionLag(5, NOW_MS, 0, records=7, ms=9_000, grew_ms=NOW_MS - STUCK_MS - 1)
WAITING = PartitionLag(5, NOW_MS - STUCK_MS - 1, 0, records=3)
BEHIND = PartitionLag(5, NOW_MS, NOW_MS - 1, records=9, ms=BEHIND_MS + 1, grew_ms=NOW_MS, rises=True)


@given(OFFSETS, OFFSETS, BOUNDS, st.integers(0, 2**20))
def test_lag_in_records_falls_with_commits_and_grows_with_the_log_end(
    one: int, other: int, log: LogBounds, more: int
) -> None:
    low, high = sorted((one, other))
    least, most = lag_records(high, log), lag_records(low, log)
    assert 0 <= least <= most <= log.latest - log.earliest
    assert most - least <= high - low
    assert most <= lag_records(low, LogBounds(log.earliest, log.latest + more)) <= most + more


@given(st.integers(-1, 2**62), st.integers(-1, 2**62), st.integers(0, 2**40))
def test_lag_in_time_is_never_negative_and_falls_as_record_times_rise(
    next_ms: int, newest_ms: int, later_ms: int
) -> None:
    assert 0 <= lag_ms(next_ms + later_ms, newest_ms) <= lag_ms(next_ms, newest_ms)
    assert lag_ms(newest_ms, newest_ms) == 0


@pytest.mark.parametrize(
    ("lag", "ownership", "trouble"),
    [
        pytest.param(STUCK, OWNED, "stuck", id="records come to a living owner"),
        pytest.param(replace(STUCK, committed_ms=NOW_MS - 1), OWNED, "stuck", id="a poison record"),
        pytest.param(
            replace(STUCK, grew_ms=NOW_MS - STUCK_MS), OWNED, None, id="a record waits not yet so long"
        ),
        pytest.param(PartitionLag(5, 0, 0, records=0, ms=0), OWNED, None, id="caught up"),
        pytest.param(
            PartitionLag(5, 0, 0, records=1, ms=0, grew_ms=NOW_MS - 1_000),
            OWNED,
            None,
            id="the first record of a day",
        ),
        pytest.param(
            PartitionLag(5, 0, 0, records=900, ms=60_000), OWNED, None, id="paused, and nothing comes"
        ),
        pytest.param(
            PartitionLag(5, NOW_MS, NOW_MS - 30_000, records=900, ms=600_000, grew_ms=NOW_MS - 25_000),
            OWNED,
            None,
            id="slow, and commits",
        ),
        pytest.param(STUCK, NOBODYS, None, id="its owner is gone"),
        pytest.param(STUCK, UNKNOWN, None, id="its owner is unknown"),
        pytest.param(PartitionLag(5, 0, 0), NOBODYS, None, id="its end is unknown"),
        pytest.param(WAITING, NOBODYS, "without_owner", id="no member holds it"),
        pytest.param(WAITING, replace(NOBODYS, topics=None), "without_owner", id="no members"),
        pytest.param(WAITING, OWNED, None, id="a member holds it"),
        pytest.param(
            replace(WAITING, committed_ms=NOW_MS - STUCK_MS), NOBODYS, None, id="it commits without joining"
        ),
        pytest.param(WAITING, replace(NOBODYS, settled_ms=NOW_MS - STUCK_MS), None, id="it is started again"),
        pytest.param(WAITING, replace(NOBODYS, topics=frozenset({"payments"})), None, id="a topic given up"),
        pytest.param(WAITING, replace(NOBODYS, topics=frozenset()), None, id="topics are unknown"),
        pytest.param(BEHIND, OWNED, "falling_behind", id="the lag rises although the group commits"),
        pytest.param(replace(BEHIND, ms=None), OWNED, "falling_behind", id="it is older than the first look"),
        pytest.param(replace(BEHIND, ms=BEHIND_MS), OWNED, None, id="not yet so far behind"),
        pytest.param(replace(BEHIND, rises=False), OWNED, None, id="the lag does not rise"),
        pytest.param(
            replace(BEHIND, stands_since_ms=NOW_MS - WINDOW_MS), OWNED, None, id="nothing is committed"
        ),
    ],
)
def test_lag_problem_of_a_partition_depends_on_lag_and_owner(
    lag: PartitionLag, ownership: Ownership, trouble: str | None
) -> None:
    expected = HarmfulLags() if trouble is None else HarmfulLags(**{trouble: {P: lag}})
    assert harmful_lags({P: lag}, ownership, NOW_MS) == expected


def trend(lags: list[int], begin_ms: int = 0, step_ms: int = 5_000) -> Trend:
    found = Trend()
    for number, records in enumerate(lags):
        found.add(records, begin_ms + number * step_ms)
    return found


WINDOW = WINDOW_MS // 5_000


RISING = [*range(WINDOW)]


@pytest.mark.parametrize(
    ("lags", "is_so"),
    [
        pytest.param(
            [50 * n - 150 * (n // 6) for n in range(WINDOW)], True, id="half as fast as records come"
        ),
        pytest.param([50 * (n % 6) for n in range(WINDOW)], False, id="commits, and keeps up"),
        pytest.param([9_000 - n for n in range(WINDOW)], False, id="catches up"),
        pytest.param([0] * 60 + [100_000 - n for n in range(WINDOW)], False, id="works a burst off"),
        pytest.param(RISING, True, id="a whole window"),
        pytest.param(RISING[: -WINDOW // STEPS], False, id="less than a window"),
    ],
)
def test_lag_counts_as_rising_only_over_a_whole_window(lags: list[int], is_so: bool) -> None:
    assert trend(lags).rises is is_so


def test_rising_lag_needs_a_window_without_a_gap() -> None:
    whole = trend(RISING)
    whole.add(10_000, WINDOW_MS + 2 * STEP_MS)
    assert not whole.rises


@given(st.lists(st.integers(0, 10**6), min_size=STEPS, max_size=3 * STEPS), st.integers(0, 10**6))
def test_lag_trend_follows_its_last_steps_and_not_its_level(lags: list[int], level: int) -> None:
    ours = trend(lags, step_ms=STEP_MS)
    assert ours.rises == trend([lag + level for lag in lags[-STEPS:]], step_ms=STEP_MS).rises
    assert ours.rises == rises(lags[-STEPS:], lags[-STEPS:])
