"""`group-coordinator run` as a process, what runs below it, and what stops or starves processes."""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.harness import QUICK_JAVA, START_TIMEOUT_S, child_pids, command_of

COMMAND = [sys.executable, "-c", "from cli import main; main()", "run"]
BROKER = "kafka.Kafka"
SPARK = "org.apache.spark.deploy.SparkSubmit"


@dataclass
class Run:
    """A running command: a session of its own, as on a terminal, so that it can be sent Ctrl-C."""

    process: subprocess.Popen[str]
    stderr_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text()

    def ready(self) -> dict[str, Any]:
        """Return what it prints when it is ready."""
        assert self.process.stdout is not None
        found, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        assert found, self.stderr
        ready: dict[str, Any] = json.loads(self.process.stdout.readline())
        return ready

    def end(self, timeout_s: float = START_TIMEOUT_S) -> tuple[int, str]:
        """Wait for its end, which may follow on a start: the exit code, and what else it printed."""
        rest, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, rest

    def interrupt(self) -> None:
        """Send SIGINT to the whole process group, as a terminal does for Ctrl-C."""
        os.killpg(self.pid, signal.SIGINT)


@contextmanager
def run(tmp_path: Path, *arguments: str, within: Sequence[str] = ()) -> Iterator[Run]:
    """`within` is a command that becomes the one it is given. If the test fails, what the command said last
    is a note of its error.
    """
    stderr_path = tmp_path / f"stderr-{time.monotonic_ns()}.txt"
    with (
        stderr_path.open("w") as stderr,
        subprocess.Popen(
            [*within, *COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | {"JAVA_TOOL_OPTIONS": QUICK_JAVA},
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Run(process, stderr_path)
        except BaseException as error:
            error.add_note("\n".join(stderr_path.read_text().splitlines()[-40:]))
            raise
        finally:
            process.kill()


class Descendants:
    """All processes under one, by handles that stay theirs even when they have ended."""

    def __init__(self, pid: int) -> None:
        self.handles: dict[int, int] = {}
        self._add(pid)

    def _add(self, pid: int) -> None:
        for child in child_pids(pid):
            with suppress(ProcessLookupError):  # Spark's JVM has children that end at once
                self.handles[child] = os.pidfd_open(child)
                self._add(child)

    def running(self) -> list[str]:
        """Return the commands of those that have not ended."""
        ended, _, _ = select.select(list(self.handles.values()), [], [], 0)
        return [command_of(pid) for pid, fd in self.handles.items() if fd not in ended]

    def has(self, part: str) -> bool:
        """Return True if one with this in its command line has not ended."""
        return any(part in command for command in self.running())

    def close(self) -> None:
        for handle in self.handles.values():
            os.close(handle)


@contextmanager
def descendants(pid: int) -> Iterator[Descendants]:
    found = Descendants(pid)
    yield found
    found.close()


def children_running(pid: int, part: str) -> list[int]:
    """Return the children whose command line has this in it."""
    return [child for child in child_pids(pid) if part in command_of(child)]


def jvm_of(pid: int) -> int:
    (jvm,) = children_running(pid, SPARK)
    return jvm


@contextmanager
def hold(pid: int) -> Iterator[None]:
    """Stop a process in its tracks; it is let go at the end at the latest."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def no_file_grows(*pids: int) -> Iterator[None]:
    """Yield a full disk that needs no rights: no byte more gets into any file of these processes, of which
    some may end.
    """
    before: dict[int, tuple[int, int]] = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            _, hard = before[pid] = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
