"""Fetch responses that pass to a client as they come, from version 16 on. No IO here.

Where leaders have moved, such a response ends with the addresses of brokers (KIP-951). A client must not see
them, and they are behind all records, when the size of the response is long sent. So their field gets a tag
that no client knows. A client skips it, and finds the leaders by Metadata, as before KIP-951.
"""

from collections.abc import Generator

from gateway.wire.framing import read_varint

FIRST_VERSION = 16
_NODE_ENDPOINTS, _UNKNOWN = 0, 127

_CORRELATION_ID_BYTES = 4
_TOP_BYTES = 4 + 2 + 4  # throttle time, error, session id
_TOPIC_ID_BYTES = 16
_PARTITION_BYTES = 4 + 2 + 8 + 8 + 8  # index, error, high watermark, last stable offset, log start offset
_ABORTED_BYTES = 8 + 8  # producer id, first offset
_REPLICA_BYTES = 4

_A_BYTE = 0

_Walk = Generator[int, int, None]
"""A walk through a response. It yields the number of bytes to skip, or _A_BYTE to get one."""


class FetchTail:
    """Passes one response on in parts, all but its tagged fields, which come at the end."""

    def __init__(self) -> None:
        self._walk = _to_tags()
        self._skipped = next(self._walk)
        """The bytes that are still to be skipped. _A_BYTE if the walk wants one."""
        self._is_over = False
        self._tail = bytearray()

    def feed(self, part: bytes) -> bytes:
        """Take the next part, and return what of it may pass now."""
        at = 0
        while at < len(part) and not self._is_over:
            if self._skipped == _A_BYTE:
                self._go_on(part[at])
                at += 1
                continue
            step = min(self._skipped, len(part) - at)
            at += step
            self._skipped -= step
            if not self._skipped:
                self._go_on(0)
        if not self._is_over:
            return part
        self._tail += part[at:]
        return part[:at]

    def end(self) -> bytes:
        """The rest of the response, when all parts were taken. Raises ProtocolError."""
        count, at = read_varint(bytes(self._tail), 0)
        if count and self._tail[at] == _NODE_ENDPOINTS:
            self._tail[at] = _UNKNOWN
        return bytes(self._tail)

    def _go_on(self, byte: int) -> None:
        try:
            self._skipped = self._walk.send(byte)
        except StopIteration:
            self._is_over = True


def _to_tags() -> _Walk:
    """Walk up to the tagged fields of the response itself."""
    yield _CORRELATION_ID_BYTES
    yield from _tags()
    yield _TOP_BYTES
    for _ in range((yield from _varint()) - 1):
        yield _TOPIC_ID_BYTES
        for _ in range((yield from _varint()) - 1):
            yield from _partition()
        yield from _tags()


def _partition() -> _Walk:
    yield _PARTITION_BYTES
    for _ in range((yield from _varint()) - 1):
        yield _ABORTED_BYTES
        yield from _tags()
    yield _REPLICA_BYTES
    record_bytes = (yield from _varint()) - 1
    if record_bytes > 0:
        yield record_bytes
    yield from _tags()


def _tags() -> _Walk:
    for _ in range((yield from _varint())):
        yield from _varint()
        size = yield from _varint()
        if size:
            yield size


def _varint() -> Generator[int, int, int]:
    value, shift = 0, 0
    while (byte := (yield _A_BYTE)) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value | byte << shift
