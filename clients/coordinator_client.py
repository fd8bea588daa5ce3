"""A client of the coordinator. It appends requests to the requests topic and reads responses from a partition
of the responses topic. It decodes only the messages that it waits for (`PendingRequests.awaits`).

It uses the coordinator's own records, not Kafka's wire protocol. The caller interprets the responses.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import NotRequired, TypedDict, Union, cast
from uuid import uuid4

import msgspec
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka import TopicPartition as KafkaTopicPartition

from clients.pending import (
    AnyRequest,
    AnyResponse,
    FutureRequest,
    PendingRequest,
    PendingRequests,
    R,
    resolve_futures,
)
from clients.request_writer import RequestWriter
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import NO_PACKS, unpack
from kafka_why.contract.early_answers import EarlyAnswers, Headers
from kafka_why.contract.kafka import requests as kafka
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorResponse
from kafka_why.contract.rocketmq import requests as rocketmq
from kafka_why.contract.rocketmq.requests import AnyToConnection, ToConnection
from kafka_why.lifetimes import Closeable, OutageWarning
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicReader, TopicsMissing

_RECORDS_PER_POLL_MAX = 10_000


class AnswerReader:
    """A reader of one reply partition, a partition of the responses topic, from an offset on. Use it on one
    thread.

    A replica of the coordinator may answer a request early, before the coordinator's Spark query does. The
    reader returns both answers, and callers use the first. It drops the answers of replicas that have been
    replaced (`EarlyAnswers`).
    """

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, partition: int, offset: int) -> None:
        self._warning = OutageWarning("reading answers")
        self._partition = partition
        self._early_answers = EarlyAnswers()
        self._consumer = kafka_clients.answers_consumer(
            client_config, max_record_bytes=layout.response_record_max_bytes, on_error=self._on_error
        )
        self._consumer.assign([TopicPartition(layout.responses_topic, partition, offset)])

    def poll(self, timeout_s: float) -> list[bytes]:
        """Return the values of new records.

        Wait up to `timeout_s` for the first record. Outages are logged, and reading continues after them.
        """
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        values: list[bytes] = []
        has_read = False  # a record, not only errors
        # `consume` alone would wait until it has as many records as it may return.
        for message in (first, *self._consumer.consume(_RECORDS_PER_POLL_MAX, 0)):
            error = message.error()
            if error is not None:
                self._on_error(error)
                continue
            has_read = True
            headers = message.headers()
            if headers and not self._early_answers.accepts(self._partition, cast(Headers, headers)):
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


Listener = Callable[[AnyToConnection], None]
"""Receives the unsolicited messages to connections of RocketMQ's clients. It runs on the reader's thread:
keep it short.
"""

_decoder: msgspec.json.Decoder[AnyResponse | AnyToConnection] = msgspec.json.Decoder(
    Union[(*kafka.ANSWERS, *rocketmq.ANSWERS, ErrorResponse, AnyToConnection)]
)

log = structlog.get_logger()


def settle(values: Iterable[bytes], pending: PendingRequests, listener: Listener | None) -> list[str]:
    """Settle the requests that these records answer. Return the correlation ids of requests that have to be
    written again, because the coordinator refused their pack (a record with several requests).

    `listener` gets the messages to connections. Answers and messages are delivered in the records' order.
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
                log.warning("an answer cannot be read", error=str(error))
                continue
            if isinstance(message, ErrorResponse) and message.error_message.startswith(NO_PACKS):
                refused.append(message.correlation_id)
            elif not isinstance(message, ToConnection):
                answers.append(message)
            elif listener is not None:
                pending.settle(answers)  # those before the message
                answers.clear()
                listener(message)
    pending.settle(answers)
    return refused


def decode_response(value: bytes) -> AnyResponse | AnyToConnection:
    """Decode one message of the responses topic. A record may have several messages, a pack (`unpack`).

    Raises msgspec.DecodeError or UnicodeDecodeError.
    """
    return _decoder.decode(value)


DEFAULT_REQUEST_TIMEOUT_MS = 30_000

_POLL_S = 0.1
_CLOSE_TIMEOUT_S = 5.0


class Header(TypedDict):
    """The fields of every request, as keyword arguments for one of `kafka_why.contract.kafka.requests`.

    `principal` is set by a gateway that authenticates clients.
    """

    group_id: str
    correlation_id: str
    reply_partition: int
    api_version: int
    client_id: str
    client_host: str
    principal: NotRequired[str]


class CoordinatorClient(Closeable):
    """A thread-safe sender of requests, which returns futures of their responses.

    A future resolves to the response, with any `error_code`, or raises one of the errors of
    `clients.pending`: `CoordinatorError` (refused as a whole), `RequestTimedOut`, `RequestNotSent`,
    `ClientClosed`. Callbacks of futures run on the reader's thread: keep them short.

    `reply_partition` may be shared with other clients. None chooses a random partition. The constructor
    returns when the reader is at the end of that partition, so no response is missed. `listener` gets every
    message to a connection on that partition. The constructor raises `TopicsMissing`, or kafka-python's
    KafkaError if no broker answers.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        *,
        client_id: str,
        reply_partition: int | None = None,
        request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
        listener: Listener | None = None,
    ) -> None:
        # Correlation ids begin with it, so no response to another client or to an earlier start can match.
        self._start_id = str(uuid4())
        self._numbers = count(1)
        if reply_partition is None:
            reply_partition = partition_of(self._start_id, layout.reply_partitions)
        self.client_id = client_id
        self.reply_partition = reply_partition
        self._layout = layout
        self._host = socket.gethostname()
        self._timeout_ms = request_timeout_ms
        self._listener = listener
        self._pending = PendingRequests(f"{self._start_id}-")
        self._closing = threading.Event()
        self._answers = _reader_at_end(client_config, layout, reply_partition)
        self._writer = RequestWriter(
            partial(
                kafka_clients.request_producer,
                client_config,
                timeout_ms=request_timeout_ms,
                max_request_bytes=layout.request_record_max_bytes,
            ),
            layout.requests_topic,
            layout.request_partitions,
            self._pending,
            f"{client_id}-writer",
            layout.request_max_bytes,
        )
        self._reader = threading.Thread(target=self._read, name=f"{client_id}-reader", daemon=True)
        self._reader.start()

    @property
    def request_partitions(self) -> int:
        """The number of partitions of the requests topic."""
        return self._layout.request_partitions

    def header(self, group_id: str, api_version: int = 0) -> Header:
        """Return the common fields of a request about this group, with a new correlation id."""
        return Header(
            group_id=group_id,
            correlation_id=self.next_correlation_id(),
            reply_partition=self.reply_partition,
            api_version=api_version,
            client_id=self.client_id,
            client_host=self._host,
        )

    def next_correlation_id(self) -> str:
        """Return a correlation id that no other request has."""
        return f"{self._start_id}-{next(self._numbers)}"

    def send(self, request: AnyRequest[R], *, timeout_ms: int | None = None) -> Future[R]:
        """Send a request with a correlation id of this client, and return the future of its response.

        `timeout_ms` None means the client's own timeout.
        """
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()  # so `cancel` fails: a sent request cannot be taken back
        pending = FutureRequest(
            request,
            time.monotonic(),
            self._timeout_ms if timeout_ms is None else timeout_ms,
            resolve_futures,
            future=future,
        )
        self.send_all([pending])
        return future

    def send_all(self, requests: Sequence[PendingRequest]) -> None:
        """Send requests with correlation ids of this client, without waiting for a broker. Raises
        ClientClosed.

        Requests of one group are sent in this order.
        """
        self._pending.add(requests)
        self._writer.write(requests)

    def forget(self, request: PendingRequest) -> None:
        """Stop waiting for a request of `send_all`. Its receiver is not called."""
        self._pending.forget(request)

    def close(self) -> None:
        """Fail unanswered requests, and end the reader's thread and the connections."""
        self._closing.set()
        self._reader.join()
        self._pending.close("the client was closed")
        self._writer.close(_CLOSE_TIMEOUT_S)
        self._answers.close()

    def _read(self) -> None:
        """Read and settle answers until `close`."""
        try:
            while not self._closing.is_set():
                refused = settle(self._answers.poll(_POLL_S), self._pending, self._listener)
                if refused:  # the coordinator reads no packs, so each request needs its own record
                    self._writer.write_unpacked(self._pending.mark_rewritten(refused))
                self._pending.expire(time.monotonic())
        finally:
            # Even if an error ends this thread, because callers must not wait forever.
            self._pending.close("the client's reader ended")


def _reader_at_end(client_config: ClientConfig, layout: TopicLayout, reply_partition: int) -> AnswerReader:
    """Return a reader from the end of the reply partition on. Raise TopicsMissing if the number of a topic's
    partitions differs from `layout`.
    """
    with TopicReader(client_config) as reader:
        for topic, expected in (
            (layout.requests_topic, layout.request_partitions),
            (layout.responses_topic, layout.reply_partitions),
        ):
            actual = len(reader.partitions_of(topic))
            if actual != expected:
                # With another number of partitions, requests would go to the wrong partition of their group.
                raise TopicsMissing(f"topic {topic} has {actual} partitions, {expected} are expected")
        (end,) = reader.ends([KafkaTopicPartition(layout.responses_topic, reply_partition)]).values()
    return AnswerReader(client_config, layout, reply_partition, end)
