"""Detection of records of the requests topic that were lost before the query read them.

Kafka deletes records by DeleteRecords, by retention or with their topic, whether they were read or not. The
query can never continue after a gap, so an early answer would be the only trace of its request. The replica
therefore answers only if a recent poll of the topic's start offsets saw no gap.
"""

import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from msgspec import Struct

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.lifetimes import BackgroundThread

# The time between the starts of two polls.
INTERVAL_S = 0.2
# An older poll does not permit an answer. With the follower's current round, this limits the time from the
# loss of a record to the last answer to 1 s (measured in docs/faults.md).
CONFIRMED_FOR_S = 0.5
# After a short pause of the machine, the last poll is too old. A new one takes milliseconds.
_RENEWAL_WAIT_S = 0.3
_TIMEOUT_S = 0.5


class Loss(Struct, frozen=True, kw_only=True):
    """The reason why the query must not continue."""

    reason: str
    # The topic was created again under its name. The query would not fail, but read the new topic.
    is_other_topic: bool = False


class LogWatch(BackgroundThread):
    """A thread that compares the start offsets of the requests topic with the query's positions in it.

    `topic_id` is the id of the topic that the state belongs to. `positions` are the offsets of the first
    records that no committed batch has read, by partition.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        topic: str,
        topic_id: str,
        positions: Mapping[int, int],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("log-watch")
        self._admin = kafka_clients.librdkafka_admin(client_config)
        self._topic = topic
        self._topic_id = topic_id
        self._positions = dict(positions)
        # The results of the last poll, and when it began.
        self._start_offsets: dict[int, int] = {}
        self._topic_loss: Loss | None = None  # set if the topic itself is lost
        self._polled_s = float("-inf")
        self._now_s = now_s
        self._polled = threading.Condition()  # notified after each poll

    def committed(self, ends: Mapping[int, int]) -> None:
        """Set the query's positions: it has committed a batch that has read all records before `ends`."""
        self._positions.update(ends)

    def loss(self) -> Loss | None:
        """Return the loss of the topic or of records that no committed batch has read. Return None if the
        last poll found neither.
        """
        if self._topic_loss is not None:
            return self._topic_loss
        positions = self._positions
        lost = [
            f"{self._topic}[{number}] {positions[number]} to {start - 1}"
            for number, start in sorted(self._start_offsets.items())
            if start > positions.get(number, start)
        ]
        if not lost:
            return None
        return Loss(reason=f"records were deleted before they were handled: {', '.join(lost)}")

    def why_silent(self) -> str:
        """Return why the replica may not answer, or "" if a recent poll found no loss."""
        if self._is_outdated():
            return "the start of the requests topic is not known"
        loss = self.loss()
        return "" if loss is None else loss.reason

    def renew(self) -> None:
        """Wait briefly for a new poll of the topic if the last one is too old."""
        with self._polled:
            self._polled.wait_for(lambda: not self._is_outdated(), _RENEWAL_WAIT_S)

    def _is_outdated(self) -> bool:
        """Return True if the last poll is too old to permit an answer."""
        return self._now_s() - self._polled_s > CONFIRMED_FOR_S

    def poll(self) -> None:
        """Poll the topic once. Raises KafkaException if the brokers do not answer in time.

        A topic unknown to a broker counts as a loss until a broker knows it. The service checks if the topic
        was deleted.
        """
        began_s = self._now_s()
        partitions = [TopicPartition(self._topic, number) for number in self._positions]
        # Both requests run concurrently.
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        starts = self._admin.list_offsets(dict.fromkeys(partitions, earliest), request_timeout=_TIMEOUT_S)
        described = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=_TIMEOUT_S)
        self._topic_loss = self._loss_of_topic(described[self._topic])
        self._start_offsets = {key.partition: start.result().offset for key, start in starts.items()}
        with self._polled:
            self._polled_s = began_s
            self._polled.notify_all()

    def _loss_of_topic(self, described: Future[Any]) -> Loss | None:
        """Return the loss of the topic, or None if it exists with the id that the state belongs to."""
        try:
            topic_id = described.result().topic_id
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return Loss(reason=f"{self._topic} does not exist any more")
        halves = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
        if str(UUID(bytes=struct.pack(">qq", *halves))) == self._topic_id:
            return None
        return Loss(reason=f"{self._topic} was deleted and created again", is_other_topic=True)

    def _run(self) -> None:
        while not self._stopped.is_set():
            next_s = time.monotonic() + INTERVAL_S
            with suppress(KafkaException):  # the last poll then becomes too old, which stops the answers
                self.poll()
            self._stopped.wait(max(0.0, next_s - time.monotonic()))
