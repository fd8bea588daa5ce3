"""Planning of offset resets: the new offset of each partition, and the warnings for the user."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.lag.definitions import LogBounds
from operations.admin.reset import (
    FromFile,
    KnownOffsets,
    ResetError,
    ResetPlan,
    Scenario,
    ShiftBy,
    ToOffset,
    ToTime,
    plan_reset,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOUNDS = {A0: LogBounds(10, 100), A1: LogBounds(0, 50), B0: LogBounds(7, 7)}
KNOWN = KnownOffsets(BOUNDS, committed={A0: 42, A1: 0}, at_time={A0: 33, A1: None})

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_reset_limits_offsets_to_the_bounds_of_the_log() -> None:
    assert plan_reset(ToOffset(60), "g", [A0, A1, B0], KNOWN) == ResetPlan(
        {A0: 60, A1: 50, B0: 7},
        [
            "New offset (60) is higher than latest offset for topic partition a-1. Value will be set to 50.",
            "New offset (60) is higher than latest offset for topic partition b-0. Value will be set to 7.",
        ],
    )
    assert plan_reset(ToOffset(5), "g", [A0], KNOWN) == ResetPlan(
        {A0: 10},
        ["New offset (5) is lower than earliest offset for topic partition a-0. Value will be set to 10."],
    )


def test_shift_starts_from_the_committed_offset() -> None:
    assert plan_reset(ShiftBy(-2), "g", [A0], KNOWN) == ResetPlan({A0: 40}, [])
    assert plan_reset(ShiftBy(-2), "g", [A0, A1], KNOWN).offsets == {A0: 40, A1: 0}
    assert plan_reset(ShiftBy(1_000), "g", [A0], KNOWN).offsets == {A0: 100}


def test_shift_without_a_committed_offset_is_refused() -> None:
    with pytest.raises(ResetError, match="partition b-0 since there is no current committed offset"):
        plan_reset(ShiftBy(1), "g", [A0, B0], KNOWN)


def test_reset_to_a_time_after_the_last_record_gives_the_log_end() -> None:
    assert plan_reset(ToTime(1_700_000_000_000), "g", [A0, A1], KNOWN) == ResetPlan(
        {A0: 33, A1: 50},
        ["Partition 1 from topic a has no record that late. Falling back to latest known offset."],
    )


def test_reset_from_a_file_uses_the_files_partitions() -> None:
    scenario = FromFile({"g": {B0: 7, A1: 51}, "other": {A0: 1}})
    plan = plan_reset(scenario, "g", [], KNOWN)
    assert list(plan.offsets.items()) == [(A1, 50), (B0, 7)]
    assert len(plan.warnings) == 1
    assert plan_reset(scenario, "not in it", [], KNOWN) == ResetPlan({}, [])


@given(st.builds(ToOffset, INT64) | st.builds(ShiftBy, INT64), INT64.filter(lambda n: n >= 0))
def test_every_reset_stays_within_the_bounds_of_the_log(scenario: Scenario, committed: int) -> None:
    plan = plan_reset(scenario, "g", BOUNDS, KnownOffsets(BOUNDS, committed=dict.fromkeys(BOUNDS, committed)))
    assert plan.offsets.keys() == BOUNDS.keys()
    assert all(BOUNDS[p].earliest <= offset <= BOUNDS[p].latest for p, offset in plan.offsets.items())
