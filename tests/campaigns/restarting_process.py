"""A process that is restarted whenever it ends, as systemd does with `Restart=on-failure`."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from embedded import parent_watchdog

LOST_ITS_TOPICS = 78
# docs/running.md, "Exit codes": a restart would end the same way.
FINAL_CODES = (0, 2, LOST_ITS_TOPICS)
RESTART_PAUSE_S = 0.1
_GRACE_S = 5


@dataclass(frozen=True)
class End:
    """An end of the process. `said` is its last line on standard error."""

    at_s: float
    exit_code: int
    said: str


class RestartingProcess:
    """Keeps a command running until `stop`. Its output is in ``folder/<name>-<number of the start>.log``.

    The command ends when this process ends, for whatever reason (`embedded.parent_watchdog`).
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        final_codes: Container[int] = FINAL_CODES,
    ) -> None:
        """The command is not restarted after an exit with one of `final_codes`."""
        self.name = name
        self.final_codes = final_codes
        self.command = list(command)
        self.ends: list[End] = []
        self.pid: int | None = None
        self.starts, self.started_ms = 0, 0
        self._folder = folder
        self._environment = dict(os.environ) | dict(environment)
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._changed = threading.Condition()
        self._is_wanted = False
        self._thread = threading.Thread(target=self._keep, name=f"{name} keeper", daemon=True)

    @property
    def log_path(self) -> Path:
        """The output of the latest start."""
        return self._folder / f"{self.name}-{self.starts}.log"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def start(self) -> None:
        """Start the command, and keep it running from now on."""
        with self._changed:
            self._is_wanted = True
            self._changed.notify_all()
        if not self._thread.is_alive():
            self._thread.start()
        self.wait_until_started()

    def wait_until_started(self, after: int = 0, timeout_s: float = 60) -> int:
        """Wait until the process runs and was started more than `after` times. Return its process id."""
        with self._changed:
            is_started = self._changed.wait_for(
                lambda: self.pid is not None and self.starts > after, timeout_s
            )
            assert is_started, f"{self.name} was not started within {timeout_s} s"
            assert self.pid is not None
            return self.pid

    def wait_for_end(self, after: int, timeout_s: float) -> End:
        """Wait until the process has ended more than `after` times. Return the first of the later ends."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ends) > after, timeout_s), (
                f"{self.name} did not end within {timeout_s} s"
            )
            return self.ends[after]

    def kill(self) -> None:
        """Kill the process with SIGKILL. It is started again unless it is held down."""
        self.signal(signal.SIGKILL)

    def end_and_start(self, end: Callable[[], None] | None = None) -> None:
        """End the process by `end` (default: SIGKILL), and wait until it is started again."""
        starts = self.starts
        (end or self.kill)()
        self.wait_until_started(starts, timeout_s=120)

    def signal(self, number: int) -> None:
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @contextmanager
    def held_down(self, kill: Callable[[], None] | None = None) -> Iterator[None]:
        """End the process by `kill` (default: SIGKILL), and start it again when the block ends."""
        with self._changed:
            self._is_wanted = False
            starts = self.starts
        (kill or self.kill)()
        with self._changed:
            assert self._changed.wait_for(lambda: self.pid is None, 60), f"{self.name} does not end"
        try:
            yield
        finally:
            with self._changed:
                self._is_wanted = True
                self._changed.notify_all()
        self.wait_until_started(starts)

    def stop(self) -> None:
        """End the process for good: SIGTERM, and SIGKILL after some seconds."""
        with self._changed:
            self._is_wanted = False
            watchdog = self._watchdog
        if watchdog is not None and watchdog.stdin is not None:
            self.signal(signal.SIGCONT)
            watchdog.stdin.close()
            with self._changed:
                self._changed.wait_for(lambda: self.pid is None, 60)

    def _keep(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_wanted)
            watchdog = self._start()
            code = watchdog.wait()
            with self._changed:
                self.ends.append(End(time.time(), code, last_line(self.log)))
                self.pid = self._watchdog = None
                if code in self.final_codes:
                    self._is_wanted = False
                self._changed.notify_all()
            for pipe in (watchdog.stdin, watchdog.stdout):
                assert pipe is not None
                pipe.close()
            time.sleep(RESTART_PAUSE_S)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._changed:
            self.starts, self.started_ms = self.starts + 1, time.time_ns() // 1_000_000
        with self.log_path.open("wb") as log:
            watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", parent_watchdog.__file__, str(_GRACE_S), *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        assert watchdog.stdout is not None
        pid = int(watchdog.stdout.readline())
        with self._changed:
            self._watchdog, self.pid = watchdog, pid
            self._changed.notify_all()
        return watchdog


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
