"""The loop with kafka-python: `python -m tests.transactions.loops.kafka_python --servers HOST:PORT ...`."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import random
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError

from tests.transactions.loops.options import (
    ABORTED,
    FATAL,
    HEARTBEAT_INTERVAL_MS,
    MAX_POLL_INTERVAL_MS,
    POLL_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    Options,
    end_if_it_hangs,
    say,
)

_CALL_TIMEOUT_MS = 60_000
# Without a timeout `close` waits for requests that a gateway or broker that is gone never answers.
_CLOSE_TIMEOUT_S = 10


class Loop(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python ships no types
    """One consumer, and one transactional producer after the other.

    A producer of kafka-python 3.0 keeps the offsets of a transaction that the coordinator refused, and sends
    them with its next one. So it is replaced after an error.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._is_revoked = False
        self._consumer = KafkaConsumer(
            bootstrap_servers=options.servers.split(","),
            group_id=options.group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            max_poll_records=options.records,
        )

    def run(self) -> None:
        """Copy until killed. Raises KafkaError after an error of the consumer, or if no producer begins."""
        self._consumer.subscribe([self._options.input_topic], listener=self)
        while True:
            end_if_it_hangs()
            producer = self._new_producer()
            try:
                producer.init_transactions()
                self._rewind()
                self._run(producer)
            except TransactionFailed as failed:
                say(f"a new producer after {failed}")
                with suppress(KafkaError):  # the next producer's start aborts, too
                    producer.abort_transaction()
            finally:
                producer.close(timeout=_CLOSE_TIMEOUT_S)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """See `ConsumerRebalanceListener`. It is called in another thread if the session is over, and the
        consumer keeps its positions for partitions that come back.
        """
        self._is_revoked = True

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """See `ConsumerRebalanceListener`."""

    def _new_producer(self) -> KafkaProducer:
        return KafkaProducer(
            bootstrap_servers=self._options.servers.split(","),
            transactional_id=self._options.transactional_id,
            transaction_timeout_ms=self._options.timeout_ms,
            max_block_ms=_CALL_TIMEOUT_MS,
        )

    def _run(self, producer: KafkaProducer) -> None:
        while True:
            end_if_it_hangs()
            polled = self._consumer.poll(timeout_ms=POLL_TIMEOUT_S * 1000)
            # Of the generation in which the records were read, unless the partitions are gone meanwhile.
            metadata = self._consumer.group_metadata()
            records = [record for of_partition in polled.values() for record in of_partition]
            if self._is_revoked or metadata.generation_id < 0:
                self._rewind()
            elif records:
                try:
                    self._copy(producer, records, metadata)
                except KafkaError as error:
                    raise TransactionFailed(repr(error)) from error

    def _copy(self, producer: KafkaProducer, records: Sequence[ConsumerRecord], metadata: Any) -> None:
        producer.begin_transaction()
        sent = [
            producer.send(self._options.output_topic, record.value, record.key, partition=record.partition)
            for record in records
        ]
        offsets = {
            TopicPartition(record.topic, record.partition): OffsetAndMetadata(record.offset + 1, "", -1)
            for record in records
        }
        producer.send_offsets_to_transaction(offsets, metadata)
        if random() < ABORTED:
            producer.abort_transaction()
            self._rewind()
        else:
            producer.commit_transaction()
            for future in sent:
                future.get(0)

    def _rewind(self) -> None:
        """Read again from the committed offsets."""
        self._is_revoked = False
        for partition in self._consumer.assignment():
            committed = self._consumer.committed(partition, timeout_ms=_CALL_TIMEOUT_MS)
            self._consumer.seek(partition, committed or 0)


class TransactionFailed(Exception):
    """A transaction that cannot be committed."""


if __name__ == "__main__":
    try:
        Loop(Options.parse()).run()
    except KafkaError as raised:
        say(f"ended: {raised!r}")
        sys.exit(FATAL)
