"""docs/benchmarks.md: its generated blocks, and a picture."""

import pytest

from bench.page import PAGE, blocks, filled
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
