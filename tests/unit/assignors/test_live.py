"""Against Kafka itself: its assignors of kafka-clients and its group coordinator, on random groups.

A file has a few answers of Kafka's; `--rewrite` asks it again for them. `tests/slow` has a test that asks
it for many more.
"""

from pathlib import Path
from random import Random

import pytest

from tests.harness.kafkas_assignors import ask_kafka, read_answer
from tests.harness.live_cases import identical_cases, read_case

RECORDED = Path(__file__).parent / "test_live.txt"
RECORDED_OF_EACH = 8


def test_recorded_answers_are_ours(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("rewrite"):
        cases = list(identical_cases(Random(1), RECORDED_OF_EACH))
        answers = (f"answer {line.partition(' ')[2]}" for line in ask_kafka(cases))
        blocks = [case.text().strip() + "\n" + answer for case, answer in zip(cases, answers, strict=True)]
        RECORDED.write_text("\n\n".join(blocks) + "\n")
    blocks = RECORDED.read_text().strip().split("\n\n")
    assert len(blocks) > RECORDED_OF_EACH
    for block in blocks:
        text, _, answer = block.rpartition("\n")
        assert read_case(text).ours() == read_answer(answer), text
