"""The JVM of Spark: one that this process starts, or that of `spark-submit`."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from kafka_why.errors import MultilineError
from kafka_why.local_files import FolderNotWritable, make_private_folder

LAUNCH_S = 60.0
"""A JVM that has not answered this long after its launch is killed. It takes 1 s, on a busy machine 10 s."""
# A JVM counts as ended if it ends within this time.
LOSS_GRACE_S = 5.0
_POLL_S = 0.1
# The variable in which spark-submit passes the port of its JVM to the Python process.
_GATEWAY_PORT_VARIABLE = "PYSPARK_GATEWAY_PORT"
LAUNCH_ERRORS = (PySparkException, Py4JError, OSError)


class SparkFailed(MultilineError):
    """Spark did not start or has ended. The message has the reason and the path of Spark's log."""


class OwnJvm:
    """A JVM that ends with this process. `gateway` is PySpark's connection to it.

    It holds `hold_fd`, with the lock of the coordinator's folder, open until it ends. Its output goes to
    `log_path`. Raises one of LAUNCH_ERRORS, and SparkFailed if it hangs.
    """

    def __init__(self, conf: SparkConf, log_path: Path, hold_fd: int | None) -> None:
        with log_path.open("ab") as log:
            popen_options: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
            if hold_fd is not None:
                popen_options["pass_fds"] = (hold_fd,)
            with _deferred_signals(), _launch_time_limit(LAUNCH_S, log_path):
                self.gateway = launch_gateway(conf, popen_options)  # type: ignore[no-untyped-call]

    @property
    def pid(self) -> int:
        return int(self.gateway.proc.pid)

    def has_ended(self) -> bool:
        """Return True if the JVM has ended, or ends within LOSS_GRACE_S."""
        try:
            self.gateway.proc.wait(LOSS_GRACE_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the JVM at once. It may have ended already."""
        self.gateway.proc.kill()

    def end(self, grace_s: float) -> None:
        """End the JVM, and close the connection. It may have ended already."""
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
    """The JVM of `spark-submit`. It waits for this process, and ends after it. The methods are OwnJvm's."""

    def __init__(self) -> None:
        self.gateway = launch_gateway()  # type: ignore[no-untyped-call]
        self.pid = int(self.gateway.jvm.java.lang.ProcessHandle.current().pid())

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
            os.kill(self.pid, signal.SIGKILL)

    def end(self, grace_s: float) -> None:
        """Close the connection."""
        SparkContext._gateway = SparkContext._jvm = None


Jvm = OwnJvm | GivenJvm


def ping(gateway: Any) -> None:
    """Send a trivial call to the JVM behind a gateway. Raises Py4JError or OSError if it has ended."""
    gateway.jvm.java.lang.System.nanoTime()


def is_given() -> bool:
    """Return True if spark-submit has started this process."""
    return _GATEWAY_PORT_VARIABLE in os.environ


def start_failure(error: BaseException, log: Path | str) -> SparkFailed:
    """Return the error for a start that failed. `log` names Spark's log."""
    try:
        text = str(error)
    except (Py4JError, OSError):  # the JVM has ended, and with it the text of Java's error
        text = type(error).__name__
    # Py4J puts Java's message on the second line.
    lines = text.strip().splitlines()
    reason = " ".join(lines[:2]) if isinstance(error, Py4JError) else "".join(lines[:1])
    return SparkFailed(f"Spark did not start: {reason.rstrip('.')}. Its log is {log}")


@contextlib.contextmanager
def _launch_time_limit(limit_s: float, log_path: Path) -> Iterator[None]:
    """Kill the JVM that this thread launches in the block, and raise SparkFailed, if the block takes longer
    than `limit_s`.

    launch_gateway waits for its JVM without a limit, and does not report the process. So the JVM is found as
    a new child of this thread.
    """
    thread = threading.get_native_id()
    earlier_children = _children_of(thread)
    killed: list[int] = []

    def kill() -> None:
        for pid in _children_of(thread) - earlier_children:
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
    """Return the ids of the processes that a thread of this process has started.

    The result is empty if the system does not list them.
    """
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
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda signum, _: received.append(signum)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
        for signum in received:
            signal.raise_signal(signum)


# The watchdog: it ends a JVM that hangs, so that another one can be started.
#
# A JVM that does not answer for `UNANSWERED_S` is killed, even while Spark starts. The service then continues
# as after any end of its JVM (`streaming.service.query.spark_keeper`).


UNANSWERED_S = 10
INTERVAL_S = 1.0


class Watchdog:
    """A watchdog that calls `ping` of the JVM once per interval.

    `on_hung` is called once, in a thread, after UNANSWERED_S intervals (of a second) without an answer. The
    watchdog counts intervals instead of comparing times, because time in which this process is stopped must
    not count.
    """

    def __init__(
        self,
        ping: Callable[[], object],
        on_hung: Callable[[str], None],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._ping = ping
        self._on_hung = on_hung
        self._interval_s = interval_s
        self._has_answered = threading.Event()
        self._stopping = threading.Event()
        # Two threads, because a ping of a hung JVM does not return.
        self._ping_thread = threading.Thread(target=self._ping_repeatedly, name="watchdog-ping", daemon=True)
        self._watch_thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._ping_thread.start()
        self._watch_thread.start()

    def stop(self) -> None:
        """Stop the watch. A ping without an answer stays open."""
        self._stopping.set()
        self._watch_thread.join()
        self._ping_thread.join(self._interval_s)

    def _ping_repeatedly(self) -> None:
        """Ping the JVM until stopped. Stop the watch when the JVM has ended."""
        while not self._stopping.is_set():
            try:
                self._ping()
            except (Py4JError, OSError):
                self._stopping.set()  # the JVM has ended, which the supervisor sees
                return
            self._has_answered.set()
            self._stopping.wait(self._interval_s / 2)

    def _watch(self) -> None:
        """Call `on_hung` and end after UNANSWERED_S intervals without an answer, or end when stopped."""
        unanswered_intervals = 0
        while not self._stopping.wait(self._interval_s):
            unanswered_intervals = 0 if self._has_answered.is_set() else unanswered_intervals + 1
            self._has_answered.clear()
            if unanswered_intervals >= UNANSWERED_S:
                self._on_hung(f"Spark's JVM has not answered for {UNANSWERED_S} s")
                return


# The temporary files of Spark's JVM are in a folder of the coordinator, emptied before each start of a JVM.
#
# A JVM that is killed leaves its temporary files: native libraries, some 15 MB, and a copy of the state. In
# /tmp they would stay forever. The lock of the coordinator's folder ensures that no other JVM uses them.


LOCAL_DIR = "spark.local.dir"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"
# The path of a Unix socket has at most 106 bytes in Java, 107 in Linux. The name of Spark's socket takes 43
# with its slash.
SOCKET_FOLDER_MAX_BYTES = 63
_SHORT_FOLDER = "/tmp"  # noqa: S108 - Spark gives each socket a random name


def temporary_file_settings(folder: Path, spark: Mapping[str, str], *, is_local: bool) -> dict[str, str]:
    """Empty this folder, and return `spark` with the settings that put the JVM's temporary files in it.

    Settings in `spark` about temporary files take precedence. If `is_local`, no executor runs elsewhere.
    Raises FolderNotWritable.
    """
    folder = folder.absolute()
    empty_folder(folder)
    ours = {}
    if is_local:  # executors elsewhere do not have this folder
        ours[LOCAL_DIR] = str(folder)
    if not _can_have_sockets(folder):  # Spark creates its sockets in java.io.tmpdir by default
        system_folder = Path(tempfile.gettempdir())
        ours[SOCKET_FOLDER] = str(system_folder if _can_have_sockets(system_folder) else _SHORT_FOLDER)
    options = [
        f'"-Djava.io.tmpdir={folder}"',
        spark.get(JAVA_OPTIONS, ""),
    ]  # Java uses the last of two values, so a given one takes precedence
    return ours | dict(spark) | {JAVA_OPTIONS: " ".join(filter(None, options))}


def _can_have_sockets(folder: Path) -> bool:
    """Return True if the folder's path leaves enough bytes for the name of a socket."""
    return len(os.fsencode(folder)) <= SOCKET_FOLDER_MAX_BYTES


def empty_folder(folder: Path) -> None:
    """Empty or create the folder. No JVM may use it. Raises FolderNotWritable."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        make_private_folder(folder)
    except OSError as error:
        raise FolderNotWritable(f"{folder} cannot be written: {error.strerror}") from error
