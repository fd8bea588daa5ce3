"""The Spark session, with a reason for each setting that latency or correctness depends on."""

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
from streaming.query.storage import FILE_SYSTEM

DEFAULT_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
# The optimizing compiler never rests, because planning a batch runs much code and little of it often.
# It takes half of a start's processor time (docs/decisions/0014-the-fixed-cost-of-a-batch.md).
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
STATE_STORE = "spark.sql.streaming.stateStore"
CHECKPOINT_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
LOOPBACK = "127.0.0.1"
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened at
SHUFFLE_PARTITIONS = 1
JVM_EXIT_GRACE_S = 30.0
JVM_LOSS_GRACE_S = 5.0
_JAVA_TMPDIR = "/tmp"  # noqa: S108 - what Spark takes without a setting
TASK_FAILURES = 2  # a task whose Python worker died runs once more before the query fails


def settings() -> dict[str, str]:
    """Spark's settings for the coordinator.

    The checkpoint pins the settings of the state at its first batch.
    """
    return {
        # Not spark.jars, because the archive of classes takes no classes of Spark's own class loader, and not
        # spark.jars.packages, which also puts the jars on every Python worker's path.
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in spark_jars()),
        "spark.sql.session.timeZone": "UTC",
        # Each partition costs two passes of a Python worker a batch, even without rows. So: few, at most one
        # a core.
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        # Otherwise a task waits up to 3 s for the executor that has cached the partition's consumer.
        "spark.locality.wait": "0",
        "spark.speculation": "false",
        # For a checkpoint on a local disk (`streaming.query.storage`).
        CHECKPOINT_FILE_MANAGER: FILE_SYSTEM,
        # Clock records come all the time, so no timeout needs a batch without data.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # Over TCP, small pieces to and from a Python worker wait for delayed acknowledgements.
        "spark.python.unix.domain.socket.enabled": "true",
        # The watermark is a literal of the plan, so with code generation every batch compiles new classes.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.ui.explainMode": "simple",
        f"{STATE_STORE}.minDeltasForSnapshot": "200",
        f"{STATE_STORE}.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        # Saves one read for each write. The UI then shows 0 as the number of state rows.
        f"{STATE_STORE}.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.ui.showConsoleProgress": "false",
        # Loopback only, because only this machine uses the driver and its block manager. These settings do
        # not affect the UI, see `_listen_at`.
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        # Users of the UI may look, but not end the query's jobs.
        "spark.ui.killEnabled": "false",
    }


def java_settings() -> dict[str, str]:
    """The options of the JVM. The archive of Spark's classes is among them if it exists.

    A JVM ignores an archive of other classes or of another Java.
    """
    options = [QUICK_COMPILER]
    if (archive := class_archive()).exists():
        options.append(f'"-XX:SharedArchiveFile={archive}"')
    return {DEFAULT_JAVA_OPTIONS: " ".join(options)}


class SparkFailed(RuntimeError):
    """Spark did not start. The message has the reason and the path of Spark's log."""


class Session:
    """A local Spark with the coordinator's settings, in its own JVM that ends with this process.

    `ui_host` is the address the UI listens on. `ui_port` 0 takes a free port, None switches the UI off. The
    JVM's output goes to `log_path`. `hold_fd` stays open until the JVM has ended, see
    `checkpoints.folder.Folder.lock`.
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
        # pyspark reads these only from the environment. Without them it runs any other installed Spark, and
        # workers run the first python3 on the path.
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        os.environ["JAVA_HOME"] = str(find_java().parent.parent)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        _listen_at(ui_host)
        conf = SparkConf(loadDefaults=False).setAppName(app_name)
        conf.setMaster(f"local[{cores or os.cpu_count() or 1},{TASK_FAILURES}]")
        conf.setAll(list((settings() | java_settings() | dict(extra or {})).items()))
        conf.set("spark.ui.enabled", str(ui_port is not None).lower())
        if ui_port is not None:
            conf.set("spark.ui.port", str(ui_port))
        local_dirs = os.environ.get("SPARK_LOCAL_DIRS") or conf.get("spark.local.dir") or _JAVA_TMPDIR
        self.local_dir = Path(local_dirs.split(",")[0])
        """The folder of Spark's temporary files, with its state stores."""
        self.log_path = log_path
        self._gateway = _launch(conf, log_path, hold_fd)
        try:
            with _own_interrupts():
                self._context = SparkContext(conf=conf, gateway=self._gateway)
            self.spark = SparkSession(self._context)
        except BaseException as error:  # also KeyboardInterrupt
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
        """Whether the JVM has ended or is ending now."""
        try:
            self._gateway.proc.wait(JVM_LOSS_GRACE_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, grace_s: float = JVM_EXIT_GRACE_S) -> None:
        """Stop Spark and its JVM, and wait for the JVM. It may have ended already."""
        try:
            self.spark.stop()
        except (Py4JError, OSError):
            self._context.stop()  # without its JVM, pyspark drops the context only at a second call
        self._end_jvm(grace_s)

    def _end_jvm(self, grace_s: float) -> None:
        self._gateway.shutdown()
        # The JVM exits when the pipe to its standard input closes.
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
    """Make the UI listen on this address, and use it in the UI's URL.

    Spark's web servers listen on SPARK_LOCAL_IP of the environment, otherwise on all addresses. No setting of
    the
    session changes that (WebUI.bind of Spark 4.2). SPARK_PUBLIC_DNS is the host of the UI's URL, otherwise
    spark.driver.host, which is also right for a UI on all addresses. Raises SparkFailed if the address is not
    one of this machine, because Spark itself would report that only in its log.
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
    """Start the JVM. Returns the Py4J gateway to it."""
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


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep this process's handler of Ctrl-C. SparkContext replaces it."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
