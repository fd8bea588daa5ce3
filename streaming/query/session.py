"""The Spark session: local or on a cluster, in its own JVM or that of spark-submit."""

import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from embedded.java import find_java
from kafka_why.lifetimes import Closeable
from streaming.query import executors, jvm
from streaming.query.jvm import (
    GivenJvm,
    Jvm,
    OwnJvm,
    SparkFailed,
    Watchdog,
    empty_folder,
    temporary_file_settings,
)
from streaming.query.spark_settings import (
    ANY_ADDRESS,
    FIXED,
    LOCAL_TASK_FAILURES,
    STATE_PARTITIONS,
    SettingRefused,
    cluster_settings,
    hosts_of,
    is_local,
    jar_settings,
    java_settings,
    local_dir,
    local_settings,
    merged,
    settings,
)
from streaming.query.spark_settings import CHECKPOINT_FILE_MANAGER as CHECKPOINT_FILE_MANAGER
from streaming.query.spark_settings import LOOPBACK as LOOPBACK

MASTER_WAIT_S = 120.0
"""The time for which a driver waits for its master, because a cluster starts both at once."""

# To the master.
_CONNECT_TIMEOUT_S = 5.0
_CONNECT_PAUSE_S = 1.0

log = structlog.get_logger()


def check_master(master: str | None) -> None:
    """Raise SparkFailed if a standalone master was given and does not answer. Spark itself would try for a
    minute.
    """
    if (reason := _why_silent(master)) is not None:
        raise SparkFailed(reason)


def wait_for_master(master: str | None, given_up: threading.Event, timeout_s: float = MASTER_WAIT_S) -> None:
    """Wait for a standalone master. Raises SparkFailed after `timeout_s`, or once `given_up` is set."""
    until_s = time.monotonic() + timeout_s
    has_warned = False
    while (reason := _why_silent(master)) is not None:
        if not has_warned:
            log.warning("waiting for the Spark master", reason=reason, timeout_s=timeout_s)
            has_warned = True
        if time.monotonic() >= until_s or given_up.wait(_CONNECT_PAUSE_S):
            raise SparkFailed(reason)


def _why_silent(master: str | None) -> str | None:
    """Return why no standalone master answers, or None if one answers or none is expected."""
    if master is None or not master.startswith("spark://"):
        return None
    reasons = []
    for host, port in hosts_of(master):
        try:
            socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return None
    return f"no Spark master answers ({'; '.join(reasons) or master})"


JVM_EXIT_GRACE_S = 30.0
_KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_PYTHON = "spark.pyspark.python"
WORKER_DAEMON = "streaming.query.worker_daemon"


class Session(Closeable):
    """A Spark session with the coordinator's settings. Its JVM ends with this process. Raises SparkFailed.

    On a cluster, the code is sent to the executors, and they are checked. With the JVM of spark-submit,
    `log_path`, `cores`, `ui_host`, `hold_fd` and `temporary_folder` have no effect.

    After the JVM has ended, `restart` starts Spark in another one. Methods may be called in several threads,
    but not during `restart`.
    """

    def __init__(
        self,
        *,
        log_path: Path,  # for the JVM's output
        app_name: str = "group-coordinator",
        cores: int | None = None,  # the threads of a local Spark
        ui_host: str = LOOPBACK,  # where the UI listens
        ui_port: int | None = None,  # 0: a free port; None: no UI
        hold_fd: int | None = None,  # open until the JVM ends (`kafka_why.local_files.Folder.lock`)
        # Emptied, and then for the JVM's temporary files. None: the system's folder.
        temporary_folder: Path | None = None,
        master: str | None = None,  # None: a local Spark, or the master that spark-submit was given
        # Where executors reach the driver. None: the address from which this machine reaches the master.
        driver_host: str | None = None,
        extra: Mapping[str, str] | None = None,  # Spark settings, which override the coordinator's
    ) -> None:
        given = dict(extra or {})
        self._temporary_folder = None if jvm.is_given() else temporary_folder
        if self._temporary_folder is not None:
            given = temporary_file_settings(self._temporary_folder, given, is_local=is_local(master))
        ours = settings() | {"spark.app.name": app_name, "spark.ui.enabled": str(ui_port is not None).lower()}
        if ui_port is not None:
            ours["spark.ui.port"] = str(ui_port)
        self._code_folders = contextlib.ExitStack()  # of the code that was sent to executors
        self.log_path: Path | str = log_path
        """The path or name of the JVM's log."""
        self.requirements: executors.WorkerRequirements | None = None
        """The requirements on executors, or None for a local Spark."""
        self.ui_url: str | None = None
        """The URL of the UI, or None if the UI is off."""
        self.restarts = 0
        """The number of times that `restart` has started Spark."""
        self._hold_fd = hold_fd
        submitted = GivenJvm() if jvm.is_given() else None
        if submitted is not None:
            self.log_path = "the output of spark-submit"
            conf = SparkConf(loadDefaults=True, _jvm=submitted.gateway.jvm)
            _check_submitted(submitted, conf)
            master = master or conf.get("spark.master")
            driver_host = driver_host or conf.get("spark.driver.host")
        else:
            conf = SparkConf(loadDefaults=False)
            # pyspark reads these only from the environment. Without them it runs any other installed Spark.
            os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
            os.environ["JAVA_HOME"] = str(find_java().parent.parent)
            _listen_at(ui_host)
            check_master(master)
            ours |= java_settings() | jar_settings(master)
            if is_local(master):  # executors get this code only after their daemons have started
                ours["spark.python.daemon.module"] = WORKER_DAEMON
        self.is_local = is_local(master)
        if master is None:
            master = f"local[{cores or os.cpu_count() or 1},{LOCAL_TASK_FAILURES}]"
        try:
            ours |= local_settings() if self.is_local else cluster_settings(master, driver_host)
        except SettingRefused as error:
            raise SparkFailed(str(error)) from error
        # The given settings override the coordinator's, which override those of spark-submit.
        defaults = merged(dict(conf.getAll()), ours)
        conf.setAll(list(merged(defaults, given).items())).setMaster(master)
        _choose_python(conf, is_local=self.is_local)
        self.local_dir = local_dir(conf.get("spark.local.dir"))
        """The folder of Spark's temporary files, or on a cluster those of the driver."""
        self._conf = conf
        self._jvm: Jvm = submitted or self._launch()
        self._start()
        if submitted is None and self.ui_url is not None:
            conf.set("spark.ui.port", str(urlsplit(self.ui_url).port))  # for a restart

    def _launch(self) -> OwnJvm:
        """Start this process's own JVM. Raises SparkFailed."""
        try:
            return OwnJvm(self._conf, Path(self.log_path), self._hold_fd)
        except jvm.LAUNCH_ERRORS as error:
            raise jvm.start_failure(error, self.log_path) from error

    def _start(self) -> None:
        """Start Spark in the JVM, and prepare the executors of a cluster. After an error, end the JVM."""
        try:
            with self._killing_hung_jvm(), _keeping_interrupt_handler():
                self._context = SparkContext(conf=self._conf, gateway=self._jvm.gateway)
            # Otherwise the accumulators' server prints a traceback when the JVM ends.
            self._context._accumulatorServer.handle_error = _ignore_error  # type: ignore[method-assign]
            self.spark = SparkSession(self._context)
            self.ui_url = self._context.uiWebUrl
            if not self.is_local:
                self._prepare_executors()
        except BaseException as error:  # also KeyboardInterrupt
            # Java's errors can be read only while the JVM runs.
            failure = error if isinstance(error, SparkFailed) else jvm.start_failure(error, self.log_path)
            _drop_context()
            self._jvm.end(grace_s=0)
            self._code_folders.close()
            if isinstance(error, Exception):
                raise failure from None
            raise

    @contextlib.contextmanager
    def _killing_hung_jvm(self) -> Iterator[None]:
        """Kill this process's own JVM if it hangs while Spark starts in the block. The block's error then
        becomes SparkFailed with that reason.
        """
        if not self.can_restart:
            yield
            return
        # Calls to a hung JVM would wait forever.
        hang_reasons: list[str] = []

        def kill(reason: str) -> None:
            hang_reasons.append(reason)
            self.kill()

        watchdog = Watchdog(self.ping, kill)
        watchdog.start()
        try:
            yield
        except Exception as error:
            if hang_reasons:
                reason = f"{hang_reasons[0]}, so it was killed"
                raise SparkFailed(f"Spark did not start: {reason}. Its log is {self.log_path}") from error
            raise
        finally:
            watchdog.stop()

    @property
    def can_restart(self) -> bool:
        """True if the JVM is this process's own, not that of spark-submit."""
        return isinstance(self._jvm, OwnJvm)

    def restart(self) -> None:
        """End the old JVM completely, and start Spark again in a new one with the same settings.

        The UI gets its port again if that is free. Only `spark` and its objects are new. Raises SparkFailed
        and FolderNotWritable. It may be called again after either error.
        """
        assert self.can_restart, "the JVM of spark-submit cannot be started again"
        if self.has_lost_jvm():
            self._context._jsc = None  # otherwise pyspark asks it to stop, and warns
        self.close()
        check_master(self._conf.get("spark.master"))
        if self._temporary_folder is not None:
            empty_folder(self._temporary_folder)
        self._jvm = self._launch()
        with _keeping_python_path():
            self._start()
        self.restarts += 1

    def _prepare_executors(self) -> None:
        """Send the code to the executors, and check them. Raises SparkFailed."""
        folder = self._code_folders.enter_context(tempfile.TemporaryDirectory(prefix="group-coordinator-"))
        executors.send_code(self._context, Path(folder))
        self.requirements = executors.requirements_of_driver()
        try:
            executors.check(self._context, self.requirements)
        except executors.ExecutorsUnfit as error:
            raise SparkFailed(f"{error}. Spark's log is {self.log_path}") from error

    @property
    def jvm_pid(self) -> int:
        return self._jvm.pid

    def kill(self) -> None:
        """End a JVM that hangs. `has_lost_jvm` then returns True."""
        self._jvm.kill()

    def has_lost_jvm(self) -> bool:
        """Return True if the JVM has ended or is ending now."""
        return self._jvm.has_ended()

    def use_state_partitions(self, number: int) -> None:
        """Set the number of state partitions of queries that start from now on. A checkpoint that exists
        keeps its own number.
        """
        self._conf.set(STATE_PARTITIONS, str(number))  # for a restart
        self.spark.conf.set(STATE_PARTITIONS, number)

    def ping(self) -> None:
        """Send a trivial call to the JVM. Raises Py4JError or OSError if it has ended."""
        jvm.ping(self._jvm.gateway)

    def check_running(self) -> None:
        """Raise SparkFailed if Spark has stopped. If the JVM has ended, the errors are Py4J's.

        A cluster gives up an application whose executors keep failing.
        """
        if self._context._jsc is not None and self._context._jsc.sc().isStopped():
            raise SparkFailed(f"Spark has stopped the application. Its log is {self.log_path}")

    def close(self, grace_s: float = JVM_EXIT_GRACE_S) -> None:
        """Stop Spark and its JVM, and wait for the JVM. It may have ended already."""
        with contextlib.suppress(Py4JError, OSError):
            self.spark.stop()
        _drop_context()
        self._jvm.end(grace_s)
        self._code_folders.close()


def _ignore_error(request: object, client_address: object) -> None: ...


@contextlib.contextmanager
def _keeping_python_path() -> Iterator[None]:
    """Restore `sys.path` after the block: a second SparkContext adds a folder to it that nothing needs."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path


def _drop_context() -> None:
    """Stop the SparkContext of a start that failed or of a JVM that has ended, if there is one."""
    context = SparkContext._active_spark_context
    if context is not None:
        try:
            context.stop()
        except (Py4JError, OSError):
            context.stop()  # without its JVM, pyspark drops the context only at a second call


def _check_submitted(submitted: Jvm, conf: SparkConf) -> None:
    """Raise SparkFailed if spark-submit was given a setting that only the code may choose.

    Raise it, too, if spark-submit lacks the jars, which cannot be added later.
    """
    for name, consequence in FIXED.items():
        # The values of `settings` replace those of spark-submit, so these need no check. spark-submit always
        # sets the deploy mode, to "client".
        if conf.contains(name) and name not in settings() and conf.get(name) != "client":
            raise SparkFailed(f"spark-submit was given {name}, which cannot be changed: {consequence}")
    java = submitted.gateway.jvm.java.lang
    try:
        java.Class.forName(_KAFKA_SOURCE, False, java.Thread.currentThread().getContextClassLoader())
    except Py4JError:
        raise SparkFailed(
            'spark-submit has no Kafka source. Start it with --jars "$(python -m embedded.jars --list)"'
        ) from None


def _choose_python(conf: SparkConf, *, is_local: bool) -> None:
    """Set the Python that workers run.

    It is this process's Python, or on a cluster the Python that the settings name. Otherwise workers would
    run the first python3 on the path. pyspark reads it only from the environment.
    """
    chosen = None if is_local else conf.get(_PYTHON) or os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = chosen or sys.executable


def _listen_at(ui_host: str) -> None:
    """Make the UI listen on this address, and use it in the UI's URL. Raises SparkFailed.

    Spark's web servers listen on SPARK_LOCAL_IP of the environment, otherwise on all addresses. No setting of
    the session changes that (WebUI.bind of Spark 4.2). SPARK_PUBLIC_DNS is the host of the UI's URL,
    otherwise spark.driver.host, which is also right for a UI on all addresses.
    """
    family = socket.AF_INET6 if ":" in ui_host else socket.AF_INET
    # Try it here: if this machine does not have the address, Spark would only log that.
    try:
        socket.create_server((ui_host, 0), family=family).close()
    except OSError as error:
        raise SparkFailed(f"the Spark UI cannot listen at {ui_host}: {error.strerror}") from error
    os.environ["SPARK_LOCAL_IP"] = ui_host
    if ui_host in ANY_ADDRESS:
        os.environ.pop("SPARK_PUBLIC_DNS", None)
    else:
        os.environ["SPARK_PUBLIC_DNS"] = f"[{ui_host}]" if ":" in ui_host else ui_host


@contextlib.contextmanager
def _keeping_interrupt_handler() -> Iterator[None]:
    """Restore the handler of Ctrl-C after the block, because SparkContext replaces it."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
