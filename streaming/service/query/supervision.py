"""The supervisor: it starts the query, and starts it again whenever it ends.

A query ends when the broker is away for long, a batch fails, a disk is full, a Python worker dies twice or
Spark's JVM ends, which is started again first (`streaming.service.query.spark_keeper`). The next query starts
from the checkpoint after a pause that grows. The batch that was running runs again and gives the same output.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import structlog
from kafka.errors import KafkaError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from checkpoints.checkpoint import Checkpoint
from checkpoints.damage import describe_damage
from checkpoints.disk import describe_full_disk
from checkpoints.files import FolderError, FolderNotWritable
from checkpoints.state_stores import remove_torn_state
from records.claims import Claim
from streaming.query import pipeline
from streaming.query.current_request import WORKER_DIED, left_behind
from streaming.query.operator import Operator
from streaming.query.owner_guard import LATER_CLAIM
from streaming.query.progress import BatchProgress, ProgressReader
from streaming.query.session import Session
from streaming.service.clock.ticker import Ticker
from streaming.service.options import Options
from streaming.service.ownership.lease import Lease
from streaming.service.ownership.owner import NotOwner
from streaming.service.pauses import pause_before
from streaming.service.query.committed_pin import CommittedPin
from streaming.service.query.continuity import Continuity
from streaming.service.query.failing_batch import describe_damaged_checkpoint, describe_failing_batch
from streaming.service.query.spark_keeper import SparkEnded, SparkKeeper
from streaming.service.start_times import StartTimes
from streaming.service.status import Phase, StatusBoard

FAILURES_TO_NAME_THE_BATCH = 3
TICKER_ALARM_AGE_S = 10.0
# A longer time without a broker is an outage, because no heartbeat can arrive: a takeover follows.
CUT_OFF_S = 5.0
POLL_S = 0.2
# How long a stop waits for the batch with the last early answers.
SETTLE_MAX_S = 5.0
# After so long without a batch, although others were committed before, another JVM has to try.
STANDSTILL_S = 60.0
# How often the disk is tried while it is full.
SPACE_POLL_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reports:
    """What the supervisor's thread calls. `alarms` returns the alarms of other parts of the service.

    `on_batch` is called with each committed batch. `on_end` is called at most once, when no query can run any
    more: with the reason, and whether the topics have another owner.
    """

    alarms: Callable[[], Iterable[str | None]]
    on_batch: Callable[[BatchProgress], None]
    on_end: Callable[[str, bool], None]


class Supervisor:
    """Keeps the query of one coordinator running, on a thread of its own, until `stop`."""

    def __init__(
        self,
        options: Options,
        checkpoint: Checkpoint,
        status: StatusBoard,
        *,
        operator: Operator,
        session: Session,
        ticker: Ticker,
        continuity: Continuity,
        lease: Lease,
        times: StartTimes,
        reports: Reports,
    ) -> None:
        self._options = options
        self._requests_topic = options.layout.requests_topic
        self._checkpoint = checkpoint
        self._status = status
        self._operator = operator
        self._session = session
        self._ticker = ticker
        self._continuity = continuity
        self._ownership = lease.ownership
        self._guard = lease.guard
        # The epoch above which a clock record is a later owner's. None: clock records are ignored.
        self._owner_epoch: int | None = lease.ownership.epoch
        self._times = times
        self._reports = reports
        self._committed_pin = CommittedPin(checkpoint, self._requests_topic)
        self._disk_alarm: str | None = None
        self._looks_without_batch: int | None = None
        log_path = session.log_path  # a string if it is the log of spark-submit
        self._under_way = str(log_path.with_name("under-way")) if isinstance(log_path, Path) else None
        self._stopping = threading.Event()
        self._spark = SparkKeeper(
            session,
            self._stopping,
            pause=self._pause_for_spark,
            say=partial(status.enter, Phase.RESTARTING),
            has_standby=self._guard is not None,
        )
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        self._spark.start()
        self._thread.start()

    def stop(self) -> None:
        """End the query and the thread. The batch that was running runs again at the next start."""
        self._continuity.end()
        self._settle()
        self._stopping.set()
        self._thread.join()
        self._spark.stop()

    def _settle(self) -> None:
        """Wait until the query has handled what the replica has answered, so that views and history have it,
        and another version of this code need not answer it again.
        """
        self._status.wait_until(
            lambda status: self._continuity.is_settled() or status.phase is not Phase.READY, SETTLE_MAX_S
        )

    def _run(self) -> None:
        try:
            self._spark.keep(self._keep_running)
        except Exception as error:
            if self._stopping.is_set():
                return
            if isinstance(error, NotOwner):
                reason = str(error)
                log.error("the coordinator has lost its topics", reason=reason)
            elif isinstance(error, SparkEnded | FolderError):
                reason = str(error)
                log.error("the coordinator failed", reason=reason)
            else:
                reason = f"the supervisor ended: {type(error).__name__}: {first_line(error)}"
                log.exception("the coordinator failed")
            self._status.enter(Phase.STOPPED, reason)
            self._reports.on_end(reason, isinstance(error, NotOwner))

    def _keep_running(self) -> None:
        """Start the query, and start it again whenever it ends, until the service stops or Spark ends."""
        if torn := remove_torn_state(self._checkpoint.files):
            log.warning("damaged files of a batch that was cut off are removed", files=[*map(str, torn)])
        failures, failed_batch = 0, -1
        while not self._stopping.is_set():
            error = self._run_query()
            self._committed_pin.pin(self._checkpoint.last_batch("commits"))
            if error is None or self._stopping.is_set() or self._waited_for_space(first_line(error)):
                continue
            self._session.check_running()
            batch = self._checkpoint.last_batch("commits") + 1
            failures = failures + 1 if batch == failed_batch else 1
            failed_batch = batch
            pause_s = pause_before(failures)
            self._report_failure(error, batch, failures, pause_s)
            # From the second time on, a worker that dies leaves a note of what it handled.
            dies_again = failures >= FAILURES_TO_NAME_THE_BATCH - 1 and WORKER_DIED in str(error)
            self._operator = replace(self._operator, under_way=self._under_way if dies_again else None)
            self._pause(pause_s)

    def _waited_for_space(self, error: str) -> bool:
        """If the query or Spark ended because a disk is full: raise an alarm and wait for space. False if no
        disk is full.

        A full disk is no failure of the batch, which is planned or run again when there is space.
        """
        full = self._look_at_disk()
        if full is None:
            return False
        log.error("query stopped until there is space", reason=full, error=error)
        self._status.enter(Phase.RESTARTING, full, batch_id=self._checkpoint.last_batch("commits"))
        while full is not None and not self._stopping.is_set():
            self._pause(SPACE_POLL_S)
            full = self._look_at_disk()
        log.info("there is space again" if full is None else "stopped while a disk is full")
        return True

    def _look_at_disk(self) -> str | None:
        self._disk_alarm = describe_full_disk(
            filter(None, (self._checkpoint.files.local, self._session.local_dir))
        )
        return self._disk_alarm

    def _run_query(self) -> PySparkException | KafkaError | FolderNotWritable | None:
        """Run the query until it fails. Returns the error, None if the service stops or no broker answers.

        Raises NotOwner if the topics have another owner.
        """
        try:
            self._continuity.wait_for_clients(
                self._options.first_request_wait_s,
                self._stopping.is_set,
                partial(self._status.enter, Phase.STARTING),
            )
            self._checkpoint.check_committed(self._requests_topic)
            outages = self._continuity.outages(lambda: self._session.spark)
            running = pipeline.start(
                self._session.spark,
                self._options.client_config,
                self._checkpoint.spark_uri,
                replace(self._operator, outages=tuple(outages)),
                self._owner_epoch,
                self._session.demand,
                self._guard,
                self._options.interval_ms,
            )
            self._continuity.query_started(
                lambda: self._session.spark, outages, checks_clocks=self._owner_epoch is not None
            )
            log.info("query started", run_id=running.runId)
            self._times.end_of("query")
            progress = ProgressReader(running)
            self._looks_without_batch = None
            while not self._stopping.is_set():
                if running.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    return PySparkException("the query ended by itself")
                self._watch_progress(progress)
                self._watch_standstill()
                self._watch_ticker()
                if self._ticker.cut_off_s() > CUT_OFF_S:
                    break
                self._watch_owner(running)
            running.stop()
            self._wait_for_broker()
        except Py4JJavaError as error:  # what pyspark does not know, such as Java's IOException
            return PySparkException(error.java_exception.toString())
        except PySparkException as error:
            return self._check_owner(error)
        except (KafkaError, FolderNotWritable) as error:
            return error
        return None

    def _watch_owner(self, running: StreamingQuery) -> None:
        """Stop the query when another coordinator has taken the topics."""
        successor = self._ownership.lost()
        if successor is not None:
            self._depose(successor, running)

    def _check_owner(self, error: PySparkException) -> PySparkException | KafkaError:
        """Check whether the query failed because of a later owner, which has claimed the topics.

        A clock record without a claim must not end the service: from then on only claims are checked.
        """
        text = str(error)
        if not pipeline.has_later_owner(text) and LATER_CLAIM not in text:
            return error
        try:
            successor = self._ownership.confirm_lost()
        except KafkaError as unread:
            return unread
        if successor is not None:
            self._depose(successor)
        if LATER_CLAIM in text:
            return error  # the claim was withdrawn
        log.error("a clock record has the epoch of an owner that made no claim; it is not believed")
        self._owner_epoch = None
        return error

    def _depose(self, successor: Claim, running: StreamingQuery | None = None) -> NoReturn:
        if running is not None:
            with suppress(PySparkException):
                running.stop()
        raise NotOwner(
            f"the topics have another owner: {successor}. This coordinator has stopped; it answers no "
            "request that comes after the first clock record of the new owner"
        )

    def _wait_for_broker(self) -> None:
        """Wait until clock records are acknowledged again, or the service stops."""
        if self._ticker.cut_off_s() > CUT_OFF_S:
            log.warning("query stopped until a broker answers")
            self._status.enter(
                Phase.RESTARTING, "no broker answers", batch_id=self._checkpoint.last_batch("commits")
            )
        looked_s = float("-inf")
        while self._ticker.cut_off_s() > CUT_OFF_S and not self._stopping.is_set():
            if time.monotonic() - looked_s > SPACE_POLL_S:
                self._look_at_disk()  # it may be full, and the broker have died of that
                looked_s = time.monotonic()
            self._pause(POLL_S)
        self._disk_alarm = None

    def _pause(self, pause_s: float) -> None:
        end_s = time.monotonic() + pause_s
        while time.monotonic() < end_s and not self._stopping.wait(POLL_S):
            self._watch_ticker()

    def _pause_for_spark(self, pause_s: float) -> None:
        self._pause(pause_s)
        self._waited_for_space("Spark has ended")

    def _report_failure(self, error: Exception, batch: int, failures: int, pause_s: float) -> None:
        phase = Phase.RESTARTING
        reason = f"batch {batch} failed, attempt {failures}: {first_line(error)}"
        if damage := describe_damage(self._checkpoint.files):
            phase, reason = Phase.FAILING, describe_damaged_checkpoint(batch, damage)
        elif failures >= FAILURES_TO_NAME_THE_BATCH:
            phase = Phase.FAILING
            what, _, _ = str(error).partition("\n=== Streaming Query ===")  # its plan helps nobody here
            under_way = left_behind(self._under_way) if WORKER_DIED in what else []
            reason = describe_failing_batch(self._checkpoint, batch, failures, what, under_way)
        self._status.enter(phase, reason, batch_id=batch - 1)
        log.error("query failed", batch=batch, attempt=failures, again_in_s=pause_s, error=reason)

    def _watch_progress(self, progress: ProgressReader) -> None:
        """Look at the batches since the last look."""
        for batch in progress.new():
            if batch.rows_dropped:
                # Requests have no event time, so Spark has no reason to drop one: this is a lost request.
                log.critical("Spark dropped requests", rows=batch.rows_dropped, batch=batch.batch_id)
            ends = {p: end for (topic, p), end in batch.end_offsets.items() if topic == self._requests_topic}
            self._ticker.pace.batch_read(ends)
            self._continuity.batch_committed(ends, batch.watermark_ms)
            self._looks_without_batch = 0
            self._times.first_batch(batch)
            self._spark.worked()
            self._reports.on_batch(batch)
            self._status.batch_committed(batch.batch_id)
            self._committed_pin.pin_often(batch.batch_id, ends)

    def _watch_standstill(self) -> None:
        """End the JVM if the query commits nothing any more although the broker answers.

        The first batch of a query may take long. So a batch that always takes long is run to its end by the
        next JVM.
        """
        if self._looks_without_batch is None:
            return
        self._looks_without_batch = 0 if self._ticker.cut_off_s() > 0 else self._looks_without_batch + 1
        if self._looks_without_batch * POLL_S > STANDSTILL_S:
            self._spark.kill_hung(f"no batch was committed for {STANDSTILL_S:.0f} s")
            self._looks_without_batch = None

    def _watch_ticker(self) -> None:
        alarm = self._ticker.alarm
        if alarm is None and self._ticker.age_s() > TICKER_ALARM_AGE_S:
            alarm = f"no clock record was acknowledged for {self._ticker.age_s():.0f} s: time stands still"
        alarms = filter(None, (self._disk_alarm, alarm, *self._reports.alarms()))
        self._status.set_alarm("; ".join(alarms) or None)


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return str(error).strip().partition("\n")[0]
