"""The demo: the whole of it, its processes, and that nothing is left of it however it ends."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest

from cli.demo.children import ChildFailed, Children, family
from cli.demo.consumer import SESSION_TIMEOUT_MS
from tests.e2e.harness import wait_until

pytestmark = pytest.mark.e2e

COMMAND = str(Path(sysconfig.get_path("scripts")) / "group-coordinator")
PATIENCE_S = 60.0
# A consumer that looks for a broker where none is: it runs for half a minute.
IDLE = ("consume", "--bootstrap-servers", "127.0.0.1:1", "--group", "g", "--topic", "t")


def running(pids: Iterable[int]) -> set[int]:
    """Those that have not ended; one that nobody has waited for yet has."""
    found = set()
    for pid in pids:
        listing = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
        if listing.stdout.strip() and not listing.stdout.startswith("Z"):
            found.add(pid)
    return found


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_the_demo_proves_what_it_says(tmp_path: Path) -> None:
    demo = [COMMAND, "demo", "--json", "--data-dir", str(tmp_path / "demo")]
    done = subprocess.run(demo, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["ok"], done.stdout
    assert len(told["checks"]) == 12
    assert all(check["ok"] for check in told["checks"])
    assert told["counts"]["coordinator_starts"] >= 3
    assert told["counts"]["answers_repeated"] >= 1
    deeds = [entry["what"] for entry in told["timeline"] if entry["who"] == "demo"]
    assert [deed.split(",")[0] for deed in deeds[:4]] == [
        "SIGKILL consumer-2",
        "SIGTERM consumer-1: it leaves",
        "SIGKILL the coordinator",
        "SIGKILL the coordinator",
    ]
    reasons = [entry["reason"] for entry in told["timeline"] if entry["who"] == "group"]
    assert f"no heartbeat within its session timeout of {SESSION_TIMEOUT_MS} ms" in reasons


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_the_demo_of_rocketmq_proves_what_it_says(tmp_path: Path) -> None:
    demo = [COMMAND, "demo", "--protocol", "rocketmq", "--json", "--data-dir", str(tmp_path / "demo")]
    done = subprocess.run(demo, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["ok"], done.stdout
    assert len(told["checks"]) == 11
    assert told["counts"]["records_produced"] == told["counts"]["records_consumed"] > 0
    types = [entry["type"] for entry in told["timeline"] if entry["who"] == "group"]
    assert types.index("DuplicateClientId") < types.index("DuplicateClientIdOver")


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
        assert len(started) >= 5, "the demo, two tethers, the broker, the coordinator"
        demo.send_signal(number)
        rest = demo.stdout.read()
    assert demo.returncode == 1
    assert "Traceback" not in rest and "Logs and data are in" in rest
    wait_until(lambda: not running(started), "all its processes have ended")


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run([COMMAND, "demo", "--data-dir", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not empty: the demo starts from nothing" in done.stderr


def test_a_child_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("bad", "consume", "--no-such-option")
        with pytest.raises(ChildFailed, match=r"(?s)bad failed: it ended with exit code 2.*no-such-option"):
            child.wait_for_line(lambda line: False, PATIENCE_S)
        child.stop()
        child.kill()


def test_a_child_that_is_not_ready_in_time_is_told(tmp_path: Path) -> None:
    with Children(tmp_path) as children, pytest.raises(ChildFailed, match="it was not ready within 0 s"):
        children.start("idle", *IDLE).wait_for_line(lambda line: False, 0.1)


def test_killing_and_freezing_mean_everything_under_it(tmp_path: Path) -> None:
    """The tether stands for a child with a process of its own under it."""
    with Children(tmp_path) as children:
        child = children.start("idle", *IDLE)
        assert child.freeze() == [child.pid]
        assert _state(child.pid) == "T"
        child.thaw()
        assert _state(child.pid) != "T"
        tether = next(
            pid for pid in family(os.getpid()) if child.pid in family(pid)[1:] and pid != os.getpid()
        )
        child.kill()
        wait_until(lambda: not running([child.pid, tether]), "both have ended")
        assert not child.is_running


def test_a_frozen_child_can_still_be_stopped(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("idle", *IDLE)
        child.freeze()
    assert not child.is_running


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cli.demo.children import Child;"
        "print(Child('idle', sys.argv[2:], Path(sys.argv[1])).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "idle.log"), *IDLE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert running([child_pid])
        parent.kill()
    wait_until(lambda: not running([child_pid]), "the child has ended")


def _state(pid: int) -> str:
    listing = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return listing.stdout.strip()[:1]
