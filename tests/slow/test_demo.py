"""The demo: the whole of it, and that nothing is left of it when it is interrupted."""

import json
import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest

from cli.demo.children import family
from cli.demo.consumer import SESSION_TIMEOUT_MS
from tests.e2e.harness import running, wait_until

pytestmark = pytest.mark.e2e

COMMAND = str(Path(sysconfig.get_path("scripts")) / "group-coordinator")


@pytest.mark.timeout(1_200)
def test_the_demo_proves_what_it_says(tmp_path: Path) -> None:
    demo = [COMMAND, "demo", "--json", "--data-dir", str(tmp_path / "demo")]
    done = subprocess.run(demo, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["ok"], done.stdout
    assert len(told["checks"]) == 11
    assert all(check["ok"] for check in told["checks"])
    assert told["counts"]["coordinator_starts"] >= 3
    assert told["counts"]["answers_repeated"] >= 1
    deeds = [entry["what"] for entry in told["timeline"] if entry["who"] == "demo"]
    assert [deed.split(",")[0] for deed in deeds[:4]] == [
        "SIGKILL consumer-2",
        "SIGTERM consumer-1: it leaves",
        "SIGKILL the coordinator while the group is in PreparingRebalance",
        "SIGKILL the coordinator after an answer whose batch is not committed",
    ]
    reasons = [entry["reason"] for entry in told["timeline"] if entry["who"] == "group"]
    assert f"no heartbeat within its session timeout of {SESSION_TIMEOUT_MS} ms" in reasons
    assert_replayed(tmp_path / "demo")


@pytest.mark.timeout(1_200)
def test_the_demo_of_rocketmq_proves_what_it_says(tmp_path: Path) -> None:
    demo = [COMMAND, "demo", "--protocol", "rocketmq", "--json", "--data-dir", str(tmp_path / "demo")]
    done = subprocess.run(demo, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["ok"], done.stdout
    assert len(told["checks"]) == 12
    assert told["counts"]["records_produced"] == told["counts"]["records_consumed"] > 0
    types = [entry["type"] for entry in told["timeline"] if entry["who"] == "group"]
    assert types.index("DuplicateClientId") < types.index("DuplicateClientIdOver")
    assert_replayed(tmp_path / "demo")


def assert_replayed(data_dir: Path) -> None:
    """The log of all groups of the demo leads to what happened, byte by byte."""
    command = [COMMAND, "replay", "--all", "--from-topic", "--data-dir", str(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("identical: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        [COMMAND, "demo", "--data-dir", str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    with demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "a Kafka broker runs on" in line:
                break
        lock = tmp_path / "demo" / "coordinator" / "lock"
        wait_until(lock.exists, "the coordinator has its folder")
        started = family(demo.pid)
        assert len(started) >= 5, "the demo, two watchdogs, the broker, the coordinator"
        demo.send_signal(number)
        rest = demo.stdout.read()
    assert demo.returncode == 1
    assert "Traceback" not in rest and "Logs and data are in" in rest
    wait_until(lambda: not running(started), "all its processes have ended")
