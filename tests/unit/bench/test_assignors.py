"""The benchmark of assignors: comparable assignments, and a call that does not end."""

import pytest

from bench.assignors import Measured, Problem, Size, of_kafka_python, of_ours, problems

SMALL, LARGE = Size(10, 4, 10), Size(300, 300, 10)


@pytest.mark.parametrize("number", range(8))
def test_all_partitions_are_dealt_out_by_both(number: int) -> None:
    _, problem = list(problems((SMALL,)))[number]
    for measured in (of_ours(problem), of_kafka_python(problem, limit_s=60)):
        assert measured.answer is not None
        assert sum(map(len, measured.answer.values())) == SMALL.topics * SMALL.partitions
        assert measured.answer.keys() == problem.wishes.keys()


def test_a_call_that_takes_too_long_is_cut_off() -> None:
    problem = Problem("sticky", LARGE.counts(), LARGE.wishes(equal=False), None)
    measured = of_kafka_python(problem, limit_s=0.05)
    assert measured.is_cut_off
    assert Measured(60).time() == "> 60 s"
