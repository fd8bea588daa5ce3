"""Fetch, ShareFetch and ShareAcknowledge messages that pass: the member id of requests is replaced, and
responses are read in parts of any size, without IO. Records are skipped: they are neither decoded nor stored.
Each field is reported when it is read, so a response of any size takes no memory. A broker is trusted to send
well-formed responses.

If leaders have moved, a Fetch response (from version 16 on) and a ShareFetch response end with the addresses
of brokers (KIP-951, KIP-932). A client must not see them, but they follow all records, when the size of the
response has already been sent. So they become a tagged field with a tag that no client knows. A client skips
this field, and finds the leaders by Metadata, as before KIP-951.
"""

from collections.abc import Callable, Generator
from struct import Struct

from kafka.protocol.api_key import ApiKey

from gateway.wire.framing import (
    ProtocolError,
    RequestHeader,
    read_varint,
    skip_compact_bytes,
    skip_tagged_fields,
)
from gateway.wire.schema_encoder import varint as encoded_varint

WITH_RECORDS = frozenset({ApiKey.Fetch, ApiKey.ShareFetch})
FIRST_VERSION = 16  # of Fetch, with addresses
_FIRST_ACKNOWLEDGE_WITH_LOCK = 2
_ONE_BYTE_MAX = 0x7F  # of a length


def with_member_id(header: RequestHeader, message: bytes, member_id: str) -> bytes:
    """Return the request with another member id, of at most 126 bytes. Raises ProtocolError."""
    encoded = member_id.encode()
    length = len(encoded) + 1
    assert length <= _ONE_BYTE_MAX, "a longer length has more bytes"
    group_at = skip_tagged_fields(message, header.client_id_end)
    begin = skip_compact_bytes(message, group_at)
    end = skip_compact_bytes(message, begin)
    return b"".join((message[:begin], bytes([length]), encoded, message[end:]))


# Fields of responses. Most end with the first byte of a length or of the number of tagged fields.

_BEGINNING_BYTES = 4 + 1  # correlation id, tagged fields
_TOP = Struct(">4xhB")  # throttle time, error, message
_LOCK = Struct(">i")
_TOPIC = Struct(">16sB")  # id, partitions
_SHARE_PARTITION = Struct(">ihB")  # index, error, message
_ACKNOWLEDGED = Struct(">hB")  # error, message
_LEADER_BYTES = 4 + 4 + 1  # id, epoch, tagged fields
_ACQUIRED = Struct(">qqhB")  # first offset, last offset, delivery count, tagged fields
_FETCH_TOP_BYTES = 4 + 2 + 4 + 1  # throttle time, error, session id, topics
_PARTITION_BYTES = 4 + 2 + 8 + 8 + 8 + 1  # index, error, three offsets, aborted transactions
_ABORTED_BYTES = 8 + 8 + 1  # producer id, first offset, tagged fields
_REPLICA_BYTES = 4 + 1  # preferred read replica, records

_Walk = Generator[int, bytes, None]
"""A walk through a response. It yields the number of bytes to read, or minus the number of bytes to skip."""
_Length = Generator[int, bytes, int]


def error_of(response: bytes) -> int:
    """Return the error of a whole ShareFetch or ShareAcknowledge response."""
    error_code: int = _TOP.unpack_from(response, _BEGINNING_BYTES)[0]
    return error_code


class ShareResponseHandler:
    """A receiver of the fields of a ShareFetch or ShareAcknowledge response, in order. This class ignores
    them, and subclasses override its methods.
    """

    def begin(self, error_code: int, lock_ms: int | None) -> None:
        """Receive the top-level error, and AcquisitionLockTimeoutMs if this version has it."""

    def acknowledged(self, topic_id: bytes, partition: int, error_code: int) -> None:
        """Receive the outcome of a partition's acknowledgements. It is NONE if there were none."""

    def acquired(self, topic_id: bytes, partition: int, first: int, last: int, delivery_count: int) -> None:
        """Receive the offsets `first` to `last`, which the member acquired, and the number of their
        deliveries.
        """

    def end(self) -> None:
        """Handle the end of all partitions."""


class PartialReader:
    """A reader of a response that arrives in parts, up to the end of a walk."""

    def __init__(self, walk: _Walk) -> None:
        self._send = walk.send
        self._wanted = next(walk)
        """The number of bytes that the walk waits for, or minus the number to skip, or 0 after the walk's
        end.
        """
        self._buffered = b""
        """The first of the requested bytes, if they arrive in several parts."""

    def feed(self, part: bytes) -> int:
        """Read the next part. Return the number of its bytes that are before the end of the walk."""
        data, at, buffered_bytes = self._buffered + part, 0, len(self._buffered)
        self._buffered = b""
        try:
            while self._wanted:
                if self._wanted > len(data) - at:
                    self._buffered = data[at:]
                    return len(part)
                if self._wanted > 0:
                    at += self._wanted
                    self._wanted = self._send(data[at - self._wanted : at])
                    continue
                skipped = min(-self._wanted, len(data) - at)
                at += skipped
                self._wanted += skipped
                if self._wanted:
                    return len(part)
                self._wanted = self._send(b"")
        except StopIteration:
            self._wanted = 0
        return at - buffered_bytes


class Tail:
    """A response that passes in parts. The bytes after the end of `walk` are held back until `end` returns
    them, changed by `hide`.
    """

    def __init__(self, walk: _Walk, hide: Callable[[bytes], bytes]) -> None:
        self._reader = PartialReader(walk)
        self._hide = hide
        self._tail = bytearray()

    def feed(self, part: bytes) -> bytes:
        """Read the next part, and return its bytes that may pass now."""
        end = self._reader.feed(part)
        self._tail += part[end:]
        return part[:end]

    def end(self) -> bytes:
        """Return the rest of the response after all parts. Raises ProtocolError."""
        return self._hide(bytes(self._tail))


def tail_of(header: RequestHeader) -> Tail | None:
    """Return the `Tail` of a response to this request, or None if the response has no addresses."""
    if header.api_key == ApiKey.ShareFetch:
        return Tail(_walk_share_response(header, ShareResponseHandler()), _without_endpoints)
    if header.api_key == ApiKey.Fetch and header.api_version >= FIRST_VERSION:
        return Tail(_walk_fetch_response(), _with_unknown_tag)
    return None


def share_response_reader(header: RequestHeader, handler: ShareResponseHandler) -> PartialReader:
    """Return a reader of the response to this ShareFetch or ShareAcknowledge."""
    return PartialReader(_walk_share_response(header, handler))


_NODE_ENDPOINTS, _UNKNOWN = 0, 127  # tags
_NO_ENDPOINTS = b"\x01"  # an empty array
# The bytes before the value. A length from 128 on takes one more byte, so two forms are needed to fit all
# sizes.
_ONE_TAG, _TWO_TAGS = bytes([1, _UNKNOWN]), bytes([2, _UNKNOWN - 1, 0, _UNKNOWN])
_LENGTH_MAX_BYTES = 5


def _with_unknown_tag(tags: bytes) -> bytes:
    """Hide the addresses of a Fetch response, which are its first tagged field."""
    count, at = read_varint(tags, 0)
    if count and tags[at] == _NODE_ENDPOINTS:
        return tags[:at] + bytes([_UNKNOWN]) + tags[at + 1 :]
    return tags


def _without_endpoints(tail: bytes) -> bytes:
    """Hide the addresses of a ShareFetch response, which are its last array, before the tagged fields.

    They become the value of a tagged field after an empty array, so the response keeps its size.
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


def _walk_fetch_response() -> _Walk:
    """Walk up to the tagged fields of the response itself."""
    yield from _skip_tags((yield _BEGINNING_BYTES)[-1])
    for _ in range((yield from _read_length((yield _FETCH_TOP_BYTES)[-1])) - 1):
        partitions = _TOPIC.unpack((yield _TOPIC.size))[1]
        for _ in range((yield from _read_length(partitions)) - 1):
            for _ in range((yield from _read_length((yield _PARTITION_BYTES)[-1])) - 1):
                yield from _skip_tags((yield _ABORTED_BYTES)[-1])
            yield from _skip_sized((yield _REPLICA_BYTES)[-1])
            yield from _skip_tags((yield 1)[0])
        yield from _skip_tags((yield 1)[0])


def _walk_share_response(header: RequestHeader, handler: ShareResponseHandler) -> _Walk:
    """Walk up to the addresses of brokers."""
    is_fetch = header.api_key == ApiKey.ShareFetch
    has_lock = is_fetch or header.api_version >= _FIRST_ACKNOWLEDGE_WITH_LOCK
    yield from _skip_tags((yield _BEGINNING_BYTES)[-1])
    error_code, message = _TOP.unpack((yield _TOP.size))
    yield from _skip_sized(message)
    handler.begin(error_code, _LOCK.unpack((yield _LOCK.size))[0] if has_lock else None)
    for _ in range((yield from _read_length((yield 1)[0])) - 1):
        topic_id, partitions = _TOPIC.unpack((yield _TOPIC.size))
        for _ in range((yield from _read_length(partitions)) - 1):
            yield from _share_partition(handler, topic_id, is_fetch=is_fetch)
        yield from _skip_tags((yield 1)[0])
    handler.end()


def _share_partition(handler: ShareResponseHandler, topic_id: bytes, *, is_fetch: bool) -> _Walk:
    partition, error_code, message = _SHARE_PARTITION.unpack((yield _SHARE_PARTITION.size))
    yield from _skip_sized(message)
    if is_fetch:  # the first error is of the records
        error_code, message = _ACKNOWLEDGED.unpack((yield _ACKNOWLEDGED.size))
        yield from _skip_sized(message)
    handler.acknowledged(topic_id, partition, error_code)
    yield from _skip_tags((yield _LEADER_BYTES)[-1])
    if is_fetch:
        yield from _skip_sized((yield 1)[0])
        for _ in range((yield from _read_length((yield 1)[0])) - 1):
            first, last, delivery_count, tags = _ACQUIRED.unpack((yield _ACQUIRED.size))
            handler.acquired(topic_id, partition, first, last, delivery_count)
            yield from _skip_tags(tags)
    yield from _skip_tags((yield 1)[0])


def _skip_sized(byte: int) -> _Walk:
    """Skip a string or records, whose length begins with this byte. Null has the length 0."""
    size = (yield from _read_length(byte)) - 1
    if size > 0:
        yield -size


def _skip_tags(byte: int) -> _Walk:
    """Skip tagged fields, whose number begins with this byte."""
    for _ in range((yield from _read_length(byte))):
        yield from _read_length((yield 1)[0])
        size = yield from _read_length((yield 1)[0])
        if size:
            yield -size


def _read_length(byte: int) -> _Length:
    """Return a number that begins with this byte."""
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        byte = (yield 1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value
