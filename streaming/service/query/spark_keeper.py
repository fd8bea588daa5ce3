"""The keeper of Spark: it restarts Spark, within the running service, whenever its JVM has ended.

A JVM ends when it is killed, runs out of memory, or hangs and the watchdog kills it. The rest of the service
continues meanwhile. For clients this is like the end of a query, only longer. The keeper gives up if Spark
keeps ending without a committed batch, so that another process or machine can try.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by
from pyspark.sql.streaming import StreamingQuery

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import CLOCK_PATTERN
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import Startable
from kafka_why.local_files import FolderNotWritable
from state.config import CoordinatorConfig
from streaming.query import pipeline
from streaming.query.jvm import SparkFailed, Watchdog
from streaming.query.operator import ConfigEpoch, Operator
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session, wait_for_master
from streaming.service.can_continue import CannotContinue
from streaming.service.starts import Options, StartTimes, backoff_s


@contextmanager
def starting_spark(
    options: Options, file_manager: str, hold_fd: int, times: StartTimes
) -> Iterator[Future[Session]]:
    """Start Spark in a thread, once its master answers, and yield the future of its session. If the block
    raises, Spark is stopped again. Spark's JVM inherits `hold_fd`, the descriptor of the folder's lock.
    """
    given_up = threading.Event()

    def start() -> Session:
        wait_for_master(options.master, given_up)
        session = Session(
            log_path=options.folder / "spark.log",
            ui_host=options.ui_host,
            ui_port=options.ui_port,
            hold_fd=hold_fd,
            temporary_folder=options.folder / "tmp",
            master=options.master,
            driver_host=options.driver_host,
            extra={CHECKPOINT_FILE_MANAGER: file_manager, **options.spark},
        )
        times.end_of("spark")
        return session

    with ThreadPoolExecutor(1, "spark-start") as thread:
        session = thread.submit(start)
        try:
            yield session
        except BaseException:  # also KeyboardInterrupt
            given_up.set()
            with suppress(Exception):
                session.result().close()
            raise


MOST_RESTARTS = 5

log = structlog.get_logger()


class SparkEnded(RuntimeError):
    """Spark has ended and is not started again. The message has the reason and the path of Spark's log."""


class SparkKeeper:
    """A keeper of one Spark between `start` and `stop`. One thread calls `keep` and `worked`.

    A hung JVM is killed if this process can start another one, or if `has_standby`, that is, if another
    process can take over: the service then ends. `pause` waits for a number of seconds, or until `stopping`
    is set. `on_reason` is called with a sentence before each restart.
    """

    def __init__(
        self,
        spark: Session,
        stopping: threading.Event,
        *,
        pause: Callable[[float], object],
        on_reason: Callable[[str], object] = lambda _: None,
        has_standby: bool = False,
    ) -> None:
        self._spark = spark
        self._stopping = stopping
        self._pause = pause
        self._on_reason = on_reason
        self._kills_hung = spark.can_restart or has_standby
        self._hang_reason: str | None = None  # why this JVM was killed, if it was
        self._restarts = 0  # since `worked`
        self._watchdog: Watchdog | None = None

    def start(self) -> None:
        """Begin to watch the JVM."""
        if self._kills_hung:
            self._watchdog = Watchdog(self._spark.ping, self.kill_hung)
            self._watchdog.start()

    def stop(self) -> None:
        """Stop watching the JVM. Spark keeps running."""
        if self._watchdog is not None:
            self._watchdog.stop()

    def kill_hung(self, reason: str) -> None:
        """Kill a hung JVM, if this process or a standby starts another one. Any thread may call it."""
        if self._kills_hung:
            log.error("the JVM hangs", reason=reason)
            self._hang_reason = reason
            self._spark.kill()

    def worked(self) -> None:
        """Reset the count of restarts, because Spark has done its work."""
        self._restarts = 0

    def keep(self, work: Callable[[], None]) -> None:
        """Call `work` until it returns. After each end of Spark, start another JVM and call `work` again.

        An error of `work` is raised if Spark still runs, or after `stopping`. Raises SparkEnded if Spark is
        given up.
        """
        while True:
            try:
                return work()
            except Exception as error:
                if self._stopping.is_set() or not self._has_ended(error):
                    raise
                reason = self._reason(error)
            self._restart(reason)

    def _has_ended(self, error: Exception) -> bool:
        if isinstance(error, CannotContinue):
            return False  # no other JVM could either
        return isinstance(error, SparkFailed) or self._spark.has_lost_jvm()

    def _reason(self, error: Exception) -> str:
        """Return why Spark is started again after this error."""
        if isinstance(error, SparkFailed):
            return str(error)
        end = (
            "Spark's JVM has ended" if self._hang_reason is None else f"{self._hang_reason}, so it was killed"
        )
        return f"{end}; its log is {self._spark.log_path}"

    def _restart(self, reason: str) -> None:
        """Start Spark again, in several attempts if necessary. Returns early if `stopping` is set."""
        self.stop()
        self._hang_reason = None
        while not self._stopping.is_set():
            if not self._spark.can_restart:
                raise SparkEnded(reason)
            if self._restarts == MOST_RESTARTS:
                raise SparkEnded(f"{reason}. It was started {MOST_RESTARTS} times since it last worked")
            pause_s = backoff_s(self._restarts)
            self._restarts += 1
            log.error("Spark has ended", reason=reason, attempt=self._restarts, again_in_s=pause_s)
            self._on_reason(f"{reason}. It is started again, attempt {self._restarts} of {MOST_RESTARTS}")
            self._pause(pause_s)
            try:
                if not self._stopping.is_set():
                    self._spark.restart()
                    log.info("Spark runs again")
                    self.start()
                return
            except (SparkFailed, FolderNotWritable) as error:
                reason = str(error)


# The interval of the rehearsal's batches. Spark ends Python workers that are idle for a minute.
INTERVAL_S = 20


class Rehearsal(Startable):
    """A query that keeps a standby's Spark warm from `start` to `stop`, and writes nothing.

    A standby is a coordinator that waits until the owner of the topics ends. A JVM's first query takes
    seconds: Java loads Spark's classes, Python workers start and import this package. A standby does that
    before it takes over. The rehearsal reads clock records only, so it has no state. Its checkpoint is in
    `folder`, the standby's own.

    After a failure, a takeover takes longer until `check` has started the rehearsal again. `check` returns
    soon after `stopping` is set.
    """

    def __init__(
        self,
        session: Session,
        client_config: ClientConfig,
        layout: TopicLayout,
        folder: Path,
        stopping: threading.Event,
    ) -> None:
        self._session = session
        self._client_config = client_config
        self._operator = Operator(layout, (ConfigEpoch(0, CoordinatorConfig()),))
        self._folder = folder / "rehearsal"
        # A hung JVM may be killed in any case, because this process answers nobody yet.
        self._keeper = SparkKeeper(session, stopping, pause=stopping.wait, has_standby=True)
        self._query: StreamingQuery | None = None  # None on a cluster, and if its start failed
        # The time of the query's start, and the session's restarts until then.
        self._query_started_s = 0.0
        self._restarts_at_start = 0

    def start(self) -> None:
        """Watch Spark, and start the query."""
        self._keeper.start()
        self._start_query()

    def _start_query(self) -> None:
        """Start the query, but not on a cluster, whose executors do not reach this folder."""
        self._query_started_s = time.monotonic()
        self._restarts_at_start = self._session.restarts
        self._query = None
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self._session.is_local:
            return
        layout = self._operator.layout
        requests = pipeline.read_requests(self._session.spark, self._client_config, layout, "latest")
        clock = requests.where(F.col("value").cast("string").rlike(CLOCK_PATTERN))
        output = pipeline.coordinate(clock, self._operator, shards=self._operator.shards)
        try:
            self._query = (
                output.where(F.col("topic") == "")  # the query has no output
                .writeStream.queryName("rehearsal")
                .format("kafka")
                .options(**pipeline.cluster_options(self._client_config))
                .option("checkpointLocation", self._folder.absolute().as_uri())
                .outputMode("append")
                .trigger(processingTime=f"{INTERVAL_S} seconds")
                .start()
            )
        except (PySparkException, Py4JError) as error:
            log.warning("the standby's Spark is not kept warm", error=str(error).partition("\n")[0])

    def check(self) -> None:
        """Start Spark again if its JVM has ended, and the query if it has ended. Raises SparkEnded.

        The query ends, for example, because a broker was unreachable.
        """
        self._keeper.keep(self._poll)

    def _poll(self) -> None:
        """Start the query again if Spark was restarted, or if the query has ended and INTERVAL_S have passed
        since its start.
        """
        self._session.ping()
        if self._restarts_at_start != self._session.restarts:
            self._start_query()
        if time.monotonic() - self._query_started_s < INTERVAL_S:
            return
        self._keeper.worked()
        if self._query is None or not self._query.isActive:
            self._start_query()

    def stop(self) -> None:
        """End the query, remove its checkpoint, and end the watch. Spark keeps running."""
        if self._query is not None:
            with suppress(PySparkException, Py4JError):
                self._query.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._keeper.stop()
