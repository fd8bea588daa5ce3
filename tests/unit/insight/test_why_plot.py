"""The picture: a PNG of a size that fits a screen, for any history."""

import struct
from datetime import UTC
from pathlib import Path

import pytest

from insight.why.clock import Clock
from insight.why.plot import draw
from insight.why.report import lanes_of, report
from state.kafka.history import HistoryEntry
from tests.harness.histories import Recorder, of_scenario
from tests.unit.insight.why_story import STORY


def drawn(history: list[HistoryEntry], path: Path, group_id: str = "g") -> tuple[int, int]:
    """Draw the history. Return the picture's width and height in pixels, from the PNG's header."""
    found = report(group_id, history, history[-1].at_ms + 60_000)
    draw(found, *lanes_of(history), path, Clock(UTC))
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_picture_of_the_story(tmp_path: Path) -> None:
    width, height = drawn(Recorder().play(*STORY), tmp_path / "why.png")
    assert 1_000 < width < 2_500
    assert 300 < height < 1_200
    assert 10_000 < (tmp_path / "why.png").stat().st_size < 1_000_000


def test_many_members_and_rebalances_fit(tmp_path: Path) -> None:
    joins = [f"join m{number} api=3" for number in range(60)]
    commands = ["config group.initial.rebalance.delay.ms=0", *joins]
    width, height = drawn(Recorder().play(*commands), tmp_path / "why.png")
    assert 1_000 < width < 2_500
    assert 1_000 < height < 3_000


@pytest.mark.parametrize("begin", [0, 5, -1])
def test_a_picture_of_what_is_there(begin: int, tmp_path: Path) -> None:
    """Includes a history of zero length, and a group whose name looks like a formula."""
    history = of_scenario("timeline_6_everyone_leaves")[begin:]
    drawn(history, tmp_path / "why.png", group_id="$a_{b$ $")
