"""The supervisor of a query: it starts the query, and restarts it whenever it ends.

A query ends when the broker is unreachable for long, a batch fails, a disk is full, a Python worker dies
twice, or Spark's JVM ends. `streaming.service.query.spark_keeper` then starts another JVM. The next query
starts from the checkpoint after a pause that grows. The batch that was running runs again and gives the same
output.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import structlog
from kafka.errors import KafkaError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from checkpoints.checkpoint import Checkpoint
from checkpoints.state_stores import describe_damage, remove_torn_state
from kafka_why.contract.service import ServicePhase
from kafka_why.lifetimes import BackgroundThread
from kafka_why.local_files import FolderError, FolderNotWritable, describe_full_disk
from kafka_why.metrics.batch_progress import BatchProgress
from streaming.query.session import Session
from streaming.service.can_continue import CannotContinue
from streaming.service.ownership.owner import NotOwner
from streaming.service.query.batches import (
    CommittedBatchRecorder,
    ProgressReader,
    describe_damaged_checkpoint,
    describe_failing_batch,
)
from streaming.service.query.spark_keeper import SparkEnded, SparkKeeper
from streaming.service.starts import backoff_s
from streaming.service.status import StatusBoard

FAILURES_TO_NAME_THE_BATCH = 3
POLL_S = 0.2
# The pause between two checks of a full disk.
SPACE_POLL_S = 1.0
# The pause between two checks, while there is an obstacle, that a query can continue at all. A check may wait
# for a broker for 10 s.
CHECK_S = 30.0

log = structlog.get_logger()


class SupervisedQuery(ABC):
    """The logic of one kind of query. The supervisor's thread calls all methods."""

    source: str  # the topic that it reads
    service: str  # the noun of its service
    remedy: str  # what an operator does if a damaged file cannot be restored
    has_standby = False
    """True if another process takes over when this one ends."""

    @abstractmethod
    def start(self, stopping: threading.Event) -> StreamingQuery | None:
        """Start the query from its checkpoint. Return None if `stopping` is set before it can start.

        After a PySparkException, KafkaError or FolderNotWritable, the supervisor calls this method again
        later. Any other error ends the service.
        """

    @abstractmethod
    def committed(self, batch: BatchProgress) -> None:
        """Handle a committed batch."""

    @abstractmethod
    def watch(self) -> None:
        """Raise an error if the query has to end, which then stops. Called every `POLL_S` while it runs."""

    def obstacle(self) -> str | None:
        """Return why no query should run now, or None if one should."""
        return None

    def hang(self) -> str | None:
        """Return why the JVM counts as hung, or None if it does not. Called every `POLL_S` while the query
        runs.
        """
        return None

    def alarms(self) -> Iterable[str | None]:
        """Return the alarms of the service, besides that of a full disk."""
        return ()

    def cause_of(self, error: PySparkException) -> PySparkException | KafkaError:
        """Return the error to report for an error of the query. Raises an error that ends the service."""
        return error

    def check_can_continue(self) -> None:
        """Check whether another query can continue where the last one failed. Raises CannotContinue,
        NotOwner, and KafkaError if this is unknown now.
        """
        return

    def ended(self, error: Exception) -> None:
        """Stop the parts that would continue without a query, because this error ends the service."""
        return

    def failed(self, error: str, failures: int) -> Sequence[str]:
        """Record that a batch has failed with this error text, now for the `failures`th time in a row.

        Return the notes of workers that have died: what each of them handled then.
        """
        return ()


class Supervisor(BackgroundThread):
    """A thread that keeps one query running until `stop`.

    `on_end` is called at most once, in that thread, when the query can run no more, with the reason and the
    error. The status is STOPPED then.
    """

    def __init__(
        self,
        query: SupervisedQuery,
        checkpoint: Checkpoint,
        status: StatusBoard,
        session: Session,
        on_end: Callable[[str, Exception], None],
    ) -> None:
        super().__init__("supervisor")
        self._query = query
        self._checkpoint = checkpoint
        self._status = status
        self._session = session
        self._on_end = on_end
        self._committed_recorder = CommittedBatchRecorder(checkpoint, query.source)
        self._disk_alarm: str | None = None  # the last result of `_check_disk`
        self._spark_keeper = SparkKeeper(
            session,
            self._stopped,
            pause=self._pause_for_spark,
            on_reason=partial(status.enter, ServicePhase.RESTARTING),
            has_standby=query.has_standby,
        )

    def start(self) -> None:
        self._spark_keeper.start()
        super().start()

    def stop(self) -> None:
        """End the query and the thread. The batch that was running runs again at the next start."""
        super().stop()
        self._spark_keeper.stop()

    def _run(self) -> None:
        """Keep the query running until stopped. After an error that ends the service, report it."""
        try:
            self._spark_keeper.keep(self._keep_running)
        except Exception as error:
            if self._stopped.is_set():
                return
            service = self._query.service
            if isinstance(error, SparkEnded | FolderError | NotOwner):
                reason = str(error)
                log.error("the service failed", service=service, reason=reason)
            else:
                reason = f"the supervisor of the {service} ended: {type(error).__name__}: {first_line(error)}"
                log.exception("the service failed", service=service)
            self._status.enter(ServicePhase.STOPPED, reason)
            self._query.ended(error)
            self._on_end(reason, error)

    def _keep_running(self) -> None:
        """Start the query, and restart it whenever it ends, until the service stops or Spark ends."""
        if torn := remove_torn_state(self._checkpoint.files):
            log.warning("damaged files of a batch that was cut off are removed", files=[*map(str, torn)])
        failures, failed_batch = 0, -1
        while not self._stopped.is_set():
            error = self._run_query()
            self._committed_recorder.record(self._checkpoint.last_batch("commits"))
            if error is None or self._stopped.is_set() or self._wait_if_disk_full(first_line(error)):
                continue
            self._session.check_running()
            batch = self._checkpoint.last_batch("commits") + 1
            self._check_files(batch)
            self._check_can_continue()
            failures = failures + 1 if batch == failed_batch else 1
            failed_batch = batch
            pause_s = backoff_s(failures)
            self._report_failure(error, batch, failures, pause_s)
            self._pause(pause_s)

    def _check_files(self, batch: int) -> None:
        """Raise CannotContinue if some of the checkpoint's files are damaged. `batch` has failed."""
        remove_torn_state(self._checkpoint.files)
        if damage := describe_damage(self._checkpoint.files):
            raise CannotContinue(describe_damaged_checkpoint(batch, damage, self._query.remedy))

    def _check_can_continue(self) -> None:
        """Raise an error, which ends the service, if every later query would fail, too."""
        try:
            self._query.check_can_continue()
        except KafkaError as error:
            log.warning("it cannot be checked whether the query can continue", error=repr(error))

    def _run_query(self) -> PySparkException | KafkaError | FolderNotWritable | None:
        """Run the query until it fails.

        Return the error, or None if the service stops or an obstacle has disappeared.
        """
        try:
            running = self._query.start(self._stopped)
            if running is None:
                return None
            with stopped_on_error(running):
                return self._follow(running)
        except Py4JJavaError as error:  # an error that pyspark does not convert, such as Java's IOException
            return PySparkException(error.java_exception.toString())
        except PySparkException as error:
            return self._query.cause_of(error)
        except (KafkaError, FolderNotWritable) as error:
            return error

    def _follow(self, running: StreamingQuery) -> PySparkException | None:
        """Watch a query until it ends by itself, an obstacle has come and gone, or the service stops. Return
        an error only in the first case. In the others the query is stopped.
        """
        log.info("query started", run_id=running.runId)
        progress = ProgressReader(running)
        while not self._stopped.is_set():
            if running.awaitTermination(POLL_S):  # type: ignore[arg-type]
                return PySparkException("the query ended by itself")
            for batch in progress.new_batches():
                self._handle_committed(batch)
            if hang := self._query.hang():
                self._spark_keeper.kill_hung(hang)
            self._set_alarms()
            if obstacle := self._query.obstacle():
                self._wait_without_query(obstacle, running)
                return None
            self._query.watch()
        running.stop()
        return None

    def _handle_committed(self, batch: BatchProgress) -> None:
        """Pass a committed batch to the query and to all that records or reports it."""
        ends = batch.ends_of(self._query.source)
        self._spark_keeper.worked()
        self._query.committed(batch)
        self._status.batch_committed(batch.batch_id)
        self._committed_recorder.record_if_due(batch.batch_id, ends)

    def _wait_without_query(self, obstacle: str, running: StreamingQuery) -> None:
        """End the query, and wait until there is no obstacle, or the service stops."""
        log.warning("query stopped for a while", reason=obstacle)
        self._status.enter(ServicePhase.RESTARTING, obstacle, batch_id=self._checkpoint.last_batch("commits"))
        self._check_disk()  # a full disk may have ended the broker
        self._set_alarms()
        with ThreadPoolExecutor(1) as pool:
            # `stop` returns when the broker answers, or after minutes when Kafka's clients give up. No batch
            # may begin meanwhile, because it would fire the deadlines of the time without a broker.
            stopped = pool.submit(running.stop)
            self._check_can_continue()  # the topic may be what is missing
            stopped.result()
        disk_checked_s, checked_s = float("-inf"), time.monotonic()
        while self._query.obstacle() and not self._stopped.is_set():
            if time.monotonic() - checked_s > CHECK_S:
                self._check_can_continue()
                checked_s = time.monotonic()
            if time.monotonic() - disk_checked_s > SPACE_POLL_S:
                self._check_disk()
                disk_checked_s = time.monotonic()
            self._pause(POLL_S)
        self._disk_alarm = None

    def _wait_if_disk_full(self, error: str) -> bool:
        """If a disk is full, raise an alarm, wait for space, and return True. Otherwise return False."""
        full_disk = self._check_disk()
        if full_disk is None:
            return False
        # This is no failure of the batch, which runs again when there is space.
        log.error("query stopped until there is space", reason=full_disk, error=error)
        self._status.enter(
            ServicePhase.RESTARTING, full_disk, batch_id=self._checkpoint.last_batch("commits")
        )
        while full_disk is not None and not self._stopped.is_set():
            self._pause(SPACE_POLL_S)
            full_disk = self._check_disk()
        log.info("there is space again" if full_disk is None else "stopped while a disk is full")
        return True

    def _check_disk(self) -> str | None:
        """Return a sentence if a disk of the checkpoint or of Spark is full, else None."""
        self._disk_alarm = describe_full_disk(
            filter(None, (self._checkpoint.files.local_path, self._session.local_dir))
        )
        return self._disk_alarm

    def _pause(self, pause_s: float) -> None:
        """Wait for this time, or until stopped, and keep the alarms up to date."""
        end_s = time.monotonic() + pause_s
        while time.monotonic() < end_s and not self._stopped.wait(POLL_S):
            self._set_alarms()

    def _pause_for_spark(self, pause_s: float) -> None:
        self._pause(pause_s)
        self._wait_if_disk_full("Spark has ended")

    def _set_alarms(self) -> None:
        self._status.set_alarm("; ".join(filter(None, (self._disk_alarm, *self._query.alarms()))) or None)

    def _report_failure(self, error: Exception, batch: int, failures: int, pause_s: float) -> None:
        """Log the failure of a batch, and describe it in the status, after several in more detail."""
        phase = ServicePhase.RESTARTING
        reason = f"batch {batch} failed, attempt {failures}: {first_line(error)}"
        # The query's plan follows, which is of no use here.
        text, _, _ = str(error).partition("\n=== Streaming Query ===")
        interrupted = self._query.failed(text, failures)
        if failures >= FAILURES_TO_NAME_THE_BATCH:
            phase = ServicePhase.FAILING
            reason = describe_failing_batch(self._checkpoint, batch, failures, text, interrupted)
        self._status.enter(phase, reason, batch_id=batch - 1)
        log.error("query failed", batch=batch, attempt=failures, again_in_s=pause_s, error=reason)


@contextmanager
def stopped_on_error(running: StreamingQuery) -> Iterator[None]:
    """Stop a query if the block raises. Otherwise Spark could not start the next one, which has the same
    name.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the JVM may have ended; the block's error is more useful
            running.stop()
        raise


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().partition("\n")[0]
