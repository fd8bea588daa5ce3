"""The decoder of the parts of OpenTelemetry's MetricsData (opentelemetry/proto/metrics/v1/metrics.proto) that
a subscription needs: the text attributes of resources, and the values of gauges and sums by name.

Protocol Buffers are read in one pass, to a fixed depth, and up to FIELDS_MAX fields. Unknown fields are
skipped, as usual. The reader refuses groups, which the definition does not use, known fields of another wire
type, and texts that are not UTF-8.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

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
    """A decompressor with a limit, so that a decompression bomb costs no more than a normal payload.

    pyarrow's streams take less than 1 ms for 64 KiB of empty frames and blocks. Blocks of snappy-java are
    read by this class, so their number has a limit, too.
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
        reader = self._pyarrow.BufferReader(data)
        try:
            with self._pyarrow.CompressedInputStream(reader, codec) as stream:
                return bytes(stream.read(self._limit_bytes + 1))
        except (OSError, ValueError) as error:  # pyarrow's: ArrowInvalid is a ValueError
            raise PayloadError(str(error)) from error

    def _snappy_blocks(self, data: bytes) -> bytes:
        if not data.startswith(_SNAPPY_JAVA):
            return self._snappy_block(data, self._limit_bytes)
        plain, at, blocks = b"", _SNAPPY_JAVA_HEADER_BYTES, 0
        while at < len(data):
            blocks += 1
            if blocks > self._blocks_max:
                raise PayloadError(f"more than {self._blocks_max} blocks")
            begin = at + _SIZE_BYTES
            at = begin + int.from_bytes(data[at:begin], "big")
            if at > len(data):
                raise PayloadError("a block that ends too early")
            plain += self._snappy_block(data[begin:at], self._limit_bytes - len(plain))
        return plain

    def _snappy_block(self, block: bytes, limit_bytes: int) -> bytes:
        try:
            size, _ = read_varint(block, 0)
            if size > limit_bytes:
                raise PayloadError(f"a block of {size} bytes, decompressed")
            return bytes(self._snappy.decompress(block, decompressed_size=size))
        except (OSError, ValueError) as error:
            raise PayloadError(str(error)) from error


# A client that pushes all requested metrics sends about 300. Reading this many takes 4 to 7 ms.
FIELDS_MAX = 4_096

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_MAX_BYTES = 10
_DOUBLE, _SFIXED64 = struct.Struct("<d"), struct.Struct("<q")

# The numbers of fields, and the messages that have the fields.
_RESOURCE_METRICS = 1  # of MetricsData
_RESOURCE, _SCOPE_METRICS = 1, 2  # of ResourceMetrics
_ATTRIBUTES = 1  # of Resource
_KEY, _VALUE = 1, 2  # of KeyValue
_STRING_VALUE = 1  # of AnyValue
_METRICS = 2  # of ScopeMetrics
_NAME, _GAUGE, _SUM = 1, 5, 7  # of Metric
_DATA_POINTS = 1  # of Gauge and Sum
_AS_DOUBLE, _AS_INT = 4, 6  # of NumberDataPoint


@dataclass(frozen=True, slots=True)
class ResourceMetrics:
    """The metrics of one resource: its text attributes, and the value of each metric's last data point."""

    attributes: Mapping[str, str]
    values: Mapping[str, float]


def read_metrics(payload: bytes) -> list[ResourceMetrics]:
    """Read a MetricsData. Raises PayloadError."""
    reader = _Reader(payload)
    whole = _Part(0, len(payload))
    try:
        return [reader.resource_metrics(part) for part in reader.parts(whole, _RESOURCE_METRICS)]
    except (IndexError, struct.error):
        raise PayloadError("a MetricsData that ends too early") from None
    except UnicodeDecodeError as error:
        raise PayloadError("a text that is not UTF-8") from error


@dataclass(frozen=True, slots=True)
class _Part:
    """The bounds of a message or a text within the payload."""

    begin: int
    end: int


class _Reader:
    """A reader of the messages of one payload."""

    __slots__ = ("_data", "_left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = FIELDS_MAX  # fields that may follow

    def resource_metrics(self, part: _Part) -> ResourceMetrics:
        attributes: dict[str, str] = {}
        values: dict[str, float] = {}
        for number, kind, at, end in self._fields(part):
            if number == _RESOURCE:
                attributes.update(self._attributes(_message(kind, at, end)))
            elif number == _SCOPE_METRICS:
                for metric in self.parts(_message(kind, at, end), _METRICS):
                    name, value = self._metric(metric)
                    if value is not None:
                        values[name] = value
        return ResourceMetrics(attributes, values)

    def parts(self, part: _Part, wanted: int) -> Iterator[_Part]:
        for number, kind, at, end in self._fields(part):
            if number == wanted:
                yield _message(kind, at, end)

    def _attributes(self, resource: _Part) -> Iterator[tuple[str, str]]:
        for attribute in self.parts(resource, _ATTRIBUTES):
            key, text = "", None
            for number, kind, at, end in self._fields(attribute):
                if number == _KEY:
                    key = self._text(_message(kind, at, end))
                elif number == _VALUE:
                    for found in self.parts(_message(kind, at, end), _STRING_VALUE):
                        text = self._text(found)
            if text is not None:
                yield key, text

    def _metric(self, metric: _Part) -> tuple[str, float | None]:
        name, value = "", None
        for number, kind, at, end in self._fields(metric):
            if number == _NAME:
                name = self._text(_message(kind, at, end))
            elif number in (_GAUGE, _SUM):
                for point in self.parts(_message(kind, at, end), _DATA_POINTS):
                    value = self._value(point)
        return name, value

    def _value(self, point: _Part) -> float | None:
        value: float | None = None
        for number, kind, at, _ in self._fields(point):
            if number in (_AS_DOUBLE, _AS_INT):
                if kind != _FIXED64:
                    raise PayloadError(f"a value of wire type {kind}")
                form = _DOUBLE if number == _AS_DOUBLE else _SFIXED64
                value = float(form.unpack_from(self._data, at)[0])
        return value

    def _text(self, part: _Part) -> str:
        return self._data[part.begin : part.end].decode()

    def _fields(self, part: _Part) -> Iterator[tuple[int, int, int, int]]:
        """Yield the number, the wire type, the begin and the end of each field of a message."""
        at = part.begin
        while at < part.end:
            self._left -= 1
            if self._left < 0:
                raise PayloadError(f"more than {FIELDS_MAX} fields")
            tag, at = self._varint(at)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise PayloadError("a field with number 0")
            if kind == _BYTES:
                size, at = self._varint(at)
                end = at + size
            elif kind == _VARINT:
                _, end = self._varint(at)
            elif kind in _FIXED_BYTES:
                end = at + _FIXED_BYTES[kind]
            else:
                raise PayloadError(f"a field of wire type {kind}")
            if end > part.end:
                raise PayloadError("a field that is longer than its message")
            yield number, kind, at, end
            at = end

    def _varint(self, at: int) -> tuple[int, int]:
        data, value = self._data, 0
        for shift in range(0, 7 * _VARINT_MAX_BYTES, 7):
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise PayloadError(f"a number of more than {_VARINT_MAX_BYTES} bytes")


def _message(kind: int, at: int, end: int) -> _Part:
    if kind != _BYTES:
        raise PayloadError(f"a message or a text of wire type {kind}")
    return _Part(at, end)
