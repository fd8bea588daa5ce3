"""Clients' metrics (KIP-714): the subscription, the times at which a client may request it and push, and the
record of a push. The times follow ClientMetricsManager and ClientMetricsInstance of org.apache.kafka.server
in Kafka 4.4. Kafka stores the times by the id that the client sends. Here they belong to the connection,
because a client could send another id each time. So they end with the connection, and nothing has to expire
them.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, isfinite
from typing import Protocol, TypedDict
from uuid import UUID
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.log_text import RateLimitedWarning
from gateway.telemetry.otlp import Decompressor, ResourceMetrics
from gateway.wire.codec import GatewayError
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import encode
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import RECORD_VERSION, ErrorCode
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


@dataclass(frozen=True)
class MetricsSubscription:
    """The subscription of all clients. Gateways with the same `interval_ms` have the same subscription."""

    interval_ms: int

    @cached_property
    def requested_metrics(self) -> list[str]:
        """The prefixes of the names of metrics that clients push."""
        return [PREFIX + name for name in METRICS]

    def id_for(self, client_instance_id: UUID) -> int:
        """Return the id of the subscription for this client, a 32-bit number.

        As in Kafka, the id depends only on the subscription and the client, so a client may push through any
        gateway.
        """
        content = f"{self.requested_metrics}{self.interval_ms}".encode()
        number = crc32(client_instance_id.bytes, crc32(content))
        return number - 2 * (number & _INT32_SIGN)


class Evidence(Protocol):
    """The receiver of the records."""

    def write(self, record: MemberTelemetry) -> None:
        """Write a record, which may be lost."""


class ClientTelemetry:
    """The subscription of all clients, and the handling of their pushes."""

    def __init__(self, interval_ms: int, evidence: Evidence) -> None:
        self.subscription = MetricsSubscription(interval_ms)
        self.decompressor = Decompressor(MAX_BYTES)
        self.evidence = evidence

    @property
    def interval_s(self) -> float:
        """The least time between two pushes of a client."""
        return self.subscription.interval_ms / 1000


_RESERVED = UUID(int=1)  # Kafka's Uuid.RESERVED; a message with the id 0 has None
# After one of these errors a client requests its subscription at once.
_ASK_AGAIN = (GatewayError.UNKNOWN_SUBSCRIPTION_ID, GatewayError.UNSUPPORTED_COMPRESSION_TYPE)


@dataclass(slots=True)
class ClientMetricsInstance:
    """The state of the pushes of one connection. Times are of a monotonic clock."""

    _last_get_s: float = -inf
    _last_push_s: float = -inf
    _last_error: int = 0
    _is_terminating: bool = False

    def accept_get(self, now_s: float, interval_s: float) -> int:
        """Accept or refuse a GetTelemetrySubscriptions. Return its error, or 0."""
        if now_s - max(self._last_get_s, self._last_push_s) >= interval_s:
            self._last_get_s = now_s
        elif self._last_error not in _ASK_AGAIN:
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
        if self._last_get_s > self._last_push_s or now_s - self._last_push_s >= interval_s:
            self._last_push_s = now_s
        elif not is_terminating:
            return GatewayError.THROTTLING_QUOTA_EXCEEDED
        return ErrorCode.NONE

    def answered(self, error: int) -> int:
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


class Pusher(TypedDict):
    """The sender of a push: fields of MemberTelemetry."""

    client_instance_id: str
    client_id: str
    client_host: str
    principal: str
    push_interval_ms: int
    terminating: bool


def record_of(resources: Sequence[ResourceMetrics], pusher: Pusher) -> MemberTelemetry | None:
    """Return the record of a push, or None if the push has no member id or none of the requested metrics."""
    # A client that gets its member id while it builds a push may send two ids. The last id counts.
    attributes = next((r.attributes for r in reversed(resources) if _member_id(r.attributes)), None)
    if attributes is None:
        return None
    group_id, member_id = attributes.get(_GROUP_ID, ""), _member_id(attributes)
    instance_id = attributes.get(_GROUP_INSTANCE_ID)
    values = {name: value for resource in resources for name, value in resource.values.items()}
    metrics = {name: values[PREFIX + name] for name in METRICS if _has_value(values, PREFIX + name)}
    is_short = all(len(text) <= ID_MAX_CHARS for text in (group_id, member_id, instance_id or ""))
    if not (group_id and metrics and is_short):
        return None
    return MemberTelemetry(
        version=RECORD_VERSION,
        group_id=group_id,
        member_id=member_id,
        group_instance_id=instance_id,
        metrics=metrics,
        **pusher,
    )


def kafka_uuid(uuid: UUID) -> str:
    """Return an id as Kafka writes it, for example in clients' logs."""
    return urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def _member_id(attributes: Mapping[str, str]) -> str:
    return next((attributes[name] for name in _MEMBER_IDS if attributes.get(name)), "")


def _has_value(values: Mapping[str, float], name: str) -> bool:
    # Clients send NaN for an average of nothing, and -1 if there was no event.
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
        self._dropped = RateLimitedWarning("what explains groups was not written", "records")

    def write(self, record: MemberTelemetry) -> None:
        """Write a record."""
        key = telemetry_key(record.group_id, record.member_id)
        self._write(record.group_id, key, encode(record))

    def write_deliveries(self, record: GroupDeliveries, number: int) -> None:
        """Write the record of share groups that has this number at this gateway."""
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
        """Write waiting records, for at most some seconds. Any thread may call this after the event loop has
        ended.
        """
        self._is_closing = True
        if self._producer is not None:
            self._producer.flush(_CLOSE_TIMEOUT_S)
            self._producer.purge()
            self._producer.flush(0)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and not self._is_closing:
            self._dropped.add(error=error.str())


def telemetry_writer(client_config: ClientConfig, layout: TopicLayout) -> TelemetryWriter:
    """Return a writer to the telemetry topic of this coordinator."""
    return TelemetryWriter(partial(kafka_clients.telemetry_producer, client_config), layout)


def expect_topic(client_config: ClientConfig, layout: TopicLayout) -> None:
    """Raise TopicsMissing if the telemetry topic is absent or has another number of partitions, and
    KafkaError if no broker answers.
    """
    with TopicReader(client_config) as reader:
        found = len(reader.partitions_of(layout.telemetry_topic))
    if found != layout.request_partitions:
        raise TopicsMissing(
            f"topic {layout.telemetry_topic} has {found} partitions, {layout.request_partitions} are "
            "expected: a coordinator of this version makes it when it starts"
        )
