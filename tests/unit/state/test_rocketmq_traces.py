"""The check command for broker traces, and RocketMQ 5.3.3's traces in tests/data.

The random traces are those of its ConsumerManager and RebalanceLockManager under random requests.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.rocketmq.check_files import run
from tests.conformance.rocketmq.trace_player import failure
from tests.conformance.rocketmq.traces import decode

TRACES = Path(__file__).parents[2] / "data" / "rocketmq_broker_traces.json"
RANDOM_TRACES = TRACES.with_stem("rocketmq_broker_traces_random")


def recorded(kind: str, name: str) -> dict[str, Any]:
    return next(t for t in json.loads(TRACES.read_text()) if (t["kind"], t["name"]) == (kind, name))


def check(tmp_path: Path, content: object) -> int:
    file = tmp_path / "traces.json"
    file.write_text(json.dumps(content))
    return run([str(file)], decode, failure)


def test_every_trace_of_rocketmq_is_followed() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.conformance.rocketmq.check_broker",
        str(TRACES),
        str(RANDOM_TRACES),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "125 passed, 0 failed\n", "")


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        (0, {"returned": False}),
        (1, {"events": []}),
        (1, {"state": {"G": None}}),
        (1, {"state": {}}),
        (0, {"op": {"op": "registre"}}),
    ],
)
def test_another_outcome_or_an_unknown_op_fails(
    place: int, changes: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = recorded("consumer_manager", "second member joins: CHANGE to all channels")
    trace["steps"][place].update(changes)
    assert check(tmp_path, [trace, recorded("lock_manager", "scenario 0")]) == 1
    assert capsys.readouterr().out.splitlines()[1] == "1 passed, 1 failed"


@pytest.mark.parametrize(
    "changes", [{"returned": [1]}, {"all_expired_G": True}, {"op": {"op": "steal", "group": "G"}}]
)
def test_another_outcome_of_a_lock_fails(changes: dict[str, object], tmp_path: Path) -> None:
    trace = recorded("lock_manager", "scenario 0")
    trace["steps"][0].update(changes)
    assert check(tmp_path, [trace]) == 1


def lock_trace(*ops: tuple[str, int], returned: list[int]) -> dict[str, Any]:
    """Client A locks queue 0, the ops change the lock's age, then client B requests the queue."""
    lock = {"op": "lock", "group": "G", "queues": [0]}
    return {
        "kind": "lock_manager",
        "name": "ages",
        "steps": [
            {"op": lock | {"client_id": "A"}, "returned": [0]},
            *({"op": {"op": op, "ms": ms}, "returned": None} for op, ms in ops),
            {"op": lock | {"client_id": "B"}, "returned": returned},
        ],
    }


@pytest.mark.parametrize(
    ("ops", "returned"),
    [
        ([("age", 60_000)], []),
        ([("age", 60_001)], [0]),
        ([("age", 30_000), ("age", 30_000)], []),
        ([("age", 30_000), ("age", 30_001)], [0]),
        ([("age", 61_000), ("age", 1_000)], [0]),
        ([("set_age", 30_000), ("set_age", 30_001)], []),
        ([("set_age", 61_000), ("set_age", 1_000)], []),
        ([("set_age", 30_000), ("age", 30_001)], [0]),
    ],
)
def test_ages_of_a_lock_add_up_where_they_are_not_set(
    ops: list[tuple[str, int]], returned: list[int], tmp_path: Path
) -> None:
    assert check(tmp_path, [lock_trace(*ops, returned=returned)]) == 0


def test_an_unknown_kind_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, [{"kind": "offset_manager", "name": "x", "steps": []}]) == 1
    assert "unknown kind 'offset_manager'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({}, "Expected `array`"),
        ([{"name": "x"}], "missing required field `kind`"),
        ([{"kind": "lock_manager", "name": "x"}], "Expected `array`, got `null`"),
        ([{"kind": "lock_manager", "name": "x", "steps": [{}]}], "`op` - at `$.steps[0]` of trace 0"),
        ([{"kind": "consumer_manager", "name": "x", "steps": [1]}], "Expected `object`, got `int`"),
    ],
)
def test_a_malformed_file_is_told_apart(
    content: object, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, content) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "traces.json: malformed: " in err
    assert told in err
