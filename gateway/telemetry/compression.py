"""Decompression of a PushTelemetry's payload up to a limit."""

from enum import IntEnum
from typing import Any

from kafka_why.wire.primitives import read_varint

# The header of snappy-java's stream: a name, a version and the oldest compatible version. Blocks follow, each
# with its size. librdkafka sends one block without a header.
_SNAPPY_JAVA = b"\x82SNAPPY\0"
_SNAPPY_JAVA_HEADER_BYTES = 16
_SNAPPY_JAVA_LEAST_BLOCK_BYTES = 1024  # that it can be set to; the default is 32 KiB
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
"""In a broker's order of preference. Clients use the first that they support."""


class Decompressor:
    """Decompresses streams up to a limit, so that a bomb costs no more than a normal payload.

    Empty frames and blocks in 64 KiB cost pyarrow's streams less than 1 ms. Blocks of snappy-java are read
    here, so their number has a limit, too.
    """

    def __init__(self, limit_bytes: int) -> None:
        import pyarrow  # the import takes half a second, and only a gateway with telemetry needs it

        self._pyarrow: Any = pyarrow
        self._snappy: Any = pyarrow.Codec("snappy")
        self._limit_bytes = limit_bytes
        self._blocks_max = limit_bytes // _SNAPPY_JAVA_LEAST_BLOCK_BYTES

    def decompress(self, data: bytes, kind: CompressionType) -> bytes:
        """Return the payload. Raises PayloadError, also beyond the limit of bytes or blocks."""
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
