"""A server's JVM as a child of this process, with its folder and its ports."""

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from embedded import parent_watchdog
from kafka_why.local_files import PRIVATE_UMASK

HOST = "127.0.0.1"
_LOG_TAIL_LINES = 40
# Below Linux's ephemeral range, because an outgoing connection may take a port of that range while the server
# restarts.
_PORT_RANGE = range(20_000, 32_000)


class ChildJvm:
    """A JVM that runs in `folder`, appends its output to `log_path`, and ends with this process, however that
    ends (see `embedded.parent_watchdog`).
    """

    def __init__(self, folder: Path, log_path: Path) -> None:
        self.pid: int | None = None
        """Process id of the JVM while it runs."""
        self._folder = folder
        self._log_path = log_path
        self._log_start = 0
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def is_launched(self) -> bool:
        """True from `launch` until `stop` or `kill`, even if the JVM has ended by itself meanwhile."""
        return self._watchdog is not None

    def mark_log(self) -> None:
        """Make `log_text` begin at the present end of the log."""
        self._log_start = self._log_path.stat().st_size

    def log_text(self) -> str:
        """Return the log from the last mark on."""
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def launch(self, command: Sequence[str], *, grace_s: float, pass_fds: Sequence[int] = ()) -> bool:
        """Start the JVM, which inherits the files `pass_fds`. Return False if its process could not be
        started.
        """
        guarded = [sys.executable, "-I", "-S", parent_watchdog.__file__, str(grace_s), *command]
        with self._log_path.open("ab") as log:
            self._watchdog = subprocess.Popen(
                guarded,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=pass_fds,
                umask=PRIVATE_UMASK,
                start_new_session=True,  # Ctrl-C must reach only the parent, which stops the JVM last
            )
        assert self._watchdog.stdout is not None
        pid = self._watchdog.stdout.readline()
        self.pid = int(pid) if pid else None
        return self.pid is not None

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code if the JVM ends by itself within the time, else None."""
        assert self._watchdog is not None
        try:
            return self._watchdog.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def exit_code(self) -> int | None:
        """Return the exit code of a JVM that ended by itself, or None while it runs and after `stop` and
        `kill`.
        """
        return None if self._watchdog is None else self._watchdog.poll()

    def request_stop(self) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. No effect if down."""
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()

    def stop(self) -> None:
        """Request the stop, and wait for the end of the JVM."""
        self.request_stop()
        self._reap()

    def kill(self) -> None:
        """End the JVM with SIGKILL, as a crash would, and wait for its end. No effect if down."""
        # While the watchdog runs, it has not reaped the JVM, so the process id is still the JVM's.
        if self._watchdog is not None and self._watchdog.poll() is None and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        if self._watchdog is not None:
            with self._watchdog:
                self._watchdog.wait()
        self._watchdog = self.pid = None


@contextmanager
def locked_folder(folder: Path, timeout_s: float) -> Iterator[BinaryIO]:
    """Lock a folder until the block and all processes that inherit the lock's file have ended.

    Raises BlockingIOError if another process holds the lock for longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    with (folder / "lock").open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # The other process may be ending, because its parent has just ended. A lock has no event to
                # wait for.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield lock


def shuffled_free_ports() -> Iterator[int]:
    """Yield ports on which no process listens now. Another process may take them before the server does."""
    # Random, because tests may run side by side.
    return (port for port in random.sample(_PORT_RANGE, len(_PORT_RANGE)) if is_free(port))


def is_free(port: int) -> bool:
    """Return True if no process listens on this port."""
    with socket.socket() as probe:
        # Java sets this, too: then connections of a previous server in TIME_WAIT do not prevent listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def tail(log_text: str) -> str:
    """Return the last lines of a log, for an error."""
    return "\n".join(log_text.splitlines()[-_LOG_TAIL_LINES:])
