"""What a gateway has that takes clients' metrics."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from uuid import UUID
from zlib import crc32

from gateway.telemetry.compression import Decompressor
from kafka_why.contract.telemetry import MemberTelemetry

PREFIX = "org.apache.kafka."
"""How the names of all metrics of Kafka's clients begin on the wire."""

METRICS = (
    "consumer.last.poll.seconds.ago",
    "consumer.poll.idle.ratio.avg",
    "consumer.time.between.poll.max",
    "consumer.coordinator.last.heartbeat.seconds.ago",
    "consumer.coordinator.heartbeat.response.time.max",
    "consumer.coordinator.rebalance.latency.max",
    "consumer.coordinator.commit.latency.max",
)
"""The metrics that explain rebalances, by Kafka's names without the prefix. All are gauges without labels."""

MAX_BYTES = 64 * 1024
"""Of a payload, as it is sent and decompressed. Clients push 2 KiB. Kafka: telemetry.max.bytes, 1 MiB."""

INTERVAL_MS = 60_000
INTERVAL_MIN_MS, INTERVAL_MAX_MS = 100, 3_600_000
"""Kafka's bounds of interval.ms of a client metrics subscription."""

_INT32_SIGN = 1 << 31


@dataclass(frozen=True)
class Subscription:
    """The subscription of all clients. Another gateway with the same `interval_ms` has the same."""

    interval_ms: int

    @cached_property
    def requested_metrics(self) -> list[str]:
        """The prefixes of the names of metrics that clients push."""
        return [PREFIX + name for name in METRICS]

    def id_for(self, client_instance_id: UUID) -> int:
        """The id of the subscription for this client, a 32-bit number. As in Kafka it follows from both
        alone, so a client may push through any gateway.
        """
        said = f"{self.requested_metrics}{self.interval_ms}".encode()
        number = crc32(client_instance_id.bytes, crc32(said))
        return number - 2 * (number & _INT32_SIGN)


class Evidence(Protocol):
    """Where records go."""

    def write(self, record: MemberTelemetry) -> None:
        """Take a record. It may be lost."""


class ClientTelemetry:
    """The subscription of all clients, and what becomes of their pushes."""

    def __init__(self, interval_ms: int, evidence: Evidence) -> None:
        self.subscription = Subscription(interval_ms)
        self.decompressor = Decompressor(MAX_BYTES)
        self.evidence = evidence

    @property
    def interval_s(self) -> float:
        """The least time between two pushes of a client."""
        return self.subscription.interval_ms / 1000
