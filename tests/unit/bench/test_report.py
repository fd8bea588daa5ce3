"""The benchmark's tables and their limits."""

import json

import pytest

from bench.report import Figure, Table, as_json

SLOW = Figure("answer, p50", "ms", 1_200.0, 400.0)


@pytest.mark.parametrize(
    ("figure", "held"),
    [
        (SLOW, None),
        (Figure("late", "s", 1.0, at_most=1.0), True),
        (Figure("late", "s", 1.01, at_most=1.0), False),
        (Figure("slow", "ms", 300.0, 100.0, ratio_at_most=3.0), True),
        (Figure("slow", "ms", 301.0, 100.0, ratio_at_most=3.0), False),
        (Figure("slow", "ms", 301.0, None, ratio_at_most=3.0), False),
        (Figure("slow", "ms", 200.0, 100.0, at_most=100.0, ratio_at_most=3.0), False),
    ],
)
def test_lines_are_held_or_not(figure: Figure, held: bool | None) -> None:
    assert figure.held is held
    assert Table("t", "floor", [SLOW, figure]).held is (held is not False)


def test_a_table_is_read_by_people() -> None:
    figures = [SLOW, Figure("rate", "/s", 0.0421), Figure("late", "s", 2.0, at_most=1.0)]
    assert Table("over the wire", "Kafka's own", figures).text().splitlines() == [
        "over the wire                                             ours   Kafka's own     ratio",
        "  answer, p50                                         1,200 ms        400 ms         3",
        "  rate                                               0.0421 /s",
        "  late                                                     2 s                           "
        "at most 1 s: NOT HELD",
    ]


def test_figures_are_read_by_programs() -> None:
    (figure,) = json.loads(as_json([Table("over the wire", "Kafka's own", [SLOW])]))
    assert figure["table"] == "over the wire"
    assert figure["beside_is"] == "Kafka's own"
    assert (figure["what"], figure["unit"]) == ("answer, p50", "ms")
    assert (figure["ours"], figure["beside"], figure["ratio"]) == (1_200.0, 400.0, 3.0)
