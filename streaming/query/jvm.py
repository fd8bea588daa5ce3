"""Spark's JVM: one of this process's own, or that of `spark-submit`, which started this process."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

LAUNCH_S = 60.0
"""A JVM that has not answered so long after its launch is killed. It takes 1 s, on a busy machine 10 s."""
LOSS_GRACE_S = 5.0
_POLL_S = 0.1
# spark-submit tells the Python process that it starts the port of its JVM.
_GIVEN = "PYSPARK_GATEWAY_PORT"
LAUNCH_ERRORS = (PySparkException, Py4JError, OSError)


class SparkFailed(RuntimeError):
    """Spark did not start, or has ended. The message has the reason and the path of Spark's log."""


class Jvm(Protocol):
    """A running JVM. `gateway` is PySpark's connection to it."""

    gateway: Any

    @property
    def pid(self) -> int: ...

    def has_ended(self) -> bool:
        """Whether the JVM has ended, or ends within LOSS_GRACE_S."""
        ...

    def kill(self) -> None:
        """End the JVM at once. It may have ended already."""
        ...

    def end(self, grace_s: float) -> None:
        """End the JVM if it is this process's own, and the connection to it. It may have ended already."""
        ...


class OwnJvm:
    """A JVM that ends with this process. `hold_fd` stays open until it ends. `log_path` gets its output.

    Raises one of LAUNCH_ERRORS, and SparkFailed if it hangs.
    """

    def __init__(self, conf: SparkConf, log_path: Path, hold_fd: int | None) -> None:
        with log_path.open("ab") as log:
            popen: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
            if hold_fd is not None:
                popen["pass_fds"] = (hold_fd,)
            with _deferred_signals(), _not_longer_than(LAUNCH_S, log_path):
                self.gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]

    @property
    def pid(self) -> int:
        return int(self.gateway.proc.pid)

    def has_ended(self) -> bool:
        try:
            self.gateway.proc.wait(LOSS_GRACE_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self.gateway.proc.kill()

    def end(self, grace_s: float) -> None:
        self.gateway.shutdown()
        # The JVM exits when the pipe to its standard input closes.
        self.gateway.proc.stdin.close()
        try:
            self.gateway.proc.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.gateway.proc.kill()
            self.gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


class GivenJvm:
    """The JVM of `spark-submit`. It waits for this process, and ends after it."""

    def __init__(self) -> None:
        self.gateway = launch_gateway()  # type: ignore[no-untyped-call]
        self._pid = int(self.gateway.jvm.java.lang.ProcessHandle.current().pid())

    @property
    def pid(self) -> int:
        return self._pid

    def has_ended(self) -> bool:
        give_up_s = time.monotonic() + LOSS_GRACE_S
        while time.monotonic() < give_up_s:
            try:
                ping(self.gateway)
            except (Py4JError, OSError):
                return True
            time.sleep(_POLL_S)
        return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def end(self, grace_s: float) -> None:
        SparkContext._gateway = SparkContext._jvm = None


def ping(gateway: Any) -> None:
    """Ask the JVM behind a gateway for something. Raises Py4JError or OSError if it has ended."""
    gateway.jvm.java.lang.System.nanoTime()


def is_given() -> bool:
    """Whether spark-submit has started this process."""
    return _GIVEN in os.environ


def failed(error: BaseException, log: Path | str) -> SparkFailed:
    """The error for a start that failed. `log` is where Spark's log is."""
    try:
        text = str(error)
    except (Py4JError, OSError):  # the JVM has ended, and with it the text of Java's error
        text = type(error).__name__
    # Py4J puts Java's message on the second line.
    lines = text.strip().splitlines()
    reason = " ".join(lines[:2]) if isinstance(error, Py4JError) else "".join(lines[:1])
    return SparkFailed(f"Spark did not start: {reason.rstrip('.')}. Its log is {log}")


@contextlib.contextmanager
def _not_longer_than(limit_s: float, log_path: Path) -> Iterator[None]:
    """Kill the JVM that this thread launches if that takes longer. Then raises SparkFailed.

    launch_gateway waits for its JVM without a limit, and does not say which process it is.
    """
    thread = threading.get_native_id()
    older = _children_of(thread)
    killed: list[int] = []

    def kill() -> None:
        for pid in _children_of(thread) - older:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    timer = threading.Timer(limit_s, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except LAUNCH_ERRORS as error:
        if not killed:
            raise
        reason = f"its JVM did not answer within {limit_s:.0f} s, so it was killed"
        raise SparkFailed(f"Spark did not start: {reason}. Its log is {log_path}") from error
    finally:
        timer.cancel()


def _children_of(thread: int) -> set[int]:
    """The processes that a thread of this process has started; none where the system does not say so."""
    try:
        return {int(pid) for pid in Path(f"/proc/self/task/{thread}/children").read_text().split()}
    except OSError:
        return set()


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM, because an interrupted launch_gateway leaves a JVM that nothing ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda it, _: came.append(it)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
        for it in came:
            signal.raise_signal(it)
