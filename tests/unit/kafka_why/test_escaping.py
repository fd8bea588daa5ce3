"""What clients choose cannot change a terminal: group ids in tables and lists, names, reasons, logs."""

from datetime import UTC

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.why.report import report
from kafka_why.why.text import report_text
from kafka_why.wording import Clock, Column, VisibleText, render_table, visible, visible_text
from tests.harness.histories import of_scenario

HOSTILE = "a\x1b[2J\r\nADMIN \x9b31m\u202e\u2028b"
SHOWN = r"a\x1b[2J\r\nADMIN \x9b31m\u202e\u2028b"


@given(st.text())
def test_visible_returns_one_printable_line(text: str) -> None:
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)


@given(st.text(st.characters(exclude_categories=["C", "Z"])))
def test_printable_text_is_unchanged(text: str) -> None:
    assert visible(text) == text
    assert visible("gruppe é 群 🦆") == "gruppe é 群 🦆"


def test_visible_text_keeps_its_own_line_breaks() -> None:
    text = visible_text(["a\nb", visible_text(["c", "d"])])
    assert text == "a\\nb\nc\nd"
    assert isinstance(text, VisibleText)
    assert visible(text) is text
    assert visible(str(RuntimeError(text))) == text
    assert visible(f"seen: {text}") == "seen: a\\nb\\nc\\nd"


def test_client_text_cannot_add_a_line_to_a_report() -> None:
    ours = of_scenario("timeline_2_follower_dies")
    encoded = msgspec.json.encode(ours).replace(b"follower", b"follower\\nGroup g is Stable\\u001b[2J")
    theirs = msgspec.json.decode(encoded, type=list[HistoryEntry])
    text, plain = (report_text(report("g", it, 15_000), Clock(UTC)) for it in (theirs, ours))
    assert text.count("\n") == plain.count("\n")
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"follower\nGroup g is Stable\x1b[2J" in text


def test_a_table_has_a_line_for_each_row() -> None:
    lines = render_table([Column("GROUP"), Column("STATE")], [[HOSTILE, "Empty"], ["b", None]]).split("\n")
    assert len(lines) == 3
    assert lines[1].split()[0] == SHOWN.split()[0]
    assert all(line.isprintable() for line in lines)
