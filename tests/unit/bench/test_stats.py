"""Warm-up: it ends when the figure is stable, or after its time."""

from bench.load.load_result import LoadResult
from bench.rows.overload import OVERLOAD_S, Overloaded, by_second, normal_again_s
from bench.stats import WarmUp


def test_a_warm_up_ends_with_three_values_that_are_alike() -> None:
    warm_up = WarmUp(limit_s=3_600)
    for value in (100.0, 200.0, 300.0, 310.0):
        assert warm_up.goes_on
        warm_up.add(value)
    assert warm_up.goes_on
    warm_up.add(290.0)
    assert not warm_up.goes_on
    assert warm_up.note.startswith("stable after")


def test_a_warm_up_ends_after_its_time() -> None:
    warm_up = WarmUp(limit_s=0)
    assert not warm_up.goes_on
    assert warm_up.note.startswith("not yet stable")


def test_p99_is_by_the_second_in_which_requests_were_due() -> None:
    outcome = LoadResult(due_s=[1.5, 0.1, 0.9], latency_s=[0.3, 0.1, 0.2])
    assert by_second(outcome) == [200.0, 300.0]


def test_p99_is_normal_from_the_last_second_on_that_was_not() -> None:
    calm = [100.0] * int(OVERLOAD_S)
    assert normal_again_s(Overloaded(normal_p99_ms=100, p99_ms=[*calm, 900, 200, 201, 150])) == 3
    assert normal_again_s(Overloaded(normal_p99_ms=100, p99_ms=[*calm, 100, 100])) == 0
