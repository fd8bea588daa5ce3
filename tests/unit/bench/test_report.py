"""The benchmark's tables and their limits; docs/benchmarks.md with its generated blocks."""

import pytest

from bench.load.load_result import LoadResult
from bench.memory import DRIVER, JVM, MIB, REPLICA, WORKERS
from bench.page import PAGE, blocks, filled
from bench.report import (
    Figure,
    Limit,
    Measured,
    Plot,
    Series,
    at_least,
    at_most,
    from_json,
    ratio_at_least,
    ratio_at_most,
    to_json,
)
from bench.rows import ROWS, checkpoint, endurance
from bench.rows.checkpoint import Sizes, growth_of_most
from bench.rows.endurance import HEAP, THE_GATEWAY, EnduranceResult, Slice
from bench.slow_answers import slow_answers, slow_note

SLOW = Figure("answer, p50", "ms", [1_100.0, 1_200.0, 1_300.0], [400.0], "the floor")


@pytest.mark.parametrize(
    ("ours", "reference", "required", "target", "verdict"),
    [
        (1.0, (), None, None, ""),
        (1.0, (), at_most(1.0), None, "line"),
        (1.0, (), at_most(1.0), at_most(0.5), "line"),
        (0.4, (), at_most(1.0), at_most(0.5), "goal"),
        (1.01, (), at_most(1.0), at_most(0.5), "NOT"),
        (3_000.0, (), at_least(3_000), at_least(5_000), "line"),
        (300.0, (100.0,), ratio_at_most(3.0), ratio_at_most(1.5), "line"),
        (301.0, (100.0,), ratio_at_most(3.0), ratio_at_most(1.5), "NOT"),
        (301.0, (), ratio_at_most(3.0), ratio_at_most(1.5), "NOT"),
        (70.0, (100.0,), ratio_at_least(0.7), ratio_at_least(1.0), "line"),
        (6_000.0, (10_000.0,), at_least(5_000), ratio_at_least(0.5), "goal"),
    ],
)
def test_verdict_compares_a_figure_with_its_required_limit_and_its_target(
    ours: float, reference: tuple[float, ...], required: Limit | None, target: Limit | None, verdict: str
) -> None:
    assert Figure("rate", "/s", [ours], reference, "other", required, target).verdict == verdict


def test_results_round_trip() -> None:
    late = Figure("late", "s", [2.0], required=at_most(1.0))
    measured = Measured("latency", [SLOW, late], notes=["a note"])
    (read,) = from_json(to_json([measured]))
    assert read.figures[0].ratio == 3.0
    assert read.figures[1].verdict == "NOT"
    assert read.notes == ["a note"]


PLOT = Plot("growth", "Cost", "groups", "ms", [Series("heartbeats", [2.0, 4.0], [1.0, 3.0])], guide=True)
CORES = Figure("cores", "", [0.4], required=at_most(0.5))
ROW = Measured("idle", [CORES], [PLOT], ["a note"], machine="2 cores")


def test_every_benchmark_row_has_a_block_on_the_page() -> None:
    filled(PAGE.read_text(), dict.fromkeys(["lines", *ROWS], ""))


def test_only_blocks_with_new_content_change() -> None:
    page = (
        "a\n<!-- begin idle -->\nold\n<!-- end idle -->\nb\n<!-- begin late -->\nold\n<!-- end late -->\nc\n"
    )
    assert filled(page, {"idle": "new"}) == page.replace("old", "new", 1)
    with pytest.raises(KeyError, match="no block for mixed"):
        filled(page, {"mixed": "new"})


def test_row_is_shown_with_its_table_pictures_and_notes() -> None:
    content = blocks([ROW])
    assert content["idle"].splitlines()[2:] == [
        "| cores | 0.4 |  |  | ≤ 0.5 |  | line |",
        "",
        "![Cost](plots/growth.png)",
        "",
        "- a note",
    ]
    assert "| cores | 0.4 |" in content["lines"]
    assert "Machine: 2 cores." in content["lines"]


PARTS = (DRIVER, JVM, WORKERS, REPLICA, THE_GATEWAY)
SLICES = 20


def endured(leaking: str | None, mib_a_slice: int = 1) -> EnduranceResult:
    """Ten minutes of 100 MiB in each part, of which one leaks."""
    slices = []
    for number in range(SLICES):
        sizes = {part: (100 + (part == leaking) * number * mib_a_slice) * MIB for part in PARTS}
        heap = (100 + (leaking == HEAP) * number * mib_a_slice) * MIB if number % 4 == 0 else None
        slices.append(Slice(LoadResult(due_s=[0.0], latency_s=[0.1], took_s=1.0), sizes, heap))
    return EnduranceResult(30.0, 1.0, slices)


def not_reached(figures: list[Figure]) -> list[str]:
    return [figure.what for figure in figures if figure.verdict == "NOT"]


def test_constant_memory_meets_every_limit() -> None:
    assert not_reached(endurance.result_of(endured(None)).figures) == []


@pytest.mark.parametrize("part", [*PARTS, HEAP])
def test_growing_memory_of_one_process_exceeds_its_limit(part: str) -> None:
    figures = endurance.result_of(endured(part, 2 if part == JVM else 1)).figures
    assert not_reached(figures) == [f"endurance, memory: {part}, growth"]


def test_only_a_steadily_rising_size_is_unbounded() -> None:
    saw = [float(100 + n % 7 * 50) for n in range(100)]
    assert growth_of_most(saw) == 0
    assert growth_of_most([100.0 + n for n in range(100)]) > checkpoint.GROWTH_LIMIT

    def judged(bytes_of: list[float]) -> list[str]:
        samples = [Sizes((n + 1) * 100) for n in range(len(bytes_of))]
        for sample, size in zip(samples, bytes_of, strict=True):
            sample.files["spark/state"], sample.sizes["spark/state"] = 7, int(size) * MIB
        return not_reached(checkpoint.result_of(samples).figures)

    assert judged(saw) == []
    (leak,) = judged([100.0 + 2 * n for n in range(100)])
    assert leak.endswith("size, growth")


def test_slow_answers_are_attributed_to_the_stage_that_took_longest() -> None:
    """Two connections take turns. Their answers arrive out of order, and the third request's is slow."""
    outcome = LoadResult(due_s=[0.0, 1.0, 3.0, 2.0], latency_s=[0.25, 0.25, 0.25, 4.0])
    first, second = [(100.125, 100.125), (102.5, 105.5)], [(101.0, 101.25), (103.0, 103.25)]
    slow = slow_answers(outcome, 100.0, [first, second])
    assert slow == [(0.5, 3.0, 0.5)]
    note = slow_note(4, slow)
    assert "1 of 4 answers were slow" in note
    assert "1 between" in note
    assert note.endswith("The longest took 4000 ms (500 + 3000 + 500)")
    with pytest.raises(ValueError, match="shorter"):
        slow_answers(outcome, 100.0, [first, second[1:]])
