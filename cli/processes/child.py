"""Child processes, each with its own log. None outlives its parent.

They run under `embedded.parent_watchdog`, so they end even if the parent is killed.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from embedded import parent_watchdog
from kafka_why.lifetimes import Closeable


def family(pid: int) -> list[int]:
    """Return the ids of a process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    pids = [pid]
    for parent in pids:  # the list grows during the loop
        pids += children.get(parent, [])
    return pids


def _parents() -> list[tuple[int, int]]:
    # (process id, parent's process id).
    if Path("/proc/self/stat").exists():
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # the process has ended meanwhile
                # The name, in parentheses, may contain any text; the parent is the second field after it.
                after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
                found.append((int(stat.parent.name), int(after_name[1])))
        return found
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)  # noqa: S607
    return [(int(pid), int(parent)) for pid, parent in map(str.split, listing.stdout.splitlines())]


STOP_GRACE_S = 20
GROUP_COORDINATOR = Path(sysconfig.get_path("scripts")) / "group-coordinator"
_LOG_TAIL_LINES = 15
_POLL_S = 0.05


class ChildFailed(RuntimeError):
    """The error of a process that ended, or was not ready in time. Its message has the tail of the log."""


class Child:
    """A process of `group-coordinator` or another program, whose output goes to `log_path`.

    The constructor starts it, and raises ChildFailed if it cannot.
    """

    def __init__(
        self, name: str, arguments: Iterable[str], log_path: Path, program: Path = GROUP_COORDINATOR
    ) -> None:
        self.name = name
        self.log_path = log_path
        command = [str(program), *arguments]
        with log_path.open("ab") as log:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", parent_watchdog.__file__, str(STOP_GRACE_S), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the parent, which stops its children in order
            )
        assert self._watchdog.stdout is not None
        pid = self._watchdog.stdout.readline()
        if not pid:
            self._reap()
            raise self.failure("it could not be started")
        self.pid = int(pid)

    @property
    def is_running(self) -> bool:
        return self._watchdog.poll() is None

    def wait_for_line(self, found: Callable[[str], bool], timeout_s: float) -> str:
        """Return the first line of the log for which `found` is true.

        Raises ChildFailed if the process ends or the line does not come in time.
        """
        give_up_s = time.monotonic() + timeout_s
        while True:
            ended = not self.is_running
            for line in self.log_path.read_text(errors="replace").splitlines(keepends=True):
                if line.endswith("\n") and found(line):
                    return line.rstrip("\n")
            if ended:
                raise self.failure(f"it ended with exit code {self._watchdog.returncode}")
            if time.monotonic() > give_up_s:
                raise self.failure(f"it was not ready within {timeout_s:.0f} s")
            with suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(_POLL_S)

    def terminate(self) -> None:
        """Send SIGTERM to the process, and do not wait."""
        if self.is_running:
            os.kill(self.pid, signal.SIGTERM)

    def stop(self) -> None:
        """End the process by SIGTERM, or by SIGKILL after STOP_GRACE_S. Wait for its end."""
        assert self._watchdog.stdin is not None
        if self.is_running:
            self.thaw()
        self._watchdog.stdin.close()
        self._reap()

    def kill(self) -> None:
        """Kill the process and its descendants by SIGKILL, like a failure of the machine.

        Wait for its end.
        """
        for pid in self.freeze():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reap()

    def freeze(self) -> list[int]:
        """Freeze the process and its descendants by SIGSTOP. Return their ids."""
        pids: list[int] = []
        while fresh := [pid for pid in family(self.pid) if pid not in pids]:
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            pids += fresh
        return pids

    def thaw(self) -> None:
        """Continue every process that `freeze` stopped."""
        for pid in family(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def failure(self, reason: str) -> ChildFailed:
        """Return the error with `reason` and the end of the log."""
        tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        return ChildFailed(f"{self.name} failed: {reason}. The end of {self.log_path}:\n{tail}")

    def _reap(self) -> None:
        with self._watchdog:
            self._watchdog.wait()


class Children(Closeable):
    """A container of child processes. The end of the `with` block stops them."""

    def __init__(self, logs_dir: Path) -> None:
        self._logs_dir = logs_dir
        self._children: list[Child] = []

    def start(self, name: str, *arguments: str, program: Path = GROUP_COORDINATOR) -> Child:
        child = Child(name, arguments, self._logs_dir / f"{name}.log", program)
        self._children.append(child)
        return child

    def close(self) -> None:
        """Stop all processes, the last started first."""
        while self._children:
            self._children[-1].stop()
            self._children.pop()
