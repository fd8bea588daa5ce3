"""Responses with records that pass to a client as they come: Fetch from version 16 on, and ShareFetch. No IO
here.

Where leaders have moved, such a response ends with the addresses of brokers (KIP-951, KIP-932). A client must
not see them, and they are behind all records, when the size of the response is long sent. So they become a
tagged field with a tag that no client knows. A client skips it, and finds the leaders by Metadata, as before
KIP-951.
"""

from collections.abc import Callable, Generator

from kafka.protocol.api_key import ApiKey

from gateway.wire.framing import ProtocolError, RequestHeader, read_varint
from gateway.wire.schema_encoder import varint as encoded_varint

WITH_RECORDS = frozenset({ApiKey.Fetch, ApiKey.ShareFetch})
FIRST_VERSION = 16  # of Fetch, with addresses
_NODE_ENDPOINTS, _UNKNOWN = 0, 127

_CORRELATION_ID_BYTES = 4
_TOP_BYTES = 4 + 2 + 4  # throttle time, error, session id
_SHARE_TOP_BYTES = 4 + 2  # throttle time, error
_LOCK_TIMEOUT_BYTES = 4
_TOPIC_ID_BYTES = 16
_PARTITION_BYTES = 4 + 2 + 8 + 8 + 8  # index, error, high watermark, last stable offset, log start offset
_ABORTED_BYTES = 8 + 8  # producer id, first offset
_REPLICA_BYTES = 4
_SHARE_PARTITION_BYTES = 4 + 2  # index, error
_ACKNOWLEDGE_ERROR_BYTES = 2
_LEADER_BYTES = 4 + 4  # id, epoch
_ACQUIRED_BYTES = 8 + 8 + 2  # first and last offset, delivery count

_A_BYTE = 0

_Walk = Generator[int, int, None]
"""A walk through a response. It yields the number of bytes to skip, or _A_BYTE to get one."""


class Tail:
    """Passes one response on in parts. It holds back what comes after `walk`, and `hidden` changes that."""

    def __init__(self, walk: _Walk, hidden: Callable[[bytes], bytes]) -> None:
        self._walk = walk
        self._hidden = hidden
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
        return self._hidden(bytes(self._tail))

    def _go_on(self, byte: int) -> None:
        try:
            self._skipped = self._walk.send(byte)
        except StopIteration:
            self._is_over = True


def tail_of(header: RequestHeader) -> Tail | None:
    """For a response to this request, None if it has no addresses."""
    if header.api_key == ApiKey.ShareFetch:
        return Tail(_to_endpoints(), _without_endpoints)
    if header.api_key == ApiKey.Fetch and header.api_version >= FIRST_VERSION:
        return Tail(_to_tags(), _with_unknown_tag)
    return None


def _with_unknown_tag(tags: bytes) -> bytes:
    """A Fetch response has the addresses in its first tagged field."""
    count, at = read_varint(tags, 0)
    if count and tags[at] == _NODE_ENDPOINTS:
        return tags[:at] + bytes([_UNKNOWN]) + tags[at + 1 :]
    return tags


_NO_ENDPOINTS = b"\x01"  # an empty array
# The tags before the value. Lengths take one byte more from 128 on, so one field does not fit all sizes.
_ONE_TAG, _TWO_TAGS = bytes([1, _UNKNOWN]), bytes([2, _UNKNOWN - 1, 0, _UNKNOWN])
_LENGTH_MAX_BYTES = 5


def _without_endpoints(tail: bytes) -> bytes:
    """A ShareFetch response has the addresses in its last array, before the tagged fields. They become the
    value of a tagged field behind an empty array, so that the response keeps its size.
    """
    length, _ = read_varint(tail, 0)
    if length <= 1:
        return tail
    for tags in (_ONE_TAG, _TWO_TAGS):
        head = _NO_ENDPOINTS + tags
        for width in range(1, _LENGTH_MAX_BYTES + 1):
            value = tail[len(head) + width :]
            size = encoded_varint(len(value))
            if len(size) == width:
                return head + size + value
    raise ProtocolError(f"addresses of {len(tail)} bytes")


def _to_endpoints() -> _Walk:
    """Walk up to the last array of a ShareFetch response."""
    yield _CORRELATION_ID_BYTES
    yield from _tags()
    yield _SHARE_TOP_BYTES
    yield from _sized()
    yield _LOCK_TIMEOUT_BYTES
    for _ in range((yield from _varint()) - 1):
        yield _TOPIC_ID_BYTES
        for _ in range((yield from _varint()) - 1):
            yield from _share_partition()
        yield from _tags()


def _share_partition() -> _Walk:
    yield _SHARE_PARTITION_BYTES
    yield from _sized()
    yield _ACKNOWLEDGE_ERROR_BYTES
    yield from _sized()
    yield _LEADER_BYTES
    yield from _tags()
    yield from _sized()
    for _ in range((yield from _varint()) - 1):
        yield _ACQUIRED_BYTES
        yield from _tags()
    yield from _tags()


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
    yield from _sized()
    yield from _tags()


def _sized() -> _Walk:
    """A string or records, null or with a length."""
    size = (yield from _varint()) - 1
    if size > 0:
        yield size


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
