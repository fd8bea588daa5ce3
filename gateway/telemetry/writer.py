"""The writer of the telemetry topic: the metrics of members' clients, and the gateway's counts of share
groups. Nothing waits for a broker.
"""

from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.log_text import RateLimitedWarning
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import encode
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.telemetry import GroupDeliveries, MemberTelemetry, deliveries_key, telemetry_key
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicReader, TopicsMissing

_CLOSE_TIMEOUT_S = 2.0


class TelemetryWriter:
    """A producer of the telemetry topic, for the event loop's thread.

    A record that cannot be written is dropped, with a log line. Clients do not wait for it. `producer` builds
    the producer at the first record.
    """

    def __init__(self, producer: Callable[[], Producer], layout: TopicLayout) -> None:
        self._build_producer = producer
        self._producer: Producer | None = None
        self._topic = layout.telemetry_topic
        self._partitions = layout.request_partitions
        self._is_closing = False
        self._dropped = RateLimitedWarning("what explains groups was not written", "records")

    def write(self, record: MemberTelemetry) -> None:
        """Write a record."""
        key = telemetry_key(record.group_id, record.member_id)
        self._write(record.group_id, key, encode(record))

    def write_deliveries(self, record: GroupDeliveries, number: int) -> None:
        """Write this gateway's `number`th record of share groups."""
        self._write(record.group_id, deliveries_key(record, number), encode(record))

    def _write(self, group_id: str, key: bytes, value: bytes) -> None:
        producer = self._producer = self._producer or self._build_producer()
        partition = partition_of(group_id, self._partitions)
        try:
            producer.produce(self._topic, value, key, partition, self._on_delivery)
        except (KafkaException, BufferError) as error:
            self._dropped.add(error=str(error))
        producer.poll(0)

    def close(self) -> None:
        """Write waiting records, for at most some seconds. For any thread, after the event loop has ended."""
        self._is_closing = True
        if self._producer is not None:
            self._producer.flush(_CLOSE_TIMEOUT_S)
            self._producer.purge()
            self._producer.flush(0)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        """Receive the outcome of a write, in `poll` or `flush`."""
        if error is not None and not self._is_closing:
            self._dropped.add(error=error.str())


def telemetry_writer(client_config: ClientConfig, layout: TopicLayout) -> TelemetryWriter:
    """Return a writer to the topic of this coordinator."""
    return TelemetryWriter(partial(kafka_clients.telemetry_producer, client_config), layout)


def expect_topic(client_config: ClientConfig, layout: TopicLayout) -> None:
    """Raise TopicsMissing if there is no such topic, KafkaError if no broker answers."""
    with TopicReader(client_config) as reader:
        found = len(reader.partitions_of(layout.telemetry_topic))
    if found != layout.request_partitions:
        raise TopicsMissing(
            f"topic {layout.telemetry_topic} has {found} partitions, {layout.request_partitions} are "
            "expected: a coordinator of this version makes it when it starts"
        )
