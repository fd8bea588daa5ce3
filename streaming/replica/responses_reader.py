"""The replica's reader of the responses topic. It compares the replica's answers with the query's. On a
standby it reads the time up to which the owner's replica has acted.
"""

import time
from collections.abc import Callable

from confluent_kafka import KafkaException, Message, TopicPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import unpack
from kafka_why.contract.early_answers import EarlyAnswers, ReplicaId, as_of, marker_of
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import BackgroundThread
from streaming.replica.audit import AnswerDifference, Audit

_RECORDS_MAX = 500
_POLL_S = 0.5
_CONNECT_TIMEOUT_S = 10.0
# The maximum time for reading the topic to its end. After it, no answer is reported as missing yet.
_CATCH_UP_TIMEOUT_S = 10.0
# The audit is not urgent, so it waits for larger fetches, which leave the processor to the answers.
_FETCH_MIN_BYTES = 64 * 1024


class ResponsesReader(BackgroundThread):
    """A reader of the responses topic from its end as of `begin`, in a thread from `start` on.

    `replica` is the id of the replica that it belongs to. `on_end` is called when the reader finds a
    difference or fails: `difference` or `failure` is then set. `horizon_ms` is read only on a standby: the
    latest time up to which the owner's replica has acted (`StateMachine.as_of_ms`). `is_replaced` is True
    once a later replica has begun: later answers of the replaced one no longer count. That is this replica,
    or on a standby the owner's.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        audit: Audit,
        on_end: Callable[[], None],
        replica: ReplicaId,
        *,
        compares: bool,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("responses-reader")
        self.compares = compares
        """True if it compares answers, False on a standby, which gives none."""
        self.difference: AnswerDifference | None = None
        self.failure: Exception | None = None
        self.horizon_ms = 0
        self.is_replaced = False
        self._replica = replica
        self._layout = layout
        self._audit = audit
        self._on_end = on_end
        self._now_s = now_s
        self._valid_answers = EarlyAnswers()
        self._next_offsets: dict[int, int] = {}  # by partition of the responses topic
        self._consumer = kafka_clients.answers_consumer(
            client_config,
            max_record_bytes=layout.response_record_max_bytes,
            on_error=lambda _: None,  # the reader of the requests reports them
            fetch_min_bytes=_FETCH_MIN_BYTES if compares else 1,
        )

    def begin(self) -> None:
        """Start at the ends of the partitions. Raises KafkaException."""
        self._next_offsets = self._ends()
        topic = self._layout.responses_topic
        self._consumer.assign([TopicPartition(topic, *position) for position in self._next_offsets.items()])

    def stop(self) -> None:
        """Stop the thread, and close the connection."""
        super().stop()
        self._consumer.close()

    def store_difference(self, difference: AnswerDifference | None) -> None:
        """Store this difference, if there is one, as the first one, unless a later replica has begun.

        Differences are expected then, because a later owner's outage affects the query's answers.
        """
        if difference is not None and self.difference is None and not self.is_replaced:
            self.difference = difference
            self._on_end()

    def _run(self) -> None:
        """Read until stopped, until a difference is found, or until an error, which becomes `failure`."""
        try:
            while not self._stopped.is_set() and self.difference is None:
                self.read()
        except Exception as error:  # noqa: BLE001 - the replica ends with it
            self.failure = error
            self._on_end()

    def read(self) -> None:
        """Handle the available records, and check for answers that the query should have given."""
        self._poll()
        overdue = self._audit.overdue(self._now_s()) if self.compares else None
        if overdue is not None and self._catch_up() and overdue.request in self._audit:
            self.store_difference(overdue)

    def _poll(self) -> None:
        """Handle the available records."""
        first = self._consumer.poll(_POLL_S)
        messages = [] if first is None else [first, *self._consumer.consume(_RECORDS_MAX, 0)]
        for message in messages:
            if message.error() is None:
                self._next_offsets[message.partition() or 0] = (message.offset() or 0) + 1
                self._handle(message)

    def _catch_up(self) -> bool:
        """Read the topic to its current end.

        Return False if that takes too long, or if a partition has no leader.
        """
        give_up_s = time.monotonic() + _CATCH_UP_TIMEOUT_S
        try:
            ends = self._ends()
        except KafkaException:
            return False
        while any(self._next_offsets[number] < end for number, end in ends.items()):
            if self._stopped.is_set() or time.monotonic() > give_up_s:
                return False
            self._poll()
        return True

    def _ends(self) -> dict[int, int]:
        """Return the offset after the last record of each partition. Raises KafkaException."""
        ends = {}
        for number in range(self._layout.reply_partitions):
            partition = TopicPartition(self._layout.responses_topic, number)
            _, ends[number] = self._consumer.get_watermark_offsets(partition, timeout=_CONNECT_TIMEOUT_S)
        return ends

    def promote(self, replica: ReplicaId) -> None:
        """Compare the answers of this replica from now on."""
        self._replica, self.is_replaced, self.compares = replica, False, True

    def _handle(self, message: Message) -> None:
        """Handle a marker, answers of the query, or on a standby answers of the owner's replica."""
        value = message.value()
        headers = message.headers()
        first_valid = marker_of(headers)  # type: ignore[arg-type]
        if first_valid is not None:
            # On a standby, any marker ends the answers of the owner's replica.
            self.is_replaced = self.is_replaced or not self.compares or first_valid > self._replica
        elif not self.compares:
            self._read_horizon(message)
        elif value is not None and as_of(headers) is None:  # type: ignore[arg-type]
            self.store_difference(self._audit.add_query(unpack(value)))

    def _read_horizon(self, message: Message) -> None:
        """Advance `horizon_ms` to the time of this record, if it has valid early answers."""
        headers = message.headers()
        if not self.is_replaced and self._valid_answers.accepts(message.partition(), headers):  # type: ignore[arg-type]
            early = as_of(headers)  # type: ignore[arg-type]
            if early is not None:
                self.horizon_ms = max(self.horizon_ms, early.as_of_ms)
