"""The replica's follower of the requests topic: it applies records to the state machine, and appends the
answers to the responses topic before the query does.

One thread does all the work of an answer.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, TopicPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.early_answers import ReplicaId, early_headers
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ReplicaPhase
from streaming.replica.audit import Audit, ReplicaPosition
from streaming.replica.log_watch import LogWatch
from streaming.replica.responses_reader import ResponsesReader
from streaming.replica.state_machine import HELD_MAX, HeldRecords, Record, StateMachine
from streaming.replica.terms import (
    BatchCommitted,
    BatchWanted,
    NextDeadline,
    PendingChanges,
    ReplicaReport,
    Terms,
)

# A replica that is further ahead stops answering, so that clients notice that the query does not keep up.
LEAD_MAX_S = 300.0
LEAD_MAX_BYTES = 256 * 1024 * 1024

_MIB = 1024 * 1024
_SILENCE = "then the replica answers nothing, and clients wait for the query"


class Lead(NamedTuple):
    """The replica's lead over the query. The texts name only the limits, so that they change rarely."""

    seconds: float = 0.0  # since the query last committed a batch
    size_bytes: int = 0  # of the early answers that the query has not repeated yet

    def why_silent(self) -> str:
        """Return which limit the lead exceeds, so that the replica may not answer, or "" if it may."""
        if self.seconds > LEAD_MAX_S:
            return f"the query has committed no batch for more than {LEAD_MAX_S:.0f} s"
        if self.size_bytes > LEAD_MAX_BYTES:
            return f"more than {LEAD_MAX_BYTES // _MIB} MiB of early answers wait for the query's"
        return ""

    def alarm(self) -> str | None:
        """Return a warning if the lead exceeds half of a limit, else None."""
        if self.seconds > LEAD_MAX_S / 2:
            return (
                f"the query has committed no batch for more than {LEAD_MAX_S / 2:.0f} s. "
                f"The bound is {LEAD_MAX_S:.0f} s: {_SILENCE}"
            )
        if self.size_bytes > LEAD_MAX_BYTES / 2:
            return (
                f"more than {LEAD_MAX_BYTES // 2 // _MIB} MiB of early answers wait for the query's. "
                f"The bound is {LEAD_MAX_BYTES // _MIB} MiB: {_SILENCE}"
            )
        return None


# A replica that is further behind the requests topic stops answering until it has reached the topic's end,
# because the query is as fast.
LAG_MAX_MS = 5_000
# A replica stops answering after this time without a clock record of its own coordinator.
UNOWNED_AFTER_S = 1.5
_ROUND_MAX_RECORDS = 500
_ANSWERS_MAX_BYTES = 1024 * 1024  # answers of this size are appended before the end of the round
# The bytes of a record of answers besides its value and its header with commits.
_HEADERS_MAX_BYTES = 4 * 1024
_POLL_S = 0.1  # the maximum wait for records in a round
_CLOSE_TIMEOUT_S = 0.5
_CONNECT_TIMEOUT_S = 10.0
_REPLACED = "another replica has begun"
_BEHIND = "it has not reached the end of the requests topic"


class ReplicaFailed(RuntimeError):
    """The replica cannot continue. The message says why."""


class RequestsFollower:
    """A follower of the requests topic, which runs until `stop`. As a standby it does not answer until it is
    promoted.

    `topic_id` is the id of the requests topic that the state belongs to. `notify` sends a message to the
    service. `wall_ms` is the clock by which the lag is measured.
    `run` calls `begin` once and then `round` repeatedly, while `responses` and `log_watch` work in threads of
    their own.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        replica: ReplicaId,
        machine: StateMachine,
        *,
        topic_id: str,
        is_standby: bool = False,
        notify: Callable[[PendingChanges | NextDeadline | BatchWanted], None] = lambda _: None,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._replica = replica
        self._machine = machine
        self._notify = notify
        self._wall_ms = wall_ms
        self._now_s = now_s
        self._stopped = threading.Event()
        self._audit = Audit()
        self._held = HeldRecords(machine) if is_standby else None  # None after the promotion, too
        # The arguments of `promote`, for the next round.
        self._promotion: tuple[ReplicaId, Terms, Mapping[int, int]] | None = None
        self._unapplied_batches: deque[BatchCommitted] = deque()  # from `committed`, for the next round
        self._announced_ms: int | None = None  # in the last NextDeadline to the service
        self._batch_is_wanted = False  # True from a BatchWanted to the service until a batch is committed
        self._answer_count = 0
        self._silent_reason = _BEHIND  # why the replica may not answer, "" if it may
        self._last_append_ms = 0.0  # of the last record that was read
        self._lag_records = 0
        # The requests topic's ends at the begin. The query's answers to earlier requests may be missed.
        self._first_ends: dict[int, int] = {}
        self._broker_error = ""
        self._committed_s = self._now_s()  # when the last batch was committed
        self._owned_s = self._now_s()  # when the log last showed that the owner runs
        self.responses = ResponsesReader(
            client_config,
            layout,
            self._audit,
            self._stopped.set,
            replica,
            compares=not is_standby,
            now_s=now_s,
        )
        self.log_watch = LogWatch(
            client_config, layout.requests_topic, topic_id, self._next_offsets(), now_s=now_s
        )
        self._producer = kafka_clients.early_answers_producer(
            client_config, max_record_bytes=layout.response_record_max_bytes
        )
        self._consumer = kafka_clients.answers_consumer(
            client_config,
            max_record_bytes=layout.request_record_max_bytes,
            on_error=self._on_error,
            offset_reset="error",
        )

    def run(self) -> None:
        """Follow the topic until stopped. Raises the errors of the state machine, and ReplicaFailed."""
        self.begin()
        self.responses.start()
        self.log_watch.start()
        try:
            while not self._stopped.is_set():
                self.round()
            if self.responses.failure is not None:
                raise ReplicaFailed(f"the audit ended: {self.responses.failure!r}")
        finally:
            self._stopped.set()
            self.log_watch.stop()
            self.responses.stop()
            self._producer.flush(_CLOSE_TIMEOUT_S)
            self._consumer.close()

    def begin(self) -> None:
        """Begin to read the responses at their end, and the requests where the seed ends."""
        self.responses.begin()
        for number in self._machine.partitions:
            key = TopicPartition(self._layout.requests_topic, number)
            _, end = self._consumer.get_watermark_offsets(key, timeout=_CONNECT_TIMEOUT_S)
            self._first_ends[number] = end
        self._consumer.assign(
            [TopicPartition(self._layout.requests_topic, *item) for item in self._next_offsets().items()]
        )

    def _next_offsets(self) -> dict[int, int]:
        """Return the offset of the next record to apply, by partition."""
        return {number: partition.next_offset for number, partition in self._machine.partitions.items()}

    def round(self) -> None:
        """Apply the available records, and append their answers."""
        while self._unapplied_batches:
            batch = self._unapplied_batches.popleft()
            self._machine.committed(batch.ends, batch.watermark_ms)
            self._batch_is_wanted = False
        first = self._consumer.poll(_POLL_S)
        if first is not None:
            self._stop_answering_after_loss()
        # `consume` alone would wait until it has as many records as it may return.
        messages = [] if first is None else [first, *self._consumer.consume(_ROUND_MAX_RECORDS, 0)]
        for message in messages:
            if (error := message.error()) is not None:
                self._handle_error(error)
                continue
            self._apply(message)
            if self._machine.answers.size_bytes >= _ANSWERS_MAX_BYTES:
                self._append_answers()
        if self._held is not None:
            self._stand_by(self._held)
        self._append_answers()
        if self._held is None:
            self._announce()
        self._update_lag()
        self._producer.poll(0)

    def stop(self) -> None:
        """End `run`. Any thread may call it."""
        self._stopped.set()

    def committed(self, batch: BatchCommitted) -> None:
        """Record that the query has committed a batch. Any thread may call it."""
        self.log_watch.committed(batch.ends)
        self._committed_s = self._now_s()
        self._unapplied_batches.append(batch)
        self._audit.committed(ReplicaPosition(batch.ends, batch.watermark_ms), self._committed_s)

    def promote(self, replica: ReplicaId, terms: Terms, handled: Mapping[int, int]) -> None:
        """Answer as this replica from now on, because the standby has taken the topics.

        `handled` are the offsets before which committed batches have handled all records, by partition. Any
        thread may call it.
        """
        self._promotion = (replica, terms, handled)

    def report(self) -> ReplicaReport:
        """Return the current state. Any thread may call it."""
        reason = self._broker_error or self._silent_reason
        if not reason and self._now_s() - self._owned_s > UNOWNED_AFTER_S:
            reason = "its coordinator appends no clock records"
        phase = ReplicaPhase.FOLLOWING if reason else ReplicaPhase.ANSWERING
        lead = self._lead()
        if self._held is not None:
            phase = ReplicaPhase.STANDBY
            reason = _REPLACED if self.responses.is_replaced else "its coordinator stands by, or starts"
        return ReplicaReport(
            phase=phase,
            reason=reason,
            as_of_ms=self._machine.as_of_ms,
            applied=self._next_offsets(),
            lag_records=self._lag_records,
            lag_ms=max(0, round(self._wall_ms() - self._last_append_ms)) if self._lag_records else 0,
            lead_s=lead.seconds,
            lead_bytes=lead.size_bytes,
            answers=self._answer_count,
            compared=self._audit.compared,
            groups=sum(len(p.groups) for p in self._machine.partitions.values()),
            alarm=lead.alarm(),
            loss=self.log_watch.loss() if self._held is None else None,
            difference=self.responses.difference,
        )

    def _lead(self) -> Lead:
        if self._held is not None:
            return Lead()  # a standby has no query
        return Lead(self._now_s() - self._committed_s, self._audit.size_bytes)

    def _apply(self, message: Message) -> None:
        """Apply a record, or hold it back on a standby."""
        _, at_ms = message.timestamp()
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        record = Record(partition, offset, at_ms, message.key(), message.value())
        if self._held is None:
            self._machine.apply(record)
        else:
            self._held.hold(record)
        if self._machine.is_owned:
            self._owned_s = self._now_s()
        self._last_append_ms = at_ms
        self._broker_error = ""

    def _stand_by(self, held: HeldRecords) -> None:
        """Apply the held records up to the horizon, or all of them if the standby was promoted."""
        if self._promotion is not None:
            return self._apply_promotion(held, *self._promotion)
        held.apply_until(self.responses.horizon_ms)
        if len(held) > HELD_MAX:
            raise ReplicaFailed(f"{len(held)} records are held back: the owner's replica answers nothing")

    def _apply_promotion(
        self, held: HeldRecords, replica: ReplicaId, terms: Terms, handled: Mapping[int, int]
    ) -> None:
        """Continue as the new owner's replica, and apply the held records."""
        self._replica = replica
        self._machine.change_terms(terms)
        self.log_watch.committed(handled)
        self.responses.promote(self._replica)
        self._committed_s = self._owned_s = self._now_s()
        self.log_watch.renew()
        # `_update_lag` would permit answers only after the held requests are applied. Their clients wait.
        self._machine.is_permitted = not self.log_watch.why_silent()
        held.apply_all()
        self._held = None

    def _append_answers(self) -> None:
        """Notify the service of pending transactions, and append the collected answers to the topic."""
        machine = self._machine
        if machine.answers.transactions:
            self._notify(PendingChanges(records=machine.answers.transactions))
            machine.answers.transactions = []
        records = machine.answers.drain()
        if not records:
            return
        position = ReplicaPosition(self._next_offsets(), machine.as_of_ms)
        for record in records:
            self.responses.store_difference(self._audit.add_early(record.answers, position))
            free_bytes = self._layout.response_record_max_bytes - len(record.value) - _HEADERS_MAX_BYTES
            headers = early_headers(
                self._replica, machine.as_of_ms, record.commits, max_commits_bytes=free_bytes
            )
            try:
                self._producer.produce(
                    self._layout.responses_topic,
                    record.value,
                    partition=record.reply_partition,
                    headers=headers,  # type: ignore[arg-type]
                )
            except BufferError:
                self._producer.poll(_POLL_S)  # its queue is full: drop the record, the query's answers follow
            self._answer_count += len(record.answers)

    def _announce(self) -> None:
        """Notify the service when clock records are needed: at the next deadline, and for a batch."""
        if self._machine.awaits_batch and not self._batch_is_wanted:
            self._batch_is_wanted = True
            self._notify(BatchWanted())
        next_ms, announced_ms = self._machine.next_deadline_ms(), self._announced_ms
        if next_ms is None or next_ms == announced_ms:
            return
        # A later deadline is announced when the announced one has passed.
        if announced_ms is None or next_ms < announced_ms or announced_ms <= self._machine.attested_ms:
            self._announced_ms = next_ms
            self._notify(NextDeadline(at_ms=next_ms))

    def _stop_answering_after_loss(self) -> None:
        """Stop answering if the log may have lost records that the query has not read."""
        if not self._machine.is_permitted:
            return
        self.log_watch.renew()
        if reason := self.log_watch.why_silent():
            self._silent_reason, self._machine.is_permitted = reason, False
            self._producer.purge(in_flight=False)  # drop the answers that are not sent yet

    def _update_lag(self) -> None:
        """Update the lag behind the topic, and decide if answers may be given."""
        lag = 0
        for number, partition in self._machine.partitions.items():
            key = TopicPartition(self._layout.requests_topic, number)
            _, end = self._consumer.get_watermark_offsets(key, cached=True)
            if end < 0:
                return  # no broker has answered yet
            lag += max(0, end - partition.next_offset)
        self._lag_records = lag
        if self._held is None:
            self._silent_reason = self._why_silent()
            self._machine.is_permitted = not self._silent_reason

    def _why_silent(self) -> str:
        """Return why the replica may not answer in the next round, or "" if it may."""
        if self._silent_reason and self._lag_records > _ROUND_MAX_RECORDS:
            # A silent replica answers again only when it has nearly reached the end of the topic.
            return self._silent_reason
        if any(p.next_offset < self._first_ends[number] for number, p in self._machine.partitions.items()):
            return _BEHIND
        if self._lag_records and self._wall_ms() - self._last_append_ms > LAG_MAX_MS:
            return f"it is more than {LAG_MAX_MS} ms behind"
        if self.responses.is_replaced:
            return _REPLACED
        if loss_reason := self.log_watch.why_silent():
            return loss_reason
        if lead_reason := self._lead().why_silent():
            return lead_reason
        if all(partition.has_ended for partition in self._machine.partitions.values()):
            return "the topics have another owner"
        return ""

    def _handle_error(self, error: KafkaError) -> None:
        """Note an error for the reports. Raises ReplicaFailed if the records to read next were deleted."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise ReplicaFailed(f"the requests topic does not have the records that follow: {error.str()}")
        self._broker_error = error.str()

    def _on_error(self, error: KafkaError) -> None:
        # One of several brokers may be unreachable for long. If that matters, no records arrive.
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self._broker_error = error.str()
