"""The supervision of the replica, a process that answers requests before the query does: writing its seed
(the state from which it starts), starting its process, and restarting it. The end of the replica never ends
the service, because the query answers without it.
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
# A replica counts as answering if its last report is at most this old, and shows that it has acted on a time
# at most NEAR_MS ago.
RECENT_S = 1.0
NEAR_MS = 1_500
_POLL_S = 0.1
# The pause between two checks of a standby for a new outage or configuration of the owner.
CHECK_S = 2.0

log = structlog.get_logger()


SparkSource: TypeAlias = Callable[[], SparkSession]
"""Returns the present Spark session, which is a new one after a restart of the JVM."""


@dataclass(frozen=True, slots=True)
class _StartPlan:
    """The inputs of the next replica process."""

    spark: SparkSource
    # None until the replica is promoted or started for an owner. A standby uses the checkpoint's outages.
    outages: list[KnownOutage] | None
    # The promotion that this plan comes from. It is sent to a process whose seed was being written meanwhile.
    promotion: PromoteReplica | None = None

    @property
    def is_standby(self) -> bool:
        return self.outages is None


class Replica:
    """The replica of one coordinator.

    `stand_by` and `follow` start it, `promote` makes a standby's replica the owner's, and `end` ends it. Each
    is called by one thread at a time. `set_owner_epoch` has to be called before `follow`.

    Seeds are written to `folder`.
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
        self._owner_epoch = NO_OWNER  # until `set_owner_epoch`
        self._number = 0  # of the last replica of this owner (`ReplicaId`)
        # The counts of all ended processes.
        self._answers = 0
        self._compared = 0
        self._differences = 0
        self._seedings = 0
        # The report while no process runs.
        self._idle_report = ReplicaReport(phase=ReplicaPhase(NOT_STARTED.phase), reason=NOT_STARTED.reason)
        self._difference: str | None = None  # a sentence about the last difference, for the alarm
        # The offsets up to which the last committed batch has read, and the time up to which it has fired.
        self._committed_ends: Mapping[int, int] = {}
        self._watermark_ms = 0
        self._last_report: ReplicaReport | None = None  # the last report of the last process that has ended
        self._standby_checked_s = float("-inf")
        self._plan: _StartPlan | None = None
        self._seeded_record: OwnerRecord | None = None  # the record that the last seed was made from
        self._process: ReplicaProcess | None = None
        self._process_lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def set_owner_epoch(self, owner_epoch: int) -> None:
        """Set the epoch of the coordinator's claim on the topics."""
        self._owner_epoch = owner_epoch

    def next_id(self) -> ReplicaId:
        """Return the id of the next replica. Ids increase from one replica to the next."""
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
        """Start a replica with these outages in place of the current one. It is seeded in a thread."""
        self._start(_StartPlan(spark, outages))

    def stand_by(self, spark: SparkSource) -> None:
        """Start a replica that does not answer until it is promoted. It is seeded in a thread.

        Also used at the start of an owner: reading the state takes as long as starting the query, so both run
        at once.
        """
        self._start(_StartPlan(spark, None))

    @property
    def is_standby(self) -> bool:
        """Return True if the replica is started as a standby and has not been promoted."""
        return self._thread is not None and self._plan is not None and self._plan.is_standby

    def promote(self, spark: SparkSource, record: OwnerRecord) -> bool:
        """Let the standby's replica answer for the owner, with the configurations and outages of `record`.

        If no replica stands by, or it cannot continue with `record` (`can_continue_with`), end the replica
        and return False.
        """
        with self._process_lock:
            process, seeded_record = self._process, self._seeded_record
            is_being_seeded = process is None  # `_run` then checks `record` afterwards
            can_continue = is_being_seeded or (
                seeded_record is not None and can_continue_with(seeded_record, record)
            )
            if self.is_standby and can_continue:
                self._number += 1
                promotion = PromoteReplica(
                    replica=self._current_id(),
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

    def reseed_outdated_standby(self) -> None:
        """Reseed the standby's replica if the owner has stored a new configuration or outage since its seed
        was made. The checkpoint is read every CHECK_S at most.
        """
        process, seeded_record = self._process, self._seeded_record
        if process is None or seeded_record is None or time.monotonic() - self._standby_checked_s < CHECK_S:
            return
        self._standby_checked_s = time.monotonic()
        record = self._checkpoint.record()
        if (record.epochs, record.outages) != (seeded_record.epochs, seeded_record.outages):
            process.end()  # `_keep_running` then starts another one with a new seed

    def end(self) -> None:
        """End the process and the thread."""
        self._ending.set()
        if self._thread is not None:
            process = self._process
            if process is not None:
                process.end()
            self._thread.join()
            self._thread = None
            self._idle_report = ReplicaReport(
                phase=ReplicaPhase.ENDED, reason="the next one starts with the next query"
            )

    def end_because(self, reason: str) -> None:
        """End the replica for this reason, and start none until `follow`."""
        self.end()
        self._idle_report = ReplicaReport(phase=ReplicaPhase.ENDED, reason=reason)

    def committed(self, ends: dict[int, int], watermark_ms: int) -> None:
        """Record that the query has committed a batch, which has read up to the offsets `ends` and fired
        deadlines up to `watermark_ms`.
        """
        self._committed_ends, self._watermark_ms = ends, watermark_ms
        process = self._process
        if process is not None:
            process.send(BatchCommitted(ends=ends, watermark_ms=watermark_ms))

    def is_settled(self) -> bool:
        """Return True if the query has handled all that the last process, which has ended, has answered."""
        last = self._last_report
        if last is None or not last.answers:
            return True
        ends, watermark_ms = self._committed_ends, self._watermark_ms
        has_read_all = all(ends.get(number, 0) >= offset for number, offset in last.applied.items())
        return has_read_all and watermark_ms >= last.as_of_ms

    @property
    def state(self) -> ReplicaState:
        with self._process_lock:
            report = self._report()
            return ReplicaState(
                phase=report.phase,
                reason=report.reason,
                lag_records=report.lag_records,
                lag_ms=report.lag_ms,
                lead_s=report.lead_s,
                lead_bytes=report.lead_bytes,
                answers=self._answers + report.answers,
                compared=self._compared + report.compared,
                differences=self._differences,
                seedings=self._seedings,
                groups=report.groups,
                alarm="; ".join(filter(None, (self._difference, report.alarm))) or None,
            )

    def _report(self) -> ReplicaReport:
        """Return the report of the running process, or one with the reason why none runs."""
        process = self._process
        if process is None:
            return self._idle_report
        report = process.report
        if report.phase is ReplicaPhase.ANSWERING and time.monotonic() - process.reported_s > RECENT_S:
            reason = f"its process has sent no report for more than {RECENT_S:.0f} s"
            return msgspec.structs.replace(report, phase=ReplicaPhase.FOLLOWING, reason=reason)
        return report

    def _current_id(self) -> ReplicaId:
        return ReplicaId(self._owner_epoch, self._number)

    def _start(self, plan: _StartPlan) -> None:
        """End the current replica, and start a thread that runs replicas by this plan."""
        self.end()
        self._plan = plan
        self._ending = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_running, args=(self._ending,), name="replica", daemon=True
        )
        self._thread.start()

    def _keep_running(self, ending: threading.Event) -> None:
        """Start a process by the current plan whenever the last one has ended, until `ending` is set."""
        failures = 0
        while not ending.is_set():
            assert self._plan is not None
            began_s = time.monotonic()
            self._idle_report = ReplicaReport(phase=ReplicaPhase.SEEDING, reason="its seed is being written")
            try:
                reason = self._run(self._plan, ending)
            except Exception as error:  # noqa: BLE001 - a JVM that ends meanwhile raises whatever was under way
                reason = "it could not be seeded: " + str(error).strip().partition("\n")[0]
            if ending.is_set():
                return
            failures = 1 if time.monotonic() - began_s > WELL_AFTER_S else failures + 1
            self._idle_report = ReplicaReport(phase=ReplicaPhase.ENDED, reason=reason)
            log.warning("the replica ended; the query answers", reason=reason, attempt=failures)
            if failures > 1 and not self._plan.is_standby:
                self._wait_for_query(ending)
            ending.wait(backoff_s(failures, FIRST_PAUSE_S))

    def _run(self, plan: _StartPlan, ending: threading.Event) -> str:
        """Seed a process and run it until it ends. Return the reason of its end."""
        self._seeded_record = record = self._checkpoint.record()
        outages = record.outages if plan.outages is None else plan.outages
        seed = make_seed(self._checkpoint, plan.spark(), self._client_config, record.epochs, outages)
        if not plan.is_standby:
            # The batch in the seed may be a later owner's, with an outage that this owner does not know.
            self._checkpoint.check_owner(self._owner_epoch)
            self._number += 1
        with self._process_lock:
            # `promote` may have replaced a standby's plan while the seed was written.
            current_plan = self._plan
            promotion = current_plan.promotion if plan.is_standby and current_plan is not None else None
            if promotion is not None and not can_continue_with(record, promotion):
                return "another outage began while its seed was written"
            start = StartReplica(
                client_config=self._client_config,
                layout=self._layout,
                replica=self._current_id(),
                seed=str(write_seed(self._folder, seed)),
                is_standby=plan.is_standby,
            )
            process = ReplicaProcess(start, self._listener)
            if promotion is not None:
                process.send(promotion)
            self._process = process
        self._seedings += 1
        if ending.is_set():
            process.end()
        reason = process.follow()
        with self._process_lock:
            self._process = None
            self._last_report = process.report
            self._answers += process.report.answers
            self._compared += process.report.compared
            self._idle_report = ReplicaReport(phase=ReplicaPhase.ENDED, reason=reason)
        if process.report.difference is not None:
            return self._report_difference(process.report.difference)
        return reason

    def _report_difference(self, difference: AnswerDifference) -> str:
        """Count and log a difference. Return a sentence about it."""
        self._differences += 1
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
        """Wait until the query has handled all records that are on the requests topic now. One of them may
        have ended the process.
        """
        try:
            with TopicReader(self._client_config) as reader:
                topic = self._layout.requests_topic
                numbers = range(self._layout.request_partitions)
                ends = reader.ends([TopicPartition(topic, number) for number in numbers])
        except KafkaError as error:
            log.warning("the ends of the requests topic cannot be read", error=repr(error))
            return
        while any(self._committed_ends.get(p.partition, 0) < end for p, end in ends.items()):
            if ending.wait(_POLL_S):
                return


def can_continue_with(known: OwnerRecord, record: OwnerRecord | PromoteReplica) -> bool:
    """Return True if a replica whose seed has the configurations and outages of `known` can continue with
    those of `record`.

    `record` may have one more outage, which the new owner has ended, and one more configuration, which is the
    new owner's.
    """
    outage_count, epoch_count = len(known.outages), len(known.epochs)
    return (
        known.outages == record.outages[:outage_count]
        and len(record.outages) <= outage_count + 1
        and known.epochs == record.epochs[:epoch_count]
        and len(record.epochs) <= epoch_count + 1
    )
