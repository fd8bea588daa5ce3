"""The demo: the whole of it, and that nothing is left of it when it is interrupted."""

import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest

from cli.demo.consumer import SESSION_TIMEOUT_MS
from cli.processes.family import family
from tests.e2e.harness import running, wait_until

pytestmark = pytest.mark.e2e

COMMAND = str(Path(sysconfig.get_path("scripts")) / "group-coordinator")


@pytest.mark.timeout(1_200)
def test_demo_plays_its_story_and_its_log_can_be_replayed(tmp_path: Path) -> None:
    folder = str(tmp_path / "demo")
    demo = subprocess.run([COMMAND, "demo", "--data-dir", folder], capture_output=True, text=True)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert f"no heartbeat within its session timeout of {SESSION_TIMEOUT_MS} ms [T5]" in demo.stdout
    assert "TakenOver: no coordinator ran for" in demo.stdout
    assert demo.stdout.count("  ok    ") == 4
    replay = [COMMAND, "replay", "--all", "--from-topic", "--data-dir", folder]
    replayed = subprocess.run(replay, capture_output=True, text=True)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert replayed.stdout.startswith("identical: ")


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
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
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 1
    assert "Traceback" not in rest and "Logs and data are in" in rest
    wait_until(lambda: not running(started), "all its processes have ended")
