"""Reads a partition of the responses topic."""

from typing import cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.outage_warning import OutageWarning
from kafka_why.contract.early_answers import EarlyAnswers, Headers
from kafka_why.contract.layout import TopicLayout

_RECORDS_MAX = 10_000


class AnswerReader:
    """A reader of one reply partition, from an offset on. For one thread."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, partition: int, offset: int) -> None:
        self._warning = OutageWarning("reading answers")
        self._partition = partition
        self._early = EarlyAnswers()
        self._consumer = kafka_clients.answers_consumer(
            client_config, max_record_bytes=layout.response_record_max_bytes, on_error=self._on_error
        )
        self._consumer.assign([TopicPartition(layout.responses_topic, partition, offset)])

    def poll(self, timeout_s: float) -> list[bytes]:
        """Return the values of new records that count (`EarlyAnswers`). Waits up to `timeout_s` for a first
        record.

        Logs outages, and reads on after them.
        """
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        values: list[bytes] = []
        has_read = False
        # `consume` alone would wait until it has as many records as it may return.
        for message in (first, *self._consumer.consume(_RECORDS_MAX, 0)):
            error = message.error()
            if error is not None:
                self._on_error(error)
                continue
            has_read = True
            headers = message.headers()
            if headers and not self._early.counts(self._partition, cast(Headers, headers)):
                continue
            if (value := message.value()) is not None:
                values.append(value)
        if has_read:
            self._warning.worked()
        return values

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _on_error(self, error: KafkaError) -> None:
        self._warning.failed(KafkaException(error))
