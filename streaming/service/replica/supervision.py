"""The supervision of the replica: seeding it, starting its process, and restarting it. Its end never ends the
service, because the query answers without it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog
from kafka import TopicPartition
from kafka.errors import KafkaError
from pyspark.sql import SparkSession

from checkpoints.metadata import KnownOutage, OwnerRecord
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.service import NOT_STARTED, ReplicaPhase, ReplicaState
from kafka_why.topic_reader import TopicReader
from streaming.replica.audit import AnswerDifference
from streaming.replica.log_watch import Loss
from streaming.replica.terms import (
    NO_OWNER,
    BatchCommitted,
    PromoteReplica,
    ReplicaReport,
    StartReplica,
    write_seed,
)
from streaming.service.can_continue import handled_ends
from streaming.service.replica.process import ReplicaListener, ReplicaProcess, make_seed
from streaming.service.starts import backoff_s
from streaming.service.topics import LogAndState

FIRST_PAUSE_S = 0.2
# The count of failures starts again after a replica has run for this time.
WELL_AFTER_S = 60.0
# A replica counts as answering if its report is this recent, and it has acted on times this recent.
RECENT_S = 1.0
NEAR_MS = 1_500
_POLL_S = 0.1
# The pause between two checks of a standby for a new outage of the owner's.
CHECK_S = 2.0

log = structlog.get_logger()


SparkSource: TypeAlias = Callable[[], SparkSession]
"""Returns the present Spark session, which is a new one after a restart of the JVM."""


@dataclass(frozen=True, slots=True)
class _StartPlan:
    spark: SparkSource
    outages: list[KnownOutage] | None  # None for a standby, which has the checkpoint's outages
    promotion: PromoteReplica | None = None  # sent to the process as soon as its seed is written


@dataclass(slots=True)
class _Counts:
    """The sums over earlier processes."""

    answers: int = 0
    compared: int = 0
    differences: int = 0
    seedings: int = 0


class Replica:
    """The replica of one coordinator.

    `stand_by` and `follow` start it, `promote` makes a standby's replica the owner's, and `end` ends it. Each
    is called by one thread at a time. `own` has to be called with the epoch of the owner's claim before
    `follow`.

    `folder` is for its seeds.
    """

    def __init__(
        self,
        ours: LogAndState,
        folder: Path,
        listener: ReplicaListener,
        *,
        now_ms: Callable[[], float],
    ) -> None:
        self._listener = listener
        self._client_config = ours.client_config
        self._layout = ours.layout
        self._checkpoint = ours.checkpoint
        self._folder = folder
        self._now_ms = now_ms
        self._owner_epoch = NO_OWNER
        self._number = 0
        self._counts = _Counts()
        self._idle = ReplicaReport(phase=ReplicaPhase(NOT_STARTED.phase), reason=NOT_STARTED.reason)
        self._difference: str | None = None
        self._read_to: Mapping[int, int] = {}
        self._watermark_ms = 0
        self._last: ReplicaReport | None = None
        self._checked_s = float("-inf")
        self._plan: _StartPlan | None = None
        self._known: OwnerRecord | None = None
        self._process: ReplicaProcess | None = None
        self._process_changes = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def own(self, owner_epoch: int) -> None:
        """Set the epoch of the coordinator, which has taken the topics."""
        self._owner_epoch = owner_epoch

    def next_id(self) -> ReplicaId:
        """Return an id above those of all earlier replicas. Later replicas have no lower id."""
        return ReplicaId(self._owner_epoch, self._number + 1)

    def is_answering(self) -> bool:
        """Return True if the replica currently answers requests."""
        report = self._report()
        return report.phase is ReplicaPhase.ANSWERING and self._now_ms() - report.as_of_ms < NEAR_MS

    def loss(self) -> Loss | None:
        """Return the loss of records that the replica has found, or None.

        After a loss the query cannot continue.
        """
        return self._report().loss

    def follow(self, spark: SparkSource, outages: list[KnownOutage]) -> None:
        """Replace the replica with one that has these outages. A thread seeds the new replica."""
        self._start(_StartPlan(spark, outages))

    def stand_by(self, spark: SparkSource) -> None:
        """Start a replica that does not answer until it is promoted. It is seeded in a thread.

        This is for a standby, and for a start: reading the state takes as long as starting the query.
        """
        self._start(_StartPlan(spark, None))

    @property
    def is_standby(self) -> bool:
        """Return True if the replica is a standby that has not been promoted."""
        return self._thread is not None and self._plan is not None and self._plan.outages is None

    def promote(self, spark: SparkSource, record: OwnerRecord) -> bool:
        """Let the standby's replica answer for the owner, with the configurations and outages of `record`.

        If no replica stands by, or it was seeded with others, end it and return False.
        """
        with self._process_changes:
            process, known = self._process, self._known
            fits = process is None or (known is not None and can_continue_with(known, record))
            if self.is_standby and fits:
                self._number += 1
                promotion = PromoteReplica(
                    replica=self._id(),
                    epochs=record.epochs,
                    outages=record.outages,
                    handled=handled_ends(self._checkpoint, self._layout.requests_topic),
                )
                self._plan = _StartPlan(spark, record.outages, promotion)
                if process is not None:
                    process.send(promotion)
                return True
        self.end()
        return False

    def check_standby(self) -> None:
        """Reseed the standby's replica if the owner has a new configuration or outage."""
        process, known = self._process, self._known
        if process is None or known is None or time.monotonic() - self._checked_s < CHECK_S:
            return
        self._checked_s = time.monotonic()
        record = self._checkpoint.record()
        if (record.epochs, record.outages) != (known.epochs, known.outages):
            process.end()

    def end(self) -> None:
        """End the process and the thread."""
        self._ending.set()
        if self._thread is not None:
            process = self._process
            if process is not None:
                process.end()
            self._thread.join()
            self._thread = None
            self._idle = ReplicaReport(
                phase=ReplicaPhase.ENDED, reason="the next one starts with the next query"
            )

    def end_because(self, reason: str) -> None:
        """End the replica for this reason, and start none until `follow`."""
        self.end()
        self._idle = ReplicaReport(phase=ReplicaPhase.ENDED, reason=reason)

    def committed(self, ends: dict[int, int], watermark_ms: int) -> None:
        """Record that the query has committed a batch: it has read up to these offsets, and fired deadlines
        up to this time.
        """
        self._read_to, self._watermark_ms = ends, watermark_ms
        process = self._process
        if process is not None:
            process.send(BatchCommitted(ends=ends, watermark_ms=watermark_ms))

    def is_settled(self) -> bool:
        """Return True if the query has handled all that the last process has answered."""
        last = self._last
        if last is None or not last.answers:
            return True
        ends, watermark_ms = self._read_to, self._watermark_ms
        has_read = all(ends.get(number, 0) >= offset for number, offset in last.applied.items())
        return has_read and watermark_ms >= last.as_of_ms

    @property
    def state(self) -> ReplicaState:
        with self._process_changes:
            report, counts = self._report(), self._counts
            return ReplicaState(
                phase=report.phase,
                reason=report.reason,
                lag_records=report.lag_records,
                lag_ms=report.lag_ms,
                lead_s=report.lead_s,
                lead_bytes=report.lead_bytes,
                answers=counts.answers + report.answers,
                compared=counts.compared + report.compared,
                differences=counts.differences,
                seedings=counts.seedings,
                groups=report.groups,
                alarm="; ".join(filter(None, (self._difference, report.alarm))) or None,
            )

    def _report(self) -> ReplicaReport:
        """Return the report of the running process, or one with the reason why none runs."""
        process = self._process
        if process is None:
            return self._idle
        report = process.report
        if report.phase is ReplicaPhase.ANSWERING and time.monotonic() - process.reported_s > RECENT_S:
            reason = f"its process has sent no report for more than {RECENT_S:.0f} s"
            return msgspec.structs.replace(report, phase=ReplicaPhase.FOLLOWING, reason=reason)
        return report

    def _id(self) -> ReplicaId:
        return ReplicaId(self._owner_epoch, self._number)

    def _start(self, plan: _StartPlan) -> None:
        self.end()
        self._plan = plan
        self._ending = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_running, args=(self._ending,), name="replica", daemon=True
        )
        self._thread.start()

    def _keep_running(self, ending: threading.Event) -> None:
        failures = 0
        while not ending.is_set():
            assert self._plan is not None
            began_s = time.monotonic()
            self._idle = ReplicaReport(phase=ReplicaPhase.SEEDING, reason="its seed is being written")
            try:
                reason = self._run(self._plan, ending)
            except Exception as error:  # noqa: BLE001 - a JVM that ends meanwhile raises whatever was under way
                reason = f"it could not be seeded: {str(error).strip().partition(chr(10))[0]}"
            if ending.is_set():
                return
            failures = 1 if time.monotonic() - began_s > WELL_AFTER_S else failures + 1
            self._idle = ReplicaReport(phase=ReplicaPhase.ENDED, reason=reason)
            log.warning("the replica ended; the query answers", reason=reason, attempt=failures)
            if failures > 1 and self._plan.outages is not None:
                self._wait_for_query(ending)
            ending.wait(backoff_s(failures, FIRST_PAUSE_S))

    def _run(self, plan: _StartPlan, ending: threading.Event) -> str:
        """Seed a process and run it until it ends. Returns the reason."""
        is_standby = plan.outages is None
        self._known = record = self._checkpoint.record()
        outages = record.outages if plan.outages is None else plan.outages
        seed = make_seed(self._checkpoint, plan.spark(), self._client_config, record.epochs, outages)
        if not is_standby:
            # The batch may be a later owner's, with an unknown outage.
            self._checkpoint.check_owner(self._owner_epoch)
        self._number += not is_standby
        with self._process_changes:
            promotion = self._plan.promotion if is_standby and self._plan is not None else None
            if promotion is not None and not can_continue_with(record, promotion):
                return "another outage began while its seed was written"
            start = StartReplica(
                client_config=self._client_config,
                layout=self._layout,
                replica=self._id(),
                seed=str(write_seed(self._folder, seed)),
                is_standby=is_standby,
            )
            process = ReplicaProcess(start, self._listener)
            if promotion is not None:
                process.send(promotion)
            self._process = process
        self._counts.seedings += 1
        if ending.is_set():
            process.end()
        reason = process.follow()
        with self._process_changes:
            self._process = None
            self._last = process.report
            self._counts.answers += process.report.answers
            self._counts.compared += process.report.compared
            self._idle = ReplicaReport(phase=ReplicaPhase.ENDED, reason=reason)
        if process.report.difference is not None:
            return self._report_difference(process.report.difference)
        return reason

    def _report_difference(self, difference: AnswerDifference) -> str:
        self._counts.differences += 1
        query = "none" if difference.query is None else difference.query.decode(errors="replace")
        self._difference = f"the replica answered {difference.request} in another way than the query"
        log.critical(
            self._difference,
            request=difference.request,
            early=difference.early.decode(errors="replace"),
            query=query,
        )
        return self._difference

    def _wait_for_query(self, ending: threading.Event) -> None:
        """Wait until the query has handled all current records, one of which may have ended the process."""
        try:
            with TopicReader(self._client_config) as reader:
                topic = self._layout.requests_topic
                numbers = range(self._layout.request_partitions)
                found = reader.ends([TopicPartition(topic, number) for number in numbers])
                ends = {partition.partition: end for partition, end in found.items()}
        except KafkaError as error:
            log.warning("the ends of the requests topic cannot be read", error=repr(error))
            return
        while any(self._read_to.get(number, 0) < end for number, end in ends.items()):
            if ending.wait(_POLL_S):
                return


def can_continue_with(known: OwnerRecord, record: OwnerRecord | PromoteReplica) -> bool:
    """Return True if a replica that knows the first record can continue with the second.

    Its only new items may be the outage that the new owner has ended, and that owner's configuration.
    """
    outages, epochs = len(known.outages), len(known.epochs)
    return (
        known.outages == record.outages[:outages]
        and len(record.outages) <= outages + 1
        and known.epochs == record.epochs[:epochs]
        and len(record.epochs) <= epochs + 1
    )
