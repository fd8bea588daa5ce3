"""End offsets over time: lag in records and time, with bounded samples."""

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from insight.page import end_offsets
from insight.page.end_offsets import COARSENESS, FORGET_MS, MAX_SAMPLES, EndOffsets
from tests.harness.examples import examples

P = ("orders", 0)
STEP_MS = 5_000
growth = st.lists(st.sampled_from((0, 0, 1, 3, 100)), min_size=1, max_size=600)


def taken(grown: list[int]) -> tuple[EndOffsets, list[int]]:
    ends, offsets = [1], EndOffsets()
    for more in grown:
        ends.append(ends[-1] + more)
    for number, end in enumerate(ends):
        offsets.add({P: end}, number * STEP_MS)
    return offsets, ends


def test_a_lag_is_the_number_of_records_to_the_end() -> None:
    offsets = EndOffsets()
    offsets.add({P: 10}, 0)
    assert (offsets.lag(P, 4), offsets.lag(P, 10), offsets.lag(P, 12)) == (6, 0, 0)
    assert offsets.lag(("other", 0), 4) is None


def test_the_time_of_a_lag_is_when_the_offset_was_last_the_end() -> None:
    offsets = EndOffsets()
    for at_ms, end in ((0, 10), (1_000, 10), (2_000, 12), (3_000, 15)):
        offsets.add({P: end}, at_ms)
    assert (offsets.reached_ms(P, 10), offsets.seen_ms(P, 10)) == (1_000, 2_000)
    assert (offsets.reached_ms(P, 13), offsets.seen_ms(P, 13)) == (2_000, 3_000)
    assert (offsets.reached_ms(P, 15), offsets.seen_ms(P, 15)) == (3_000, None)


def test_of_a_record_older_than_the_first_sample_only_the_time_when_it_was_seen_is_known() -> None:
    offsets = EndOffsets()
    offsets.add({P: 10}, 1_000)
    offsets.add({P: 10}, 9_000)
    assert (offsets.reached_ms(P, 9), offsets.seen_ms(P, 9)) == (None, 1_000)
    assert (offsets.reached_ms(("other", 0), 9), offsets.seen_ms(("other", 0), 9)) == (None, None)


def test_a_topic_made_anew_begins_anew() -> None:
    offsets = EndOffsets()
    for at_ms, end in ((0, 10), (1_000, 20), (2_000, 5)):
        offsets.add({P: end}, at_ms)
    assert (offsets.end(P), offsets.reached_ms(P, 4), offsets.seen_ms(P, 4)) == (5, None, 2_000)


def test_a_partition_without_a_leader_for_a_moment_is_remembered_and_one_that_is_gone_is_not() -> None:
    offsets = EndOffsets()
    offsets.add({P: 10}, 0)
    offsets.add({}, FORGET_MS - 1)
    assert offsets.end(P) == 10
    offsets.add({}, FORGET_MS)
    assert offsets.end(P) is None


@examples(100)
@given(growth, st.data())
def test_a_record_came_between_the_two_times(grown: list[int], data: st.DataObject) -> None:
    offsets, ends = taken(grown)
    offset = data.draw(st.integers(0, ends[-1] + 1))
    came = bisect_right(ends, offset)  # the number of the first sample with the record
    reached_ms, seen_ms = offsets.reached_ms(P, offset), offsets.seen_ms(P, offset)
    assert reached_ms is None or reached_ms <= (came - 1) * STEP_MS
    if came == len(ends):
        assert seen_ms is None
    else:
        assert seen_ms is not None and seen_ms >= came * STEP_MS


@examples(100)
@given(growth, st.data())
def test_the_time_of_a_lag_is_a_third_too_long_at_most(grown: list[int], data: st.DataObject) -> None:
    offsets, ends = taken(grown)
    offset = data.draw(st.integers(ends[0], ends[-1]))
    reached_ms = offsets.reached_ms(P, offset)
    assert reached_ms is not None
    true_ms = (bisect_right(ends, offset) - 1) * STEP_MS
    age_ms = (len(ends) - 1) * STEP_MS - true_ms
    assert true_ms - reached_ms <= age_ms / COARSENESS


def test_the_samples_of_a_week_are_bounded() -> None:
    samples = end_offsets._Samples()
    for number in range(7 * 24 * 3600 // 5):
        samples.add(number, number * STEP_MS)
        assert len(samples.ends) <= MAX_SAMPLES
    assert samples.ends[0] == 0
