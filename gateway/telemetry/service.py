"""What a gateway has that takes clients' metrics."""

from typing import Protocol

from gateway.telemetry.compression import Decompressor
from gateway.telemetry.subscription import MAX_BYTES, Subscription
from kafka_why.contract.telemetry import MemberTelemetry


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
