"""The bounds of logs over time: when records came, with bounded samples."""

from bisect import bisect_right
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kafka_why.lag import log_history
from kafka_why.lag.definitions import LogBounds
from kafka_why.lag.log_history import COARSENESS, FORGET_MS, MAX_SAMPLES, LogHistory
from tests.harness.examples import examples

P = ("orders", 0)
STEP_MS = 5_000
growth = st.lists(st.sampled_from((0, 0, 1, 3, 100)), min_size=1, max_size=600)


def looked(*ends: tuple[int, int]) -> LogHistory:
    """Looks at these times with these ends."""
    logs = LogHistory()
    for at_ms, end in ends:
        logs.add({P: LogBounds(0, end)}, at_ms)
    return logs


def test_log_end_growth_is_dated_to_the_first_poll_certainly_after_the_time() -> None:
    logs = looked((0, 10), (1_000, 10), (2_000, 12), (3_000, 12), (4_000, 13))
    since_ms = (-1, 1_000, 1_001, 3_000, 3_001)
    assert [logs.grew_ms(P, ms) for ms in since_ms] == [2_000, 2_000, 4_000, 4_000, None]
    assert logs.grew_ms(("other", 0), 0) is None


def test_recreated_topic_starts_a_new_lag_history() -> None:
    logs = looked((0, 10), (1_000, 20), (2_000, 5))
    assert (logs.bounds(P), logs.came(P, 4)) == (LogBounds(0, 5), (None, (4, 2_000)))


def test_history_of_a_missing_partition_is_kept_for_a_while_and_then_dropped() -> None:
    logs = looked((0, 10))
    logs.add({}, FORGET_MS - 1)
    assert logs.bounds(P) is not None
    logs.add({}, FORGET_MS)
    assert logs.bounds(P) is None


@examples(200)
@given(growth, st.data())
def test_record_arrival_bounds_are_a_third_of_its_age_apart(grown: list[int], data: st.DataObject) -> None:
    ends = [*accumulate(grown, initial=1)]
    logs = looked(*((number * STEP_MS, end) for number, end in enumerate(ends)))
    offset = data.draw(st.integers(0, ends[-1] + 1))
    came = bisect_right(ends, offset)  # the number of the first look with the record
    found = logs.came(P, offset)
    assert (found is None) == (came == len(ends))
    if found is not None:
        before, last = found
        assert last.ms >= came * STEP_MS
        assert (before is None) == (offset < ends[0])
        if before is not None:
            assert before.ms <= (came - 1) * STEP_MS
            age_ms = (len(ends) - came) * STEP_MS
            assert last.ms - before.ms - STEP_MS <= age_ms / COARSENESS


def test_samples_of_a_week_are_bounded() -> None:
    samples = log_history._Samples()
    for number in range(7 * 24 * 3600 // 5):
        samples.add(number, number * STEP_MS)
        assert len(samples.ends) <= MAX_SAMPLES
    assert samples.ends[0] == 0
