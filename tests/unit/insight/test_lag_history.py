"""The bounds of logs over time: when records came, with bounded samples."""

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from insight.lag import log_history
from insight.lag.log import LogBounds, Partition
from insight.lag.log_history import COARSENESS, FORGET_MS, MAX_SAMPLES, LogHistory
from tests.harness.examples import examples

P = ("orders", 0)
STEP_MS = 5_000
growth = st.lists(st.sampled_from((0, 0, 1, 3, 100)), min_size=1, max_size=600)


def at(end: int, earliest: int = 0) -> dict[Partition, LogBounds]:
    return {P: LogBounds(earliest, end)}


def taken(grown: list[int]) -> tuple[LogHistory, list[int]]:
    ends, logs = [1], LogHistory()
    for more in grown:
        ends.append(ends[-1] + more)
    for number, end in enumerate(ends):
        logs.add(at(end), number * STEP_MS)
    return logs, ends


def test_the_bounds_are_those_of_the_last_look() -> None:
    logs = LogHistory()
    assert logs.bounds(P) is None
    logs.add(at(10), 0)
    logs.add(at(12, earliest=4), 1_000)
    assert logs.bounds(P) == LogBounds(4, 12)


def test_a_record_came_between_the_looks_without_it_and_with_it() -> None:
    logs = LogHistory()
    for at_ms, end in ((0, 10), (1_000, 10), (2_000, 12), (3_000, 15)):
        logs.add(at(end), at_ms)
    assert [logs.came_ms(P, offset) for offset in (10, 13, 15)] == [(1_000, 2_000), (2_000, 3_000), None]
    assert logs.newest_ms(P) == 3_000


def test_of_a_record_older_than_the_first_look_only_the_time_when_it_was_seen_is_known() -> None:
    logs = LogHistory()
    logs.add(at(10), 1_000)
    logs.add(at(10), 9_000)
    assert logs.came_ms(P, 9) == (None, 1_000)
    assert logs.came_ms(("other", 0), 9) is None


def test_an_end_that_grew_certainly_after_a_time_is_told_from_one_that_may_have_grown_before() -> None:
    logs = LogHistory()
    for at_ms, end in ((0, 10), (1_000, 10), (2_000, 12), (3_000, 12), (4_000, 13)):
        logs.add(at(end), at_ms)
    assert [logs.grew_ms(P, since_ms) for since_ms in (-1, 1_000, 1_001, 3_000, 3_001)] == [
        2_000,
        2_000,
        4_000,
        4_000,
        None,
    ]
    assert logs.grew_ms(("other", 0), 0) is None


def test_a_topic_made_anew_begins_anew() -> None:
    logs = LogHistory()
    for at_ms, end in ((0, 10), (1_000, 20), (2_000, 5)):
        logs.add(at(end), at_ms)
    assert (logs.bounds(P), logs.came_ms(P, 4)) == (LogBounds(0, 5), (None, 2_000))


def test_a_partition_without_a_leader_for_a_moment_is_remembered_and_one_that_is_gone_is_not() -> None:
    logs = LogHistory()
    logs.add(at(10), 0)
    logs.add({}, FORGET_MS - 1)
    assert logs.bounds(P) is not None
    logs.add({}, FORGET_MS)
    assert logs.bounds(P) is None


@examples(100)
@given(growth, st.data())
def test_a_record_came_between_the_two_times(grown: list[int], data: st.DataObject) -> None:
    logs, ends = taken(grown)
    offset = data.draw(st.integers(0, ends[-1] + 1))
    came = bisect_right(ends, offset)  # the number of the first look with the record
    found = logs.came_ms(P, offset)
    if came == len(ends):
        assert found is None
    else:
        assert found is not None
        assert (found[0] is None or found[0] <= (came - 1) * STEP_MS) and found[1] >= came * STEP_MS


@examples(100)
@given(growth, st.data())
def test_the_time_of_a_record_is_known_to_a_third_of_its_age(grown: list[int], data: st.DataObject) -> None:
    logs, ends = taken(grown)
    offset = data.draw(st.integers(ends[0], ends[-1]))
    found, true = logs.came_ms(P, offset), bisect_right(ends, offset)
    if true < len(ends):
        assert found is not None and found[0] is not None
        age_ms = (len(ends) - true) * STEP_MS
        assert found[1] - found[0] - STEP_MS <= age_ms / COARSENESS


def test_the_samples_of_a_week_are_bounded() -> None:
    samples = log_history._Samples()
    for number in range(7 * 24 * 3600 // 5):
        samples.add(number, number * STEP_MS)
        assert len(samples.ends) <= MAX_SAMPLES
    assert samples.ends[0] == 0
