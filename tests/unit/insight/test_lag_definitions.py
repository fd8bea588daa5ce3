"""The definitions of lag: never negative, monotone, clamped; what is stuck, falls behind or has no owner, and
what is rightly none of these.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from insight.lag.definitions import (
    BEHIND_MS,
    STEPS,
    STUCK_MS,
    WINDOW_MS,
    PartitionLag,
    Troubles,
    lag_ms,
    lag_records,
    rises,
    troubles,
)
from insight.lag.log import LogBounds
from insight.lag.owners import UNKNOWN, Ownership
from insight.lag.trend import STEP_MS, Trend

P = ("orders", 0)
NOW_MS = 100_000_000
OWNED = Ownership(0, {P: "worker-1"}, frozenset({"orders"}))
NOBODYS = Ownership(0, {}, frozenset({"orders"}))
OFFSETS = st.integers(0, 2**63 - 1)
BOUNDS = st.tuples(OFFSETS, OFFSETS).map(lambda two: LogBounds(min(two), max(two)))
STUCK = PartitionLag(5, NOW_MS, 0, records=7, ms=9_000, grew_ms=NOW_MS - STUCK_MS - 1)


def of(lag: PartitionLag, ownership: Ownership = OWNED, now_ms: int = NOW_MS) -> Troubles:
    return troubles({P: lag}, ownership, now_ms)


@given(OFFSETS, BOUNDS)
def test_a_lag_in_records_is_0_at_least_and_what_the_log_has_at_most(committed: int, log: LogBounds) -> None:
    assert 0 <= lag_records(committed, log) <= log.latest - log.earliest


@given(OFFSETS, OFFSETS, BOUNDS)
def test_a_lag_in_records_falls_with_the_committed_offset(one: int, other: int, log: LogBounds) -> None:
    low, high = sorted((one, other))
    assert lag_records(low, log) - lag_records(high, log) in range(high - low + 1)


@given(OFFSETS, BOUNDS, st.integers(0, 2**20))
def test_a_lag_in_records_grows_with_the_end(committed: int, log: LogBounds, more: int) -> None:
    grown = LogBounds(log.earliest, log.latest + more)
    assert lag_records(committed, log) <= lag_records(committed, grown) <= lag_records(committed, log) + more


@given(BOUNDS, st.data())
def test_records_that_are_gone_are_nothing_to_consume(log: LogBounds, data: st.DataObject) -> None:
    committed = data.draw(st.integers(0, log.earliest))
    assert lag_records(committed, log) == log.latest - log.earliest


def test_a_lag_in_records_is_counted_to_the_end_of_the_log() -> None:
    log = LogBounds(10, 100)
    assert [lag_records(committed, log) for committed in (0, 10, 42, 100, 101)] == [90, 90, 58, 0, 0]


@given(st.integers(-1, 2**62), st.integers(-1, 2**62), st.integers(0, 2**40))
def test_a_lag_in_time_is_not_negative_and_falls_with_the_time_of_the_record(
    next_ms: int, newest_ms: int, later_ms: int
) -> None:
    assert 0 <= lag_ms(next_ms + later_ms, newest_ms) <= lag_ms(next_ms, newest_ms)
    assert lag_ms(newest_ms, newest_ms) == 0


def test_an_offset_that_stands_while_records_come_to_a_living_owner_is_stuck() -> None:
    assert of(STUCK) == Troubles(stuck={P: STUCK})


def test_a_poison_record_is_found_although_its_consumer_commits_again_and_again() -> None:
    """Its last commit is young, but of the same offset."""
    assert of(replace(STUCK, committed_ms=NOW_MS - 1, stands_since_ms=0)).stuck


def test_a_partition_is_stuck_when_a_record_has_waited_for_the_threshold() -> None:
    assert not of(replace(STUCK, grew_ms=NOW_MS - STUCK_MS)).stuck


def test_a_consumer_of_an_idle_producer_that_has_caught_up_is_not_stuck() -> None:
    assert of(PartitionLag(5, 0, 0, records=0, ms=0)) == Troubles()


def test_a_consumer_of_a_producer_that_was_idle_has_time_for_the_first_record() -> None:
    """The offset stands for a day, the record came a second ago."""
    assert of(PartitionLag(5, 0, 0, records=1, ms=0, grew_ms=NOW_MS - 1_000)) == Troubles()


def test_a_paused_consumer_whose_end_does_not_grow_is_not_stuck() -> None:
    assert of(PartitionLag(5, 0, 0, records=900, ms=60_000, grew_ms=None)) == Troubles()


def test_a_slow_consumer_that_commits_is_not_stuck() -> None:
    slow = PartitionLag(5, NOW_MS, NOW_MS - 30_000, records=900, ms=600_000, grew_ms=NOW_MS - 25_000)
    assert of(slow) == Troubles()


def test_a_partition_whose_owner_is_gone_or_unknown_is_not_stuck() -> None:
    assert not of(STUCK, NOBODYS).stuck
    assert of(STUCK, UNKNOWN) == Troubles()


def test_a_lag_whose_end_is_not_known_is_no_trouble() -> None:
    assert of(PartitionLag(5, 0, 0), NOBODYS) == Troubles()


def test_records_that_wait_where_no_member_holds_the_partition_have_no_owner() -> None:
    waiting = PartitionLag(5, NOW_MS - STUCK_MS - 1, 0, records=3)
    assert of(waiting, NOBODYS) == Troubles(without_owner={P: waiting})
    assert of(waiting, replace(NOBODYS, topics=None)).without_owner, "no members"
    assert of(waiting, OWNED) == Troubles()


def test_a_group_that_has_just_settled_or_that_still_commits_is_given_time() -> None:
    waiting = PartitionLag(5, NOW_MS - STUCK_MS, 0, records=3)
    assert of(waiting, NOBODYS) == Troubles(), "it commits without joining"
    left = replace(NOBODYS, settled_ms=NOW_MS - STUCK_MS)
    assert of(replace(waiting, committed_ms=0), left) == Troubles(), "it is started again"


def test_an_offset_of_a_topic_that_the_members_gave_up_needs_no_owner() -> None:
    waiting = PartitionLag(5, 0, 0, records=3)
    assert of(waiting, replace(NOBODYS, topics=frozenset({"payments"}))) == Troubles()
    assert of(waiting, replace(NOBODYS, topics=frozenset())) == Troubles(), "their topics are not known"


def test_a_lag_that_rises_although_the_group_commits_falls_behind() -> None:
    slow = PartitionLag(5, NOW_MS, NOW_MS - 1, records=9, ms=BEHIND_MS + 1, grew_ms=NOW_MS, rises=True)
    assert of(slow) == Troubles(falling_behind={P: slow})
    assert of(replace(slow, ms=None)).falling_behind, "it is older than the first look"
    assert of(replace(slow, ms=BEHIND_MS)) == Troubles()
    assert of(replace(slow, rises=False)) == Troubles()
    assert of(replace(slow, stands_since_ms=NOW_MS - WINDOW_MS)) == Troubles(), "nothing is committed"


def trend(lags: list[int], begin_ms: int = 0, step_ms: int = 5_000) -> Trend:
    found = Trend()
    for number, records in enumerate(lags):
        found.add(records, begin_ms + number * step_ms)
    return found


WINDOW = WINDOW_MS // 5_000


def test_a_consumer_at_half_the_producers_speed_rises_over_the_ups_and_downs_of_its_commits() -> None:
    """50 records come and 25 are consumed each five seconds, and each half minute it commits."""
    assert trend([50 * n - 150 * (n // 6) for n in range(WINDOW)]).rises


def test_a_consumer_that_keeps_up_does_not_rise() -> None:
    assert not trend([50 * (n % 6) for n in range(WINDOW)]).rises
    assert not trend([9_000 - n for n in range(WINDOW)]).rises
    assert not trend([0] * 60 + [100_000 - n for n in range(WINDOW)]).rises, "a burst that it works off"


def test_a_rise_needs_the_whole_window_without_a_gap() -> None:
    rising = [*range(WINDOW)]
    assert not trend(rising[: -WINDOW // STEPS]).rises
    whole = trend(rising)
    assert whole.rises
    whole.add(10_000, WINDOW_MS + 2 * STEP_MS)
    assert not whole.rises


@given(st.lists(st.integers(0, 10**6), min_size=STEPS, max_size=3 * STEPS), st.integers(0, 10**6))
def test_a_trend_is_that_of_its_last_steps_and_not_of_the_level(lags: list[int], level: int) -> None:
    ours = trend(lags, step_ms=STEP_MS)
    assert ours.rises == trend([lag + level for lag in lags[-STEPS:]], step_ms=STEP_MS).rises
    assert ours.rises == rises(lags[-STEPS:], lags[-STEPS:])


@given(st.lists(st.integers(0, 10**6), min_size=STEPS, max_size=STEPS))
def test_what_rises_does_not_rise_backwards(lags: list[int]) -> None:
    assert not (rises(lags, lags) and rises(lags[::-1], lags[::-1]))
