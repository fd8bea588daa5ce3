"""The check command for allocation vectors, and the results of RocketMQ 5.3.3 in tests/data.

The random vectors are results of its classes for random arguments: POP sharing, nested rooms, unusual broker
names, repeated ids, nulls.
"""

import json
from pathlib import Path

import pytest

from tests.conformance.rocketmq.check_files import run
from tests.conformance.rocketmq.vectors import decode, failure

VECTORS = Path(__file__).parents[2] / "data" / "rocketmq_allocation.json"
RANDOM_VECTORS = VECTORS.with_stem("rocketmq_allocation_random")
QUEUES = [{"topic": "t", "broker": "b", "queue": number} for number in range(4)]


def vector(**changes: object) -> dict[str, object]:
    first_half = {"current_cid": "X", "mq_all": QUEUES, "cid_all": ["X", "Y"], "expected": QUEUES[:2]}
    return {"strategy": "AVG", **first_half, **changes}


def check(tmp_path: Path, content: str) -> int:
    file = tmp_path / "vectors.json"
    file.write_text(content)
    return run([str(file)], decode, failure)


def test_every_answer_of_rocketmq_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(VECTORS), str(RANDOM_VECTORS)], decode, failure) == 0
    assert capsys.readouterr() == ("1183 passed, 0 failed\n", "")


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "STICKY"},
        {"strategy": "MACHINE_ROOM_NEARBY-STICKY"},
        {"strategy": "POP/AVG"},  # pop_share_queue_num is missing
        {"strategy": "AVG_BY_CIRCLE"},
        {"expected": [QUEUES[1], QUEUES[0]]},
        {"expected": None},
        {"expected": None, "error": "IllegalArgumentException: mqAll is null or mqAll empty"},
        {"strategy": "MACHINE_ROOM_NEARBY-AVG", "params": {"resolver": "by the moon"}},
    ],
)
def test_another_answer_or_an_unknown_strategy_fails(
    changes: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, json.dumps([vector(), vector(**changes)])) == 1
    *failures, summary = capsys.readouterr().out.splitlines()
    assert len(failures) == 1
    assert summary == "1 passed, 1 failed"


def test_many_failures_are_listed_briefly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, json.dumps([vector(expected=QUEUES * 200)] * 100)) == 1
    printed = capsys.readouterr().out
    assert printed.endswith("\n0 passed, 100 failed\n")
    assert len(printed) < 20_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "truncated"),
        ("{}", "Expected `array`, got `object`"),
        ("[{]", "JSON is malformed"),
        (json.dumps([vector(), vector(mq_all=[{"topic": "t", "queue": 0}])]), "field `broker` - at `$[1]"),
        (json.dumps([vector(strategy=1)]), "Expected `str`, got `int` - at `$[0].strategy`"),
        (json.dumps([{"strategy": "AVG"}]), "missing required field"),
    ],
)
def test_a_malformed_file_is_told_apart(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, content) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "vectors.json: malformed: " in err
    assert message in err


def test_a_missing_file_and_no_file_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(tmp_path / "none.json")], decode, failure) == 2
    assert "none.json" in capsys.readouterr().err
    assert run([], decode, failure) == 2
    assert capsys.readouterr().err == "give at least one file\n"
