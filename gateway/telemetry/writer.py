"""Writes what members' clients said to the telemetry topic. Nothing of it waits for a broker."""

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from clients.coordinator_client import TopicsMissing
from connections import kafka_clients
from connections.client_config import ClientConfig
from gateway.coordinator.rate_limited_warning import RateLimitedWarning
from records.layout import TopicLayout
from records.partitioner import partition_of
from records.reader import TopicReader
from records.telemetry import MemberTelemetry, encode_telemetry, telemetry_key

_CLOSE_TIMEOUT_S = 2.0


class TelemetryWriter:
    """For the event loop's thread.

    A record that cannot be written is dropped, with a log line. Clients do not wait for it.
    """

    def __init__(self, producer: Producer, layout: TopicLayout) -> None:
        self._producer = producer
        self._topic = layout.telemetry_topic
        self._partitions = layout.request_partitions
        self._is_closing = False
        self._dropped = RateLimitedWarning("what clients said of themselves was not written", "records")

    def write(self, record: MemberTelemetry) -> None:
        """Hand a record over."""
        try:
            self._producer.produce(
                self._topic,
                encode_telemetry(record),
                telemetry_key(record.group_id, record.member_id),
                partition_of(record.group_id, self._partitions),
                self._on_delivery,
            )
        except (KafkaException, BufferError) as error:
            self._dropped.add(error=str(error))
        self._producer.poll(0)

    def close(self) -> None:
        """Write what waits, for at most some seconds. For any thread, when the event loop has ended."""
        self._is_closing = True
        self._producer.flush(_CLOSE_TIMEOUT_S)
        self._producer.purge()
        self._producer.flush(0)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        """Called in `poll` and `flush`."""
        if error is not None and not self._is_closing:
            self._dropped.add(error=error.str())


def telemetry_writer(client_config: ClientConfig, layout: TopicLayout) -> TelemetryWriter:
    """A writer to the topic of this coordinator. Raises TopicsMissing if there is no such topic, KafkaError
    if no broker answers.
    """
    with TopicReader(client_config) as reader:
        found = len(reader.partitions_of(layout.telemetry_topic))
    if found != layout.request_partitions:
        raise TopicsMissing(
            f"topic {layout.telemetry_topic} has {found} partitions, {layout.request_partitions} are "
            "expected: a coordinator of this version makes it when it starts"
        )
    return TelemetryWriter(kafka_clients.telemetry_producer(client_config), layout)
