"""The check command for broker traces, and RocketMQ 5.3.3's traces in tests/data.

The random traces are those of its ConsumerManager and RebalanceLockManager under random requests.
"""

import json
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


def test_every_trace_of_rocketmq_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(TRACES), str(RANDOM_TRACES)], decode, failure) == 0
    assert capsys.readouterr() == ("125 passed, 0 failed\n", "")


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


def test_an_unknown_kind_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, [{"kind": "offset_manager", "name": "x", "steps": []}]) == 1
    assert "unknown kind 'offset_manager'" in capsys.readouterr().out
