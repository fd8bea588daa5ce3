"""Child processes, each with its own log. None outlives its parent.

They run under `embedded.parent_watchdog`, so they end even if the parent is killed.
"""

import os
import signal
import sysconfig
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from embedded.java import ChildProcess, tail
from kafka_why.errors import MultilineError


def family(pid: int) -> list[int]:
    """Return the ids of a process and its descendants, parents first."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


STOP_GRACE_S = 20
GROUP_COORDINATOR = Path(sysconfig.get_path("scripts")) / "group-coordinator"
_LOG_TAIL_LINES = 15
_POLL_S = 0.05


class ChildFailed(MultilineError):
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
        self._process = ChildProcess(Path.cwd(), log_path)
        self._process.spawn(
            [str(program), *arguments],
            grace_s=STOP_GRACE_S,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            umask=-1,  # that of this process
        )
        if self._process.pid is None:
            self._process.stop()
            raise self.failure("it could not be started")
        self.pid = self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_launched and self._process.exit_code() is None

    def wait_for_line(self, condition: Callable[[str], bool], timeout_s: float) -> str:
        """Return the first line of the log for which `condition` is true.

        Raises ChildFailed if the process ends or the line does not come in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            # Checked before the log is read, so that no last line of a process that ends now is missed.
            has_ended = not self.is_running
            for line in self.log_path.read_text(errors="replace").splitlines(keepends=True):
                if line.endswith("\n") and condition(line):
                    return line.rstrip("\n")
            if has_ended:
                raise self.failure(f"it ended with exit code {self._process.exit_code()}")
            if time.monotonic() > deadline_s:
                raise self.failure(f"it was not ready within {timeout_s:.0f} s")
            self._process.wait(_POLL_S)

    def terminate(self) -> None:
        """Send SIGTERM to the process, and do not wait."""
        if self.is_running:
            os.kill(self.pid, signal.SIGTERM)

    def stop(self) -> None:
        """End the process by SIGTERM, or by SIGKILL after STOP_GRACE_S. Wait for its end."""
        if self.is_running:
            self.thaw()
        self._process.stop()

    def kill(self) -> None:
        """Kill the process and its descendants by SIGKILL, like a failure of the machine.

        Wait for its end.
        """
        for pid in self.freeze():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.stop()

    def freeze(self) -> list[int]:
        """Freeze the process and its descendants by SIGSTOP. Return their ids."""
        pids: list[int] = []
        # A process can start children until it is frozen, so search until there are no new descendants.
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
        end = tail(self.log_path.read_text(errors="replace"), _LOG_TAIL_LINES)
        return ChildFailed(f"{self.name} failed: {reason}. The end of {self.log_path}:\n{end}")


class Children(ExitStack):
    """A container of child processes. The end of the `with` block stops them, the last started first."""

    def __init__(self, logs_dir: Path) -> None:
        super().__init__()
        self._logs_dir = logs_dir

    def start(self, name: str, *arguments: str, program: Path = GROUP_COORDINATOR) -> Child:
        child = Child(name, arguments, self._logs_dir / f"{name}.log", program)
        self.callback(child.stop)
        return child
