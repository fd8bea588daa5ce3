"""The loop with librdkafka: `python -m tests.transactions.loops.librdkafka --servers HOST:PORT ...`."""

import sys
from collections.abc import Sequence
from random import random

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

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

# librdkafka 2.16 may wait for ever, sometimes in spite of the timeout: where the only broker that it knows is
# started again, its metadata are without a broker for a moment, and then a TxnOffsetCommit is never sent. So
# the loop gives up, and is started again.
_CALL_TIMEOUT_S = 45.0


class Loop:
    """One consumer and one transactional producer."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._is_revoked = False
        self._consumer = Consumer(
            {
                "bootstrap.servers": options.servers,
                "group.id": options.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
                "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
            }
        )
        self._producer = Producer(
            {
                "bootstrap.servers": options.servers,
                "transactional.id": options.transactional_id,
                "transaction.timeout.ms": options.timeout_ms,
            }
        )

    def run(self) -> None:
        """Copy until killed. Raises KafkaException after an error that is fatal, or a call without an end."""
        end_if_it_hangs()
        self._producer.init_transactions(_CALL_TIMEOUT_S)
        # With callbacks the consumer gives nothing back and joins no generation but inside `consume`. So the
        # group's metadata are those of the generation in which the records of a transaction were read.
        self._consumer.subscribe([self._options.input_topic], on_assign=_begin, on_revoke=self._revoked)
        while True:
            end_if_it_hangs()
            self._is_revoked = False
            records = self._consumer.consume(self._options.records, POLL_TIMEOUT_S)
            if self._is_revoked:
                # Some may have been read before the partitions were given back, and are the next owner's.
                self._rewind()
            elif read := [record for record in records if not record.error()]:
                self._copy(read)

    def _copy(self, records: Sequence[Message]) -> None:
        self._producer.begin_transaction()
        try:
            for record in records:
                self._producer.produce(
                    self._options.output_topic, record.value(), record.key(), partition=_partition(record)
                )
                self._producer.poll(0)
            ends = {record.partition(): record.offset() for record in records}
            offsets = [
                TopicPartition(self._options.input_topic, partition, offset + 1)
                for partition, offset in ends.items()
                if partition is not None and offset is not None
            ]
            metadata = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(offsets, metadata, _CALL_TIMEOUT_S)
            if random() < ABORTED:
                self._abort()
            else:
                self._producer.commit_transaction(_CALL_TIMEOUT_S)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            is_over = error.fatal() or error.code() == KafkaError._TIMED_OUT
            if is_over or not error.txn_requires_abort():
                raise
            self._abort()

    def _abort(self) -> None:
        """Abort, and read the records again."""
        self._producer.abort_transaction(_CALL_TIMEOUT_S)
        self._rewind()

    def _rewind(self) -> None:
        """Read again from the committed offsets."""
        _begin(self._consumer, self._consumer.assignment())

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_revoked = True


def _begin(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """Begin at the committed offsets. Raises KafkaException.

    librdkafka 2.16 would ask for them by itself. But where an assignment changes while it does, and a
    transaction is pending, it forgets that it has to ask again, and begins at `auto.offset.reset`: it has
    done so with Kafka's own coordinator, at the second `assign`.
    """
    if not partitions:
        return
    asked = [TopicPartition(one.topic, one.partition) for one in partitions]
    committed = consumer.committed(asked, _CALL_TIMEOUT_S)
    for one in committed:
        if one.error is not None:
            raise KafkaException(one.error)
        if one.offset < 0:
            one.offset = OFFSET_BEGINNING
    consumer.assign(committed)


def _partition(record: Message) -> int:
    partition = record.partition()
    assert partition is not None
    return partition


if __name__ == "__main__":
    try:
        Loop(Options.parse()).run()
    except KafkaException as raised:
        say(f"ended: {raised}")
        sys.exit(FATAL)
