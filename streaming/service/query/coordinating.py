"""The coordinator's query under its supervisor: replica, clock records, and detection of later owners.

The replica is a second process, which answers requests before the query does. An outage is a span of time in
which no coordinator answers. All sessions restart at the outage's end.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import structlog
from kafka.errors import KafkaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from checkpoints.metadata import KnownOutage
from kafka_why.contract.claims import Claim
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.service import ServicePhase
from kafka_why.metrics.batch_progress import BatchProgress
from streaming.query import pipeline
from streaming.query.operator import WORKER_DIED, Operator, take_unfinished_notes
from streaming.query.owner_guard import LATER_CLAIM
from streaming.query.session import Session
from streaming.replica.log_watch import Loss
from streaming.service.can_continue import RequestsLost, TopicLost, check_can_continue, report_lost
from streaming.service.clock.ticker import Ticker
from streaming.service.outages.outage import ActedUntil, FirstRequest, end_outage, end_replicas_before
from streaming.service.ownership.lease import Lease
from streaming.service.ownership.owner import NotOwner
from streaming.service.query.supervision import (
    FAILURES_TO_NAME_THE_BATCH,
    POLL_S,
    SupervisedQuery,
    stopped_on_error,
)
from streaming.service.replica.supervision import Replica, SparkSource
from streaming.service.starts import Options, StartTimes
from streaming.service.status import StatusBoard
from streaming.service.topics import LogAndState


class Continuity:
    """The control of the replica and of the outage around each start of the query. The time without a query
    is an outage, unless the replica has answered meanwhile.

    One thread calls it. Any thread may call `end` and `is_settled`. `acted` has the times up to which earlier
    coordinators have acted, as `end_replicas_before` returned them when the owner with `owner_epoch` took the
    topics. `replica` is None if this owner runs none. `first_request` ends the outage if gateways are
    separate processes, and is None if this process's gateway already listens.
    """

    def __init__(
        self,
        ours: LogAndState,
        replica: Replica | None,
        owner_epoch: int,
        acted: ActedUntil,
        first_request: FirstRequest | None = None,
    ) -> None:
        self._ours = ours
        self._replica = replica
        self._owner_epoch = owner_epoch
        self._acted: ActedUntil | None = acted  # before the current outage, None outside of outages
        self._first_request = first_request
        self._replica_continues = False
        """True if the replica needs no start, because it already has the outages of the next query."""
        self._promoted_outages: list[KnownOutage] | None = None
        """The outages of a promoted replica, until the next query has them."""

    def promote(self, spark: SparkSource) -> None:
        """Promote the standby's replica, so that it answers before the query starts, and end the outage.

        Raises KafkaError.
        """
        assert self._replica is not None
        assert self._acted is not None
        outages = end_outage(self._ours, self._acted)
        # Without a promotion, the start of the query ends the outage again, at a later time.
        if self._replica.promote(spark, self._ours.checkpoint.record()):
            self._promoted_outages = outages

    def wait_for_clients(
        self, wait_s: float, given_up: Callable[[], bool], on_reason: Callable[[str], None]
    ) -> None:
        """Wait for a client's request for at most `wait_s`, at the first start of the query."""
        if self._first_request is None:
            return
        on_reason(f"sessions begin with the first request, in {wait_s:.0f} s at the latest")
        with closing(self._first_request) as first_request:
            has_come = first_request.wait(wait_s, given_up)
        log.info("the outage ends", because="a request came" if has_come else "no request came in time")
        self._first_request = None

    def end_outage_or_promote(self, spark: SparkSource) -> list[KnownOutage]:
        """End the outage, or promote the standby's replica. Raises KafkaError.

        Return the outages for the next query. While the replica answers, clients see a coordinator. So
        sessions continue, and there is no outage.
        """
        if self._promoted_outages is None and self._replica is not None and self._replica.is_standby:
            self.promote(spark)
        if self._promoted_outages is not None:
            outages = self._promoted_outages
            self._promoted_outages = None
            self._acted = None
            self._replica_continues = True
            return outages
        self._replica_continues = self._replica is not None and self._replica.is_answering()
        if self._replica_continues:
            log.info("the replica answers, so the query continues without an outage")
            return self._ours.checkpoint.record().outages
        if self._replica is not None:
            self._replica.end()
        if self._acted is None:
            first_of_owner = ReplicaId(self._owner_epoch, number=1)
            next_id = first_of_owner if self._replica is None else self._replica.next_id()
            self._acted = end_replicas_before(self._ours, first=next_id)
        outages = end_outage(self._ours, self._acted)
        self._acted = None
        return outages

    def query_started(self, spark: SparkSource, outages: list[KnownOutage], *, checks_clocks: bool) -> None:
        """Start the replica after a start of the query with these outages, unless the replica continues.

        If `checks_clocks` is False, clock records of later owners are ignored. No replica is then started,
        because nothing in the log could end it.
        """
        if self._replica is None or self._replica_continues:
            return
        if checks_clocks:
            self._replica.follow(spark, outages)
        else:
            self._replica.end_because(
                "clock records of later owners are ignored, but only they end a replica"
            )

    def batch_committed(self, ends: dict[int, int], watermark_ms: int) -> None:
        """Notify the replica that a committed batch has read the requests before the offsets `ends`, by
        partition, and fired deadlines up to `watermark_ms`.
        """
        if self._replica is not None:
            self._replica.committed(ends, watermark_ms)

    def loss(self) -> Loss | None:
        """Return the loss of records that the replica has found, or None.

        After a loss the query cannot continue.
        """
        return None if self._replica is None else self._replica.loss()

    def end(self) -> None:
        """End the replica, because the service stops."""
        if self._replica is not None:
            self._replica.end()

    def is_settled(self) -> bool:
        """Return True if the query has handled all that the replica has answered."""
        return self._replica is None or self._replica.is_settled()


TICKER_ALARM_AGE_S = 10.0
# The query is stopped after this time without a broker. Its next start ends an outage, so that no session
# expires because heartbeats could not arrive.
CUT_OFF_S = 5.0
# The longest wait of a stop for the batch with the last early answers.
SETTLE_MAX_S = 5.0
# The JVM is replaced after this time without a batch, if it has committed batches before.
STANDSTILL_S = 60.0
# A lost record may have been read before its deletion. The batch that read it is committed within this time.
LOSS_S = 2.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class QueryCallbacks:
    """The callbacks of the query's thread. `alarms` returns the alarms of other parts of the service.
    `on_batch` is called with each committed batch.
    """

    alarms: Callable[[], Iterable[str | None]]
    on_batch: Callable[[BatchProgress], None]


class CoordinatorsQuery(SupervisedQuery):
    """The query of one coordinator. `settle` it before its supervisor is stopped."""

    service = "coordinator"
    remedy = (
        "stop the coordinator and go back to the newest intact batch: 'group-coordinator state rollback' "
        "loses no request (docs/recovery.md, 'A damaged checkpoint')"
    )

    def __init__(
        self,
        options: Options,
        ours: LogAndState,
        status: StatusBoard,
        *,
        operator: Operator,
        session: Session,
        ticker: Ticker,
        continuity: Continuity,
        lease: Lease,
        times: StartTimes,
        callbacks: QueryCallbacks,
    ) -> None:
        self.source = options.layout.requests_topic
        self.has_standby = lease.guard is not None
        self._options = options
        self._ours = ours
        self._checkpoint = ours.checkpoint
        self._status = status
        self._operator = operator
        self._session = session
        self._ticker = ticker
        self._continuity = continuity
        self._ownership = lease.ownership
        self._guard = lease.guard
        # The epoch above which a clock record is a later owner's. If it is None, all epochs are accepted.
        self._owner_epoch: int | None = lease.ownership.epoch
        self._times = times
        self._callbacks = callbacks
        self._polls_without_batch: int | None = None  # since a commit, None before the first one of a query
        self._loss_since_s: float | None = None  # when the replica's current report of a loss began
        log_path = session.log_path  # a string for the log of spark-submit
        self._notes_prefix = str(log_path.with_name("under-way")) if isinstance(log_path, Path) else None

    def settle(self) -> None:
        """End the replica, and wait until the query has handled everything that the replica has answered.

        Views and history then include these answers, and a new version of this code does not repeat them.
        """
        self._continuity.end()
        self._ticker.pace.wake()
        self._status.wait_until(
            lambda status: self._continuity.is_settled() or status.phase is not ServicePhase.READY,
            SETTLE_MAX_S,
        )

    def start(self, stopping: threading.Event) -> StreamingQuery | None:
        """Start the query as soon as clients can reach a gateway."""
        self._continuity.wait_for_clients(
            self._options.first_request_wait_s,
            stopping.is_set,
            partial(self._status.enter, ServicePhase.STARTING),
        )
        check_can_continue(self._options.client_config, self._checkpoint)
        outages = self._continuity.end_outage_or_promote(lambda: self._session.spark)
        running = pipeline.start(
            self._session.spark,
            self._options.client_config,
            self._checkpoint.spark_uri,
            replace(self._operator, outages=tuple(outages)),
            self._owner_epoch,
            self._session.requirements,
            self._guard,
            self._options.batch_start,
        )
        with stopped_on_error(running):
            self._continuity.query_started(
                lambda: self._session.spark, outages, checks_clocks=self._owner_epoch is not None
            )
        self._times.end_of("query")
        self._polls_without_batch = None
        return running

    def committed(self, batch: BatchProgress) -> None:
        """Report the batch to the other parts of the service."""
        if batch.rows_dropped:
            # Spark may drop only late records, and requests are never late. A dropped request is lost.
            log.critical("Spark dropped requests", rows=batch.rows_dropped, batch=batch.batch_id)
        ends = batch.ends_of(self.source)
        self._ticker.pace.batch_read(ends)
        self._continuity.batch_committed(ends, batch.watermark_ms)
        self._polls_without_batch = 0
        self._times.batch_committed(batch)
        self._callbacks.on_batch(batch)

    def watch(self) -> None:
        """Raise NotOwner if another coordinator has taken the topics, and CannotContinue if the replica's
        report of lost requests is confirmed.
        """
        successor = self._ownership.find_successor()
        if successor is not None:
            _raise_not_owner(successor)
        loss = self._continuity.loss()
        if loss is None:
            self._loss_since_s = None
            return
        if self._loss_since_s is None:
            self._loss_since_s = time.monotonic()
            self._status.enter(ServicePhase.FAILING, loss.reason)
        if loss.is_other_topic:
            self._session.kill()  # the query would continue there, and answer
        if loss.is_other_topic or time.monotonic() - self._loss_since_s > LOSS_S:
            self.check_can_continue()

    def obstacle(self) -> str | None:
        """Return a reason if no clock records are acknowledged."""
        return "no broker answers" if self._ticker.cut_off_s() > CUT_OFF_S else None

    def hang(self) -> str | None:
        """Return a reason, once, if nothing has been committed for STANDSTILL_S although the broker answers.

        There is no limit on a query's first batch, so a batch that always takes longer completes in the next
        JVM.
        """
        if self._polls_without_batch is None:
            return None
        self._polls_without_batch = 0 if self._ticker.cut_off_s() > 0 else self._polls_without_batch + 1
        if self._polls_without_batch * POLL_S <= STANDSTILL_S:
            return None
        self._polls_without_batch = None
        return f"no batch was committed for {STANDSTILL_S:.0f} s"

    def alarms(self) -> Iterable[str | None]:
        """Return the alarm of the ticker, and the alarms of other parts."""
        alarm = self._ticker.alarm
        if alarm is None and self._ticker.age_s() > TICKER_ALARM_AGE_S:
            alarm = f"no clock record was acknowledged for {self._ticker.age_s():.0f} s: time stands still"
        return alarm, *self._callbacks.alarms()

    def cause_of(self, error: PySparkException) -> PySparkException | KafkaError:
        """Raise NotOwner if the query failed because a later owner has claimed the topics. Return the
        KafkaError if the claims cannot be read, otherwise `error`.
        """
        text = str(error)
        found_later_clock, found_later_claim = pipeline.has_later_owner(text), LATER_CLAIM in text
        if not found_later_clock and not found_later_claim:
            return error
        try:
            successor = self._ownership.confirm_successor()
        except KafkaError as read_error:
            return read_error
        if successor is not None:
            _raise_not_owner(successor)
        if found_later_claim:
            return error  # the claim was withdrawn
        # A clock record without a claim must not end the service, so later queries ignore the epochs of clock
        # records, and check only claims.
        log.error("a clock record has the epoch of an owner that made no claim; it is not believed")
        self._owner_epoch = None
        return error

    def check_can_continue(self) -> None:
        """Check the ownership, the requests topic and the checkpoint.

        If the topic is lost, kill the JVM, too, because Spark would wait for the topic or read a new one.
        """
        successor = self._ownership.confirm_successor()
        if successor is not None:
            _raise_not_owner(successor)
        try:
            check_can_continue(self._options.client_config, self._checkpoint)
        except TopicLost:
            self._session.kill()
            raise

    def ended(self, error: Exception) -> None:
        """End the replica, and report which of its answers are lost."""
        self._continuity.end()
        if isinstance(error, RequestsLost):
            report_lost(self._ours, self._options.folder, error)

    def failed(self, error: str, failures: int) -> Sequence[str]:
        """Record the failure. Return the requests that workers handled when they died.

        If a worker died at the second or a later failure, the next workers note the request that they handle.
        """
        has_died = WORKER_DIED in error
        interrupted = take_unfinished_notes(self._notes_prefix) if has_died else []
        should_note = has_died and failures >= FAILURES_TO_NAME_THE_BATCH - 1
        self._operator = replace(self._operator, notes_prefix=self._notes_prefix if should_note else None)
        return interrupted


def _raise_not_owner(successor: Claim) -> NoReturn:
    """Raise NotOwner because the claim `successor` has replaced this coordinator's."""
    raise NotOwner(
        f"the topics have another owner: {successor}. This coordinator has stopped; it answers no "
        "request that comes after the first clock record of the new owner"
    )
