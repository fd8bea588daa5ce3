"""What a client does with the records of its reply partition. It decodes the messages that it waits for
(`Pending.awaits`), and no others.
"""

from collections.abc import Callable, Iterable
from typing import Union, cast

import msgspec
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from clients.pending import AnyResponse, Pending
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.outage_warning import OutageWarning
from kafka_why.contract.early_answers import EarlyAnswers, Headers
from kafka_why.contract.kafka import requests as kafka
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorResponse
from kafka_why.contract.pack import NO_PACKS, unpack
from kafka_why.contract.rocketmq import requests as rocketmq
from kafka_why.contract.rocketmq.responses import AnyToConnection, ToConnection

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


# Called with unsolicited messages to connections of RocketMQ's clients. It runs on the reader's thread: keep
# it short.
Listener = Callable[[AnyToConnection], None]

_decoder: msgspec.json.Decoder[AnyResponse | AnyToConnection] = msgspec.json.Decoder(
    Union[(*kafka.ANSWERS, *rocketmq.ANSWERS, ErrorResponse, AnyToConnection)]
)

log = structlog.get_logger()


def settle(values: Iterable[bytes], pending: Pending, listener: Listener | None) -> list[str]:
    """Settle the requests that these records answer. `listener` gets the messages to connections, in order.

    Returns the correlation ids of the requests that a coordinator without packs has refused.
    """
    answers: list[AnyResponse] = []
    refused: list[str] = []
    for value in values:
        for encoded in unpack(value):
            if not pending.awaits(encoded):
                continue
            try:
                message = decode_response(encoded)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                pending.counts.malformed += 1
                log.warning("an answer cannot be read", error=str(error))
                continue
            if isinstance(message, ErrorResponse) and message.error_message.startswith(NO_PACKS):
                refused.append(message.correlation_id)
            elif not isinstance(message, ToConnection):
                answers.append(message)
            elif listener is not None:
                pending.settle(answers)  # they are before the message
                answers.clear()
                listener(message)
    pending.settle(answers)
    return refused


def decode_response(value: bytes) -> AnyResponse | AnyToConnection:
    """Decode a message of the responses topic, of which a record may hold several
    (`kafka_why.contract.pack`).

    Raises msgspec.DecodeError or UnicodeDecodeError.
    """
    return _decoder.decode(value)
