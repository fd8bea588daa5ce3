"""The demo: the whole of it, and that nothing is left of it when it is interrupted."""

import json
import os
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.demo.consumer import SESSION_TIMEOUT_MS
from cli.processes.family import family
from tests.e2e.harness import running, wait_until

pytestmark = pytest.mark.e2e

COMMAND = str(Path(sysconfig.get_path("scripts")) / "group-coordinator")


@dataclass(frozen=True)
class Playing:
    """A demo that runs, with its data folder."""

    process: subprocess.Popen[str]
    folder: Path

    def told(self) -> dict[str, Any]:
        """What it says at its end."""
        stdout, stderr = self.process.communicate()
        assert stdout.count("\n") == 1, stdout + stderr
        told: dict[str, Any] = json.loads(stdout)
        assert self.process.returncode == 0 and told["ok"], stdout
        assert all(check["ok"] for check in told["checks"])
        return told


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Playing]]:
    """Both at once, because each mostly waits for sessions to expire."""
    with ExitStack() as stack:
        found = {}
        for protocol in ("kafka", "rocketmq"):
            folder = tmp_path_factory.mktemp(protocol) / "demo"
            demo = [COMMAND, "demo", "--protocol", protocol, "--json", "--data-dir", str(folder)]
            process = subprocess.Popen(demo, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.terminate)
            found[protocol] = Playing(process, folder)
        yield found


@pytest.mark.timeout(1_200)
def test_the_demo_proves_what_it_says(demos: dict[str, Playing]) -> None:
    told = demos["kafka"].told()
    assert len(told["checks"]) == 11
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
    assert_replayed(demos["kafka"].folder)


@pytest.mark.timeout(1_200)
def test_the_demo_of_rocketmq_proves_what_it_says(demos: dict[str, Playing]) -> None:
    told = demos["rocketmq"].told()
    assert len(told["checks"]) == 12
    assert told["counts"]["records_produced"] == told["counts"]["records_consumed"] > 0
    types = [entry["type"] for entry in told["timeline"] if entry["who"] == "group"]
    assert types.index("DuplicateClientId") < types.index("DuplicateClientIdOver")
    assert_replayed(demos["rocketmq"].folder)


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
