"""The benchmark's tables and their limits; docs/benchmarks.md with its generated blocks."""

import pytest

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
from bench.rows import ROWS

SLOW = Figure("answer, p50", "ms", [1_100.0, 1_200.0, 1_300.0], [400.0], "the floor")


@pytest.mark.parametrize(
    ("ours", "beside", "line", "goal", "verdict"),
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
def test_verdict_compares_a_figure_with_its_line_and_goal(
    ours: float, beside: tuple[float, ...], line: Limit | None, goal: Limit | None, verdict: str
) -> None:
    assert Figure("rate", "/s", [ours], beside, "other", line, goal).verdict == verdict


def test_results_round_trip() -> None:
    measured = Measured("latency", [SLOW, Figure("late", "s", [2.0], line=at_most(1.0))], notes=["a note"])
    (read,) = from_json(to_json([measured]))
    assert read.figures[0].ratio == 3.0
    assert read.figures[1].verdict == "NOT"
    assert read.notes == ["a note"]


PLOT = Plot("growth", "Cost", "groups", "ms", [Series("heartbeats", [2.0, 4.0], [1.0, 3.0])], guide=True)
ROW = Measured("idle", [Figure("cores", "", [0.4], line=at_most(0.5))], [PLOT], ["a note"], machine="2 cores")


def test_every_row_has_a_block_on_the_page() -> None:
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
