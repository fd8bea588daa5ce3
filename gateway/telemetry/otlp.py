"""The parts of OpenTelemetry's MetricsData (opentelemetry/proto/metrics/v1/metrics.proto) that the gateway
reads from clients' pushes (KIP-714): the text attributes of resources, and the values of gauges and sums by
name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from kafka_why.wire.primitives import read_varint

# Decompression of a PushTelemetry's payload up to a limit.


# The header of snappy-java's stream: a name, a version and the oldest compatible version. Blocks follow, each
# with its size. librdkafka sends one block without a header.
_SNAPPY_JAVA = b"\x82SNAPPY\0"
_SNAPPY_JAVA_HEADER_BYTES = 16
_SNAPPY_JAVA_LEAST_BLOCK_BYTES = 1024  # the smallest block size that can be set; the default is 32 KiB
_SIZE_BYTES = 4


class PayloadError(ValueError):
    """A client's payload cannot be decompressed, or is not a MetricsData."""


class CompressionType(IntEnum):
    """Kafka's compression types, by the numbers that they have in requests."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


ACCEPTED = (CompressionType.ZSTD, CompressionType.LZ4, CompressionType.GZIP, CompressionType.SNAPPY)
"""The accepted types, in a broker's order of preference. Clients use the first type that they support."""


class Decompressor:
    """A decompressor with limits, so that a decompression bomb costs no more than a normal payload.

    Plain payloads are at most `limit_bytes` long. A bomb could also be many empty blocks. For snappy-java's
    format the number of blocks is limited, too, because this class reads them one by one. pyarrow, which
    reads all other formats, needs no such limit: it reads 64 KiB of empty blocks in less than 1 ms.
    """

    def __init__(self, limit_bytes: int) -> None:
        import pyarrow  # the import takes half a second, and only a gateway with telemetry needs it

        self._pyarrow: Any = pyarrow
        self._snappy: Any = pyarrow.Codec("snappy")
        self._limit_bytes = limit_bytes
        self._blocks_max = limit_bytes // _SNAPPY_JAVA_LEAST_BLOCK_BYTES

    def decompress(self, data: bytes, kind: CompressionType) -> bytes:
        """Return the payload. Raises PayloadError, also if the payload exceeds the limit of bytes or
        blocks.
        """
        if kind is CompressionType.NONE:
            plain = data
        elif kind is CompressionType.SNAPPY:
            plain = self._snappy_blocks(data)
        else:
            plain = self._stream(data, kind.name.lower())
        if len(plain) > self._limit_bytes:
            raise PayloadError(f"more than {self._limit_bytes} bytes, decompressed")
        return plain

    def _stream(self, data: bytes, codec: str) -> bytes:
        """Decompress a stream, but at most one byte more than the limit."""
        reader = self._pyarrow.BufferReader(data)
        try:
            with self._pyarrow.CompressedInputStream(reader, codec) as stream:
                return bytes(stream.read(self._limit_bytes + 1))
        except (OSError, ValueError) as error:  # pyarrow's: ArrowInvalid is a ValueError
            raise PayloadError(str(error)) from error

    def _snappy_blocks(self, data: bytes) -> bytes:
        """Decompress one block, or snappy-java's stream of blocks. Raises PayloadError."""
        if not data.startswith(_SNAPPY_JAVA):
            return self._snappy_block(data, self._limit_bytes)
        plain, size_at, blocks = b"", _SNAPPY_JAVA_HEADER_BYTES, 0
        while size_at < len(data):
            blocks += 1
            if blocks > self._blocks_max:
                raise PayloadError(f"more than {self._blocks_max} blocks")
            block_at = size_at + _SIZE_BYTES
            block_end = block_at + int.from_bytes(data[size_at:block_at], "big")
            if block_end > len(data):
                raise PayloadError("a block that ends too early")
            plain += self._snappy_block(data[block_at:block_end], self._limit_bytes - len(plain))
            size_at = block_end
        return plain

    def _snappy_block(self, block: bytes, limit_bytes: int) -> bytes:
        """Decompress a block. Raises PayloadError if it has more than `limit_bytes`."""
        try:
            size, _ = read_varint(block, 0)
            if size > limit_bytes:
                raise PayloadError(f"a block of {size} bytes, decompressed")
            return bytes(self._snappy.decompress(block, decompressed_size=size))
        except (OSError, ValueError) as error:
            raise PayloadError(str(error)) from error


# A client that pushes all requested metrics sends about 20. Reading this many takes 2 ms.
PARTS_MAX = 1_000
"""The maximum number of resources, attributes, scopes and metrics together."""


@dataclass(frozen=True, slots=True)
class ResourceMetrics:
    """The metrics of one resource: its text attributes, and the value of each metric's last data point."""

    attributes: Mapping[str, str]
    values: Mapping[str, float]


def read_metrics(payload: bytes) -> list[ResourceMetrics]:
    """Read a MetricsData. Raises PayloadError."""
    try:
        resources = MetricsData.FromString(payload).resource_metrics
    except DecodeError as error:
        raise PayloadError(f"not a MetricsData: {error}") from error
    parts_left = PARTS_MAX - len(resources)
    # `islice` limits the time of the count itself.
    for entry in islice(resources, PARTS_MAX):
        parts_left -= len(entry.resource.attributes) + len(entry.scope_metrics)
        parts_left -= sum(len(scope.metrics) for scope in islice(entry.scope_metrics, PARTS_MAX))
        if parts_left < 0:
            raise PayloadError(f"more than {PARTS_MAX} resources, attributes, scopes and metrics")
    return [ResourceMetrics(_attributes(entry.resource), _values(entry.scope_metrics)) for entry in resources]


def _attributes(resource: Any) -> dict[str, str]:
    """Return the text attributes of a resource."""
    texts = (attribute for attribute in resource.attributes if attribute.value.HasField("string_value"))
    return {attribute.key: attribute.value.string_value for attribute in texts}


def _values(scopes: Any) -> dict[str, float]:
    """Return the last value of each gauge or sum, by name."""
    values: dict[str, float] = {}
    for metric in (metric for scope in scopes for metric in scope.metrics):
        # Only the last data point, if there is one.
        for point in (metric.gauge.data_points or metric.sum.data_points)[-1:]:
            if (field := point.WhichOneof("value")) is not None:
                values[metric.name] = float(getattr(point, field))
    return values
