"""Kafka's own answers, of its assignors of kafka-clients and its group coordinator, to random groups.

A file has its answer to each group, one a line; `--rewrite` asks it again. `tests/slow` has a test that asks
it for many more.
"""

from pathlib import Path
from random import Random

import pytest

from tests.harness.kafkas_assignors import ask_kafka, read_answer
from tests.harness.live_cases import identical_cases

RECORDED = Path(__file__).parent / "test_live.txt"
RECORDED_OF_EACH = 8


def test_assignments_equal_kafkas_recorded_ones(request: pytest.FixtureRequest) -> None:
    cases = list(identical_cases(Random(1), RECORDED_OF_EACH))
    if request.config.getoption("rewrite"):
        asked = zip(cases, ask_kafka(cases), strict=True)
        RECORDED.write_text("".join(f"{c.assignor} {line.partition(' ')[2]}\n" for c, line in asked))
    answers = RECORDED.read_text().splitlines()
    assert len(answers) > RECORDED_OF_EACH
    for case, answer in zip(cases, answers, strict=True):
        assert case.ours() == read_answer(answer), case.text()
