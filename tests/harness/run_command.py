"""`group-coordinator run` as a process, its child processes, and ways to pause processes."""

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
from threading import Thread
from typing import Any

from tests.e2e.harness import QUICK_JAVA, START_TIMEOUT_S, child_pids, command_of

COMMAND = [sys.executable, "-c", "from cli import main; main()", "run"]
BROKER = "kafka.Kafka"
SPARK = "org.apache.spark.deploy.SparkSubmit"


@dataclass
class Run:
    """A running command in a session of its own, as on a terminal, so that it can be sent Ctrl-C."""

    process: subprocess.Popen[str]
    stderr_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text()

    def ready(self) -> dict[str, Any]:
        """Wait for the JSON line that the command prints when it is ready, and return it."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        assert readable, self.stderr
        ready: dict[str, Any] = json.loads(self.process.stdout.readline())
        return ready

    def end(self, timeout_s: float = START_TIMEOUT_S) -> tuple[int, str]:
        """Wait for the end of the command. Return its exit code, and the rest of its output."""
        rest, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, rest

    def interrupt(self) -> None:
        """Send SIGINT to the whole process group, as a terminal does for Ctrl-C."""
        os.killpg(self.pid, signal.SIGINT)


@contextmanager
def run(tmp_path: Path, *arguments: str, within: Sequence[str] = ()) -> Iterator[Run]:
    """Run the command, wrapped by the command `within` if it is given, until the block ends.

    If the test fails, the last lines of standard error become a note of its exception.
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
    """All descendants of a process, by handles that stay valid when a process has ended."""

    def __init__(self, pid: int) -> None:
        self.handles: dict[int, int] = {}
        self._add(pid)

    def _add(self, pid: int) -> None:
        for child in child_pids(pid):
            with suppress(ProcessLookupError):  # Spark's JVM has children that end at once
                self.handles[child] = os.pidfd_open(child)
                self._add(child)

    def running(self) -> list[str]:
        """Return the commands of the descendants that still run."""
        ended, _, _ = select.select(list(self.handles.values()), [], [], 0)
        return [command_of(pid) for pid, fd in self.handles.items() if fd not in ended]

    def has(self, part: str) -> bool:
        """Return True if a descendant that still runs has `part` in its command line."""
        return any(part in command for command in self.running())

    def close(self) -> None:
        for handle in self.handles.values():
            os.close(handle)


@contextmanager
def descendants(pid: int) -> Iterator[Descendants]:
    handles = Descendants(pid)
    yield handles
    handles.close()


def children_running(pid: int, part: str) -> list[int]:
    """Return the running children with `part` in their command line."""
    return [child for child in child_pids(pid) if part in command_of(child)]


def jvm_of(pid: int) -> int:
    (jvm,) = children_running(pid, SPARK)
    return jvm


@contextmanager
def hold(pid: int) -> Iterator[None]:
    """Pause a process until the block ends."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def no_file_grows(*pids: int) -> Iterator[None]:
    """Simulate a full disk without root's rights: files of these processes cannot grow until the block ends.
    Some of the processes may end meanwhile.
    """
    limits_before: dict[int, tuple[int, int]] = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            _, hard = limits_before[pid] = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limits in limits_before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


class Followed:
    """Lines of JSON that the command has printed so far."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def of(self, kind: str) -> list[Any]:
        return [line[kind] for line in self.lines if kind in line]


@contextmanager
def follow(group: str, *options: str) -> Iterator[Followed]:
    """Follow a group in another process, which ends in order."""
    command = [sys.executable, "-c", "from cli import main; main()", "why", group, *options]
    process = subprocess.Popen([*command, "--follow", "-o", "json"], stdout=subprocess.PIPE, text=True)
    followed = Followed()

    def read() -> None:
        assert process.stdout is not None
        for line in iter(process.stdout.readline, ""):
            followed.lines.append(json.loads(line))

    reader = Thread(target=read, daemon=True)
    with process:
        reader.start()
        try:
            yield followed
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            reader.join()
