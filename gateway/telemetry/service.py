"""Clients' metrics (KIP-714): the subscription, the times at which a client may request it and push, and the
record of a push. The times follow ClientMetricsManager and ClientMetricsInstance of org.apache.kafka.server
in Kafka 4.4. Kafka stores the times by the id that the client sends. Here they belong to the connection,
because a client could send another id each time. So they end with the connection, and nothing has to expire
them.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from uuid import UUID
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from msgspec import structs

from gateway.log_text import RateLimitedWarning
from gateway.telemetry.otlp import Decompressor, ResourceMetrics
from gateway.wire.codec import GatewayError
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import encode
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.telemetry import GroupDeliveries, MemberTelemetry, deliveries_key, telemetry_key
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicReader, TopicsMissing

PREFIX = "org.apache.kafka."
"""The prefix of all metric names of Kafka's clients on the wire."""

METRICS = (
    "consumer.last.poll.seconds.ago",
    "consumer.poll.idle.ratio.avg",
    "consumer.time.between.poll.max",
    "consumer.coordinator.last.heartbeat.seconds.ago",
    "consumer.coordinator.heartbeat.response.time.max",
    "consumer.coordinator.rebalance.latency.max",
    "consumer.coordinator.commit.latency.max",
)
"""The metrics that explain rebalances, by Kafka's names without PREFIX. All are gauges without labels."""

MAX_BYTES = 64 * 1024
"""The limit of a payload, both as sent and decompressed. Clients push about 2 KiB. Kafka's limit is 1 MiB
(telemetry.max.bytes).
"""

INTERVAL_MS = 60_000
INTERVAL_MIN_MS, INTERVAL_MAX_MS = 100, 3_600_000
"""Kafka's bounds of interval.ms of a client metrics subscription."""

_INT32_SIGN = 1 << 31


REQUESTED_METRICS = [PREFIX + name for name in METRICS]
"""The prefixes of the names of metrics that clients push."""


class ClientTelemetry:
    """The subscription of all clients, and the handling of their pushes. `write` writes the record of a push,
    which may be lost.

    Gateways with the same `interval_ms` have the same subscription. `interval_s` is the least time between
    two pushes of a client.
    """

    def __init__(self, interval_ms: int, write: Callable[[MemberTelemetry], None]) -> None:
        self.interval_ms = interval_ms
        self.interval_s = interval_ms / 1000
        self.decompressor = Decompressor(MAX_BYTES)
        self.write = write

    def subscription_id(self, client_instance_id: UUID) -> int:
        """Return the id of the subscription for this client, a 32-bit number.

        As in Kafka, the id depends only on the subscription and the client, so a client may push through any
        gateway.
        """
        content = f"{REQUESTED_METRICS}{self.interval_ms}".encode()
        number = crc32(client_instance_id.bytes, crc32(content))
        # As a signed number, which is negative if the sign bit is set.
        return number - 2 * (number & _INT32_SIGN)


_RESERVED = UUID(int=1)  # Kafka's Uuid.RESERVED; the codec decodes the id 0 as None
# After one of these errors a client requests its subscription at once.
_ERRORS_TO_ASK_AGAIN = (GatewayError.UNKNOWN_SUBSCRIPTION_ID, GatewayError.UNSUPPORTED_COMPRESSION_TYPE)


@dataclass(slots=True)
class ClientMetricsInstance:
    """The state of the pushes of one connection. Times are of a monotonic clock."""

    _last_get_s: float = -inf
    _last_push_s: float = -inf
    _last_error: int = 0  # of the last push
    _is_terminating: bool = False  # the client has sent its last push

    def accept_get(self, now_s: float, interval_s: float) -> int:
        """Accept or refuse a GetTelemetrySubscriptions. Return its error, or 0."""
        is_due = now_s - max(self._last_get_s, self._last_push_s) >= interval_s
        if is_due:
            self._last_get_s = now_s
        elif self._last_error not in _ERRORS_TO_ASK_AGAIN:
            return GatewayError.THROTTLING_QUOTA_EXCEEDED
        self._last_error = 0
        return ErrorCode.NONE

    def accept_push(self, now_s: float, interval_s: float, *, is_terminating: bool) -> int:
        """Accept or refuse a PushTelemetry before its content is read. Return its error, or 0.

        The first push after a subscription may come at any time, and so may the client's terminating push,
        the last one.
        """
        if self._is_terminating:
            return ErrorCode.INVALID_REQUEST
        self._is_terminating = is_terminating
        is_first_since_get = self._last_get_s > self._last_push_s
        if is_first_since_get or now_s - self._last_push_s >= interval_s:
            self._last_push_s = now_s
        elif not is_terminating:
            return GatewayError.THROTTLING_QUOTA_EXCEEDED
        return ErrorCode.NONE

    def record_error(self, error: int) -> int:
        """Record and return the error in the answer to a push, or 0."""
        self._last_error = error
        return error


def is_valid_id(client_instance_id: UUID | None) -> bool:
    """Return True if a client may push with this id."""
    return client_instance_id is not None and client_instance_id != _RESERVED


# Names of resource attributes. KIP-714 and Java's clients have group_member_id, librdkafka has member_id.
_GROUP_ID, _GROUP_INSTANCE_ID = "group_id", "group_instance_id"
_MEMBER_IDS = "group_member_id", "member_id"
ID_MAX_CHARS = 1_024
"""A push with a longer id is not recorded, so a record has at most a few KiB."""


def record_of(resources: Sequence[ResourceMetrics], push: MemberTelemetry) -> MemberTelemetry | None:
    """Return `push` with the member and its metrics.

    Return None if the push has no member id, no group id, an id that is too long, or none of the requested
    metrics.
    """
    # A client that gets its member id while it builds a push may send two ids. The last id counts.
    attributes = next((r.attributes for r in reversed(resources) if _member_id(r.attributes)), None)
    if attributes is None:
        return None
    group_id, member_id = attributes.get(_GROUP_ID, ""), _member_id(attributes)
    instance_id = attributes.get(_GROUP_INSTANCE_ID)
    values = {name: value for resource in resources for name, value in resource.values.items()}
    metrics = {name: values[PREFIX + name] for name in METRICS if _has_value(values, PREFIX + name)}
    are_short = all(len(text) <= ID_MAX_CHARS for text in (group_id, member_id, instance_id or ""))
    if not group_id or not metrics or not are_short:
        return None
    return structs.replace(
        push, group_id=group_id, member_id=member_id, group_instance_id=instance_id, metrics=metrics
    )


def kafka_uuid(uuid: UUID) -> str:
    """Return an id as Kafka writes it, for example in clients' logs."""
    return urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def _member_id(attributes: Mapping[str, str]) -> str:
    return next((attributes[name] for name in _MEMBER_IDS if attributes.get(name)), "")


def _has_value(values: Mapping[str, float], name: str) -> bool:
    """Return False for a metric that is absent, or NaN (an average of nothing), or -1 (no event yet)."""
    return name in values and isfinite(values[name]) and values[name] >= 0


# The writer of the telemetry topic: the metrics of members' clients, and the gateway's counts of share
# groups. Nothing waits for a broker.


_CLOSE_TIMEOUT_S = 2.0


class TelemetryWriter:
    """A producer of the telemetry topic, for the event loop's thread.

    A record that cannot be written is dropped, with a log line. Clients do not wait for records. `producer`
    is called at the first record.
    """

    def __init__(self, producer: Callable[[], Producer], layout: TopicLayout) -> None:
        self._build_producer = producer
        self._producer: Producer | None = None
        self._topic = layout.telemetry_topic
        self._partitions = layout.request_partitions
        self._is_closing = False
        self._dropped_warning = RateLimitedWarning("telemetry records were not written", "records")

    def write(self, record: MemberTelemetry) -> None:
        """Write a record."""
        key = telemetry_key(record.group_id, record.member_id)
        self._write(record.group_id, key, encode(record))

    def write_deliveries(self, record: GroupDeliveries, number: int) -> None:
        """Write a record of a share group's deliveries, the `number`th record of this gateway."""
        self._write(record.group_id, deliveries_key(record, number), encode(record))

    def _write(self, group_id: str, key: bytes, value: bytes) -> None:
        """Queue a record at the producer, or drop it if that fails."""
        producer = self._producer = self._producer or self._build_producer()
        partition = partition_of(group_id, self._partitions)
        try:
            producer.produce(self._topic, value, key, partition, self._on_delivery)
        except (KafkaException, BufferError) as error:
            self._dropped_warning.add(error=str(error))
        producer.poll(0)

    def close(self) -> None:
        """Write waiting records, for at most some seconds. Any thread may call this after the event loop has
        ended.
        """
        self._is_closing = True
        if self._producer is not None:
            self._producer.flush(_CLOSE_TIMEOUT_S)
            # Drop the records that are left. `flush` then calls their callbacks.
            self._producer.purge()
            self._producer.flush(0)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and not self._is_closing:
            self._dropped_warning.add(error=error.str())


def expect_topic(client_config: ClientConfig, layout: TopicLayout) -> None:
    """Raise TopicsMissing if the telemetry topic is absent or has another number of partitions, and
    KafkaError if no broker answers.
    """
    with TopicReader(client_config) as reader:
        partitions = len(reader.partitions_of(layout.telemetry_topic))
    if partitions != layout.request_partitions:
        raise TopicsMissing(
            f"topic {layout.telemetry_topic} has {partitions} partitions, {layout.request_partitions} are "
            "expected: a coordinator of this version makes it when it starts"
        )
