"""The demo's processes, and that nothing is left of them however they end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import main
from cli.processes.child import ChildFailed, Children, family
from tests.e2e.harness import running, wait_until
from tests.harness.commands import invoke

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PATIENCE_S = 60.0
SLEEP = Path("/bin/sleep")


def test_nonempty_demo_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = invoke(main, ["demo", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not empty; the demo needs an empty folder" in done.stderr


def test_ended_child_is_reported_with_its_log(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("bad", "gateway", "--no-such-option")
        with pytest.raises(ChildFailed, match=r"(?s)bad failed: it ended with exit code 2.*no-such-option"):
            child.wait_for_line(lambda line: False, PATIENCE_S)
        child.stop()
        child.kill()


def test_kill_and_freeze_apply_to_all_descendant_processes(tmp_path: Path) -> None:
    """The parent watchdog stands for a child with a process of its own under it."""
    with Children(tmp_path) as children:
        child = children.start("idle", "60", program=SLEEP)
        assert child.freeze() == [child.pid]
        wait_until(lambda: _state(child.pid) == "T", "a process stops after the signal, not with it")
        child.thaw()
        assert _state(child.pid) != "T"
        watchdog = next(
            pid for pid in family(os.getpid()) if child.pid in family(pid)[1:] and pid != os.getpid()
        )
        child.kill()
        wait_until(lambda: not running([child.pid, watchdog]), "both have ended")
        assert not child.is_running


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cli.processes.child import Child;"
        "print(Child('idle', ['60'], *map(Path, sys.argv[1:])).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "idle.log"), str(SLEEP)]
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
