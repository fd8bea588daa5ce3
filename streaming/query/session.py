"""The Spark session: each setting that latency and correctness lean on, with its reason."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from embedded.jars import spark_jars
from embedded.java import find_java
from embedded.paths import class_archive

DEFAULT_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
STATE_STORE = "spark.sql.streaming.stateStore"
CHECKPOINT_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
LOOPBACK = "127.0.0.1"
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened at
SHUFFLE_PARTITIONS = 1
JVM_EXIT_GRACE_S = 30.0
JVM_LOSS_GRACE_S = 5.0
_JAVA_TMPDIR = "/tmp"  # noqa: S108 - what Spark takes without a setting
TASK_FAILURES = 2  # a task whose Python worker died is tried once more before the query fails


def settings() -> dict[str, str]:
    """Spark's settings for the coordinator.

    Those of the state are pinned in the checkpoint at its first batch.
    """
    return {
        # Not spark.jars.packages, which also puts the jars on every Python worker's path.
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        "spark.sql.session.timeZone": "UTC",
        # Each partition is two passes of a Python worker a batch, rows or not: no more than cores, and few.
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        # Else a task waits up to 3 s for the executor that has the partition's consumer in its cache.
        "spark.locality.wait": "0",
        "spark.speculation": "false",
        # The default forks some 30 processes a batch on a local disk.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
        # Ticks come all the time, so a batch without data is never needed for a timeout to fire.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        f"{STATE_STORE}.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        # Saves a read for each write; the number of rows shown in the UI is then 0.
        f"{STATE_STORE}.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.ui.showConsoleProgress": "false",
        # Loopback only: the driver and its block manager are nobody else's business. The UI does not go by
        # these, see `_listen_at`.
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        # Whoever reaches the UI may look; ending the query's jobs is not for them.
        "spark.ui.killEnabled": "false",
    }


def class_archive_settings() -> dict[str, str]:
    """The archive of Spark's classes, if it was made: a start takes half the processor time with it.

    A JVM that finds an archive to be of other classes or of another Java goes on without it.
    """
    archive = class_archive()
    return {DEFAULT_JAVA_OPTIONS: f'"-XX:SharedArchiveFile={archive}"'} if archive.exists() else {}


class SparkFailed(RuntimeError):
    """Spark did not start; the message says why and where its log is."""


class Session:
    """A local Spark with the coordinator's settings, in a JVM of its own that ends with this process.

    `ui_host` is where the UI listens; `ui_port` 0 takes a free port, None switches the UI off. `log_path`
    gets the JVM's output. `hold_fd` stays open until the JVM has ended, see `checkpoints.folder.Folder.lock`.
    `extra` are further Spark settings.
    """

    def __init__(
        self,
        *,
        log_path: Path,
        app_name: str = "group-coordinator",
        cores: int | None = None,
        ui_host: str = LOOPBACK,
        ui_port: int | None = None,
        hold_fd: int | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        # pyspark takes these from the environment alone; else it runs another Spark that is installed, and
        # workers whatever python3 is first on the path.
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        os.environ["JAVA_HOME"] = str(find_java().parent.parent)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        _listen_at(ui_host)
        conf = SparkConf(loadDefaults=False).setAppName(app_name)
        conf.setMaster(f"local[{cores or os.cpu_count() or 1},{TASK_FAILURES}]")
        conf.setAll(list((settings() | class_archive_settings() | dict(extra or {})).items()))
        conf.set("spark.ui.enabled", str(ui_port is not None).lower())
        if ui_port is not None:
            conf.set("spark.ui.port", str(ui_port))
        local_dirs = os.environ.get("SPARK_LOCAL_DIRS") or conf.get("spark.local.dir") or _JAVA_TMPDIR
        self.local_dir = Path(local_dirs.split(",")[0])
        """Where Spark keeps what it needs while it runs, its state stores among it."""
        self._gateway = _launch(conf, log_path, hold_fd)
        try:
            with _own_interrupts():
                self._context = SparkContext(conf=conf, gateway=self._gateway)
            self.spark = SparkSession(self._context)
        except BaseException as error:  # Ctrl-C too
            failure = _failed(error, log_path)  # Java's errors can be read only while the JVM runs
            self._end_jvm(grace_s=0)
            if isinstance(error, Exception):
                raise failure from None
            raise

    @property
    def ui_url(self) -> str | None:
        return self._context.uiWebUrl

    @property
    def jvm_pid(self) -> int:
        return int(self._gateway.proc.pid)

    def has_lost_jvm(self) -> bool:
        """Whether the JVM has ended, or does so now."""
        try:
            self._gateway.proc.wait(JVM_LOSS_GRACE_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, grace_s: float = JVM_EXIT_GRACE_S) -> None:
        """End Spark and its JVM, and wait for the JVM, which may have ended already."""
        try:
            self.spark.stop()
        except (Py4JError, OSError):
            self._context.stop()  # without its JVM, pyspark forgets the context only when asked again
        self._end_jvm(grace_s)

    def _end_jvm(self, grace_s: float) -> None:
        self._gateway.shutdown()
        # The JVM ends when the pipe to its standard input does.
        self._gateway.proc.stdin.close()
        try:
            self._gateway.proc.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._gateway.proc.kill()
            self._gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _listen_at(ui_host: str) -> None:
    """Let the UI listen at this address, and be named by it.

    Spark's web servers listen at SPARK_LOCAL_IP of the environment, else at all addresses: no setting of the
    session says it (WebUI.bind of Spark 4.2). SPARK_PUBLIC_DNS is the host of the UI's URL, else
    spark.driver.host, which is right for a UI at all addresses, too. Raises SparkFailed where the address is
    not one of this machine: of Spark's own end only its log would tell why.
    """
    family = socket.AF_INET6 if ":" in ui_host else socket.AF_INET
    try:
        socket.create_server((ui_host, 0), family=family).close()
    except OSError as error:
        raise SparkFailed(f"the Spark UI cannot listen at {ui_host}: {error.strerror}") from error
    os.environ["SPARK_LOCAL_IP"] = ui_host
    if ui_host in ANY_ADDRESS:
        os.environ.pop("SPARK_PUBLIC_DNS", None)
    else:
        os.environ["SPARK_PUBLIC_DNS"] = f"[{ui_host}]" if ":" in ui_host else ui_host


def _launch(conf: SparkConf, log_path: Path, hold_fd: int | None) -> Any:
    """Start the JVM; the gateway to it."""
    with log_path.open("ab") as log:
        popen: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
        if hold_fd is not None:
            popen["pass_fds"] = (hold_fd,)
        try:
            with _deferred_signals():
                return launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
        except (PySparkException, OSError) as error:
            raise _failed(error, log_path) from error


def _failed(error: BaseException, log_path: Path) -> SparkFailed:
    # Py4J puts Java's message on the second line.
    lines = str(error).strip().splitlines()
    reason = " ".join(lines[:2]) if isinstance(error, Py4JError) else "".join(lines[:1])
    return SparkFailed(f"Spark did not start: {reason.rstrip('.')}. Its log is {log_path}")


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait: launch_gateway, interrupted, leaves a JVM behind that nobody can end."""
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


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep this process's handler of Ctrl-C, which SparkContext replaces by one of its own."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
