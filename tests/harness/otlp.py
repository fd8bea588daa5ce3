"""Writes OpenTelemetry's MetricsData, and damages it."""

from collections.abc import Mapping, Sequence
from struct import pack

from bench.load.flexible import varint

_BYTES = 2


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def part(number: int, content: bytes) -> bytes:
    """Return a field that is a message or a text."""
    return tag(number, _BYTES) + varint(len(content)) + content


def text(number: int, content: str) -> bytes:
    return part(number, content.encode())


def metric(name: str, value: float | int, kind: int = 5) -> bytes:
    """Return a Metric with one data point; `kind` is 5 for a gauge, 7 for a sum."""
    field = tag(4, 1) + pack("<d", value) if isinstance(value, float) else tag(6, 1) + pack("<q", value)
    point = part(1, tag(3, 1) + bytes(8) + field)
    return text(1, name) + part(kind, point)


def resource(attributes: Mapping[str, str]) -> bytes:
    encoded_attributes = (text(1, key) + part(2, text(1, value)) for key, value in attributes.items())
    return b"".join(part(1, attribute) for attribute in encoded_attributes)


def resource_metrics(attributes: Mapping[str, str], metrics: Sequence[bytes]) -> bytes:
    """Return a MetricsData of one ResourceMetrics. Two in a row are a MetricsData of two."""
    scope = b"".join(part(2, one) for one in metrics)
    return part(1, part(1, resource(attributes)) + part(2, scope))


def pushed(attributes: Mapping[str, str], values: Mapping[str, float | int]) -> bytes:
    """Return what a client pushes, by the names of metrics without Kafka's prefix."""
    metrics = [metric(f"org.apache.kafka.{name}", value) for name, value in values.items()]
    return resource_metrics(attributes, metrics)
