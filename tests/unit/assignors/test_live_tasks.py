"""Kafka's own answers, of its sticky task assignor, to random groups.

A file has its answer to each group, one a line; `--rewrite` asks it again.
"""

from pathlib import Path
from random import Random

import pytest

from tests.harness.kafkas_tasks import ask_kafka, random_cases, read_answer

RECORDED = Path(__file__).parent / "test_live_tasks.txt"
NUMBER = 60


def test_tasks_equal_those_that_kafka_assigned(request: pytest.FixtureRequest) -> None:
    cases = list(random_cases(Random(1), NUMBER))
    if request.config.getoption("rewrite"):
        RECORDED.write_text("".join(f"{line}\n" for line in ask_kafka(cases)))
    answers = RECORDED.read_text().splitlines()
    for case, answer in zip(cases, answers, strict=True):
        assert case.ours() == read_answer(answer), case.text()
    assert any(standby for answer in answers for _, standby in read_answer(answer).values())
