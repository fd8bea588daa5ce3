"""docs/performance.md: its generated blocks, and a picture."""

from pathlib import Path

import pytest

from bench.page import PAGE, blocks, filled
from bench.plot import draw, n_log_n
from bench.report import Figure, Measured, Plot, Series, at_most
from bench.rows import ROWS

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


def test_a_row_has_its_table_pictures_and_notes() -> None:
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


def test_a_table_of_a_row_stands_before_its_pictures() -> None:
    row = Measured("idle", ROW.figures, [PLOT], table=[["minute", "MiB"], ["1", "7"]])
    assert blocks([row])["idle"].splitlines()[4:] == [
        "| minute | MiB |",
        "| --- | --- |",
        "| 1 | 7 |",
        "",
        "![Cost](plots/growth.png)",
    ]


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    draw(PLOT, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert list(n_log_n(PLOT.series[0])) == [0.75, 3.0]
