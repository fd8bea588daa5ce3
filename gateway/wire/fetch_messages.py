"""Fetch, ShareFetch and ShareAcknowledge messages that pass: the member id of requests is replaced, and
responses are read in parts of any size, without IO. Records are skipped: they are neither decoded nor stored.
A handler gets each field as soon as it is read, so a response of any size takes little memory. A broker is
trusted to send well-formed responses.

If leaders have moved, a Fetch response (from version 16 on) and a ShareFetch response end with the addresses
of brokers (KIP-951, KIP-932), which a client must not see. They cannot be removed, because the client has
already received the size of the response. So they become a tagged field with a tag that no client knows. A
client skips this field, and finds the leaders by Metadata, as before KIP-951.
"""

from collections.abc import Callable, Generator
from struct import Struct

from kafka.protocol.api_key import ApiKey

from gateway.wire.framing import (
    ProtocolError,
    RequestHeader,
    skip_compact_bytes,
    skip_tagged_fields,
)
from gateway.wire.schema_encoder import varint as encoded_varint
from kafka_why.wire.primitives import read_varint

WITH_RECORDS = frozenset({ApiKey.Fetch, ApiKey.ShareFetch})
FIRST_VERSION = 16  # of Fetch, with addresses
_FIRST_ACKNOWLEDGE_WITH_LOCK = 2
_ONE_BYTE_MAX = 0x7F  # of a varint


def with_member_id(header: RequestHeader, message: bytes, member_id: str) -> bytes:
    """Return the request with another member id, of at most 126 bytes. Raises ProtocolError."""
    encoded = member_id.encode()
    length_plus_1 = len(encoded) + 1
    assert length_plus_1 <= _ONE_BYTE_MAX, "a longer length takes two bytes"
    group_id_at = skip_tagged_fields(message, header.client_id_end)
    member_id_at = skip_compact_bytes(message, group_id_at)
    member_id_end = skip_compact_bytes(message, member_id_at)
    return b"".join((message[:member_id_at], bytes([length_plus_1]), encoded, message[member_id_end:]))


# Fields of fixed size in responses.

_TOP = Struct(">4xh")  # throttle time, error
_LOCK = Struct(">i")
_TOPIC_ID_BYTES = 16
_SHARE_PARTITION = Struct(">ih")  # index, error
_ACKNOWLEDGED = Struct(">h")  # error

# Fields of fixed size, and the first byte of the varint that follows them: a length, or the number of tagged
# fields.

_BEGINNING_BYTES = 4 + 1  # correlation id, tagged fields
_ACQUIRED = Struct(">qqhB")  # first offset, last offset, delivery count, tagged fields
_LEADER_BYTES = 4 + 4 + 1  # id, epoch, tagged fields
_FETCH_TOP_BYTES = 4 + 2 + 4 + 1  # throttle time, error, session id, topics
_TOPIC_BYTES = _TOPIC_ID_BYTES + 1  # id, partitions
_PARTITION_BYTES = 4 + 2 + 8 + 8 + 8 + 1  # index, error, three offsets, aborted transactions
_ABORTED_BYTES = 8 + 8 + 1  # producer id, first offset, tagged fields
_REPLICA_BYTES = 4 + 1  # preferred read replica, records

_Walk = Generator[int, bytes, None]
"""A walk through a response. It yields the number of bytes to read, or minus the number of bytes to skip."""
_NumberWalk = Generator[int, bytes, int]
"""A part of a walk that returns a number."""


def error_of(response: bytes) -> int:
    """Return the error of a whole ShareFetch or ShareAcknowledge response."""
    return int(_TOP.unpack_from(response, _BEGINNING_BYTES)[0])


class ShareResponseHandler:
    """A receiver of the fields of a ShareFetch or ShareAcknowledge response, in order. This class ignores
    them, and subclasses override its methods.
    """

    def begin(self, error_code: int, lock_ms: int | None) -> None:
        """Receive the top-level error, and AcquisitionLockTimeoutMs if this version has it."""

    def acknowledged(self, topic_id: bytes, partition: int, error_code: int) -> None:
        """Receive the error of a partition's acknowledgements. A partition without acknowledgements has the
        error NONE.
        """

    def acquired(self, topic_id: bytes, partition: int, first: int, last: int, delivery_count: int) -> None:
        """Receive the offsets `first` to `last`, which the member acquired, and the number of their
        deliveries.
        """

    def end(self) -> None:
        """Handle the end of all partitions."""


class PartialReader:
    """A reader of a response that arrives in parts. It reads up to the end of the `_Walk`."""

    def __init__(self, walk: _Walk) -> None:
        self._send = walk.send
        self._requested = next(walk)
        """The latest request of the walk: the number of bytes to read or, if negative, still to skip. 0 at
        the walk's end.
        """
        self._buffered = b""
        """Requested bytes that have arrived, while others are missing."""

    def feed(self, part: bytes) -> int:
        """Read the next part. Return the number of its bytes that are before the end of the walk."""
        data = self._buffered + part
        self._buffered = b""
        at = 0
        try:
            while self._requested:
                if self._requested > len(data) - at:
                    self._buffered = data[at:]
                    return len(part)
                if self._requested > 0:
                    at += self._requested
                    self._requested = self._send(data[at - self._requested : at])
                    continue
                skipped = min(-self._requested, len(data) - at)
                at += skipped
                self._requested += skipped
                if self._requested:
                    return len(part)
                self._requested = self._send(b"")
        except StopIteration:
            self._requested = 0
        return len(part) - (len(data) - at)  # without the bytes after the end


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


_NODE_ENDPOINTS, _UNKNOWN = 0, 127  # tags: of the addresses, and one that no client knows
_NO_ENDPOINTS = b"\x01"  # an empty array
# The number of tagged fields and their tags, before the length of the last field's value. The first of two
# fields is empty.
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
    length_plus_1, _ = read_varint(tail, 0)
    if length_plus_1 <= 1:  # null or empty
        return tail
    # The more bytes the value's length takes, the shorter is the value. For some sizes only two tags fit.
    for tags in (_ONE_TAG, _TWO_TAGS):
        head = _NO_ENDPOINTS + tags
        for length_bytes in range(1, _LENGTH_MAX_BYTES + 1):
            value = tail[len(head) + length_bytes :]
            length = encoded_varint(len(value))
            if len(length) == length_bytes:
                return head + length + value
    raise ProtocolError(f"addresses of {len(tail)} bytes")


def _walk_fetch_response() -> _Walk:
    """Walk up to the tagged fields of the response itself."""
    yield from _skip_tags(_BEGINNING_BYTES)
    for _ in range((yield from _read_length(_FETCH_TOP_BYTES))):
        for _ in range((yield from _read_length(_TOPIC_BYTES))):
            for _ in range((yield from _read_length(_PARTITION_BYTES))):
                yield from _skip_tags(_ABORTED_BYTES)
            yield from _skip_sized(_REPLICA_BYTES)
            yield from _skip_tags()
        yield from _skip_tags()


def _walk_share_response(header: RequestHeader, handler: ShareResponseHandler) -> _Walk:
    """Walk up to the addresses of brokers."""
    is_fetch = header.api_key == ApiKey.ShareFetch
    has_lock = is_fetch or header.api_version >= _FIRST_ACKNOWLEDGE_WITH_LOCK
    yield from _skip_tags(_BEGINNING_BYTES)
    (error_code,) = _TOP.unpack((yield _TOP.size))
    yield from _skip_sized()  # the error message
    (lock_ms,) = _LOCK.unpack((yield _LOCK.size)) if has_lock else (None,)
    handler.begin(error_code, lock_ms)
    for _ in range((yield from _read_length())):
        topic_id = yield _TOPIC_ID_BYTES
        for _ in range((yield from _read_length())):
            yield from _share_partition(handler, topic_id, is_fetch=is_fetch)
        yield from _skip_tags()
    handler.end()


def _share_partition(handler: ShareResponseHandler, topic_id: bytes, *, is_fetch: bool) -> _Walk:
    """Walk through a partition of a ShareFetch or ShareAcknowledge response."""
    partition, error_code = _SHARE_PARTITION.unpack((yield _SHARE_PARTITION.size))
    yield from _skip_sized()  # the error message
    if is_fetch:  # the first error is of the records
        (error_code,) = _ACKNOWLEDGED.unpack((yield _ACKNOWLEDGED.size))
        yield from _skip_sized()  # the error message
    handler.acknowledged(topic_id, partition, error_code)
    yield from _skip_tags(_LEADER_BYTES)
    if is_fetch:
        yield from _skip_sized()  # the records
        for _ in range((yield from _read_length())):
            first, last, delivery_count, tags = _ACQUIRED.unpack((yield _ACQUIRED.size))
            handler.acquired(topic_id, partition, first, last, delivery_count)
            if tags:
                yield from _skip_tagged_fields(tags)
    yield from _skip_tags()


# Parts of a `_Walk`: `yield n` reads and returns n bytes, `yield -n` skips n bytes.
#
# If these functions get a `size`, the varint that they read begins with the last of the next `size` bytes.
# The bytes before it are skipped. Most varints have one byte. `_skip_sized` and `_skip_tags` read it without
# another generator, which would take longer.


def _skip_sized(size: int = 1) -> _Walk:
    """Skip a compact string or records: a varint, which is 0 for null and else the length plus 1, and then
    as many bytes as the length.
    """
    length_plus_1 = (yield size)[-1]
    if length_plus_1 > _ONE_BYTE_MAX:
        length_plus_1 = yield from _read_varint(length_plus_1)
    if length_plus_1 > 1:  # neither null nor empty
        yield -(length_plus_1 - 1)


def _skip_tags(size: int = 1) -> _Walk:
    """Skip tagged fields after their number."""
    count = (yield size)[-1]
    if count:
        yield from _skip_tagged_fields(count)


def _skip_tagged_fields(byte: int) -> _Walk:
    """Skip tagged fields, whose number begins with this byte."""
    for _ in range((yield from _read_varint(byte))):
        yield from _read_varint((yield 1)[0])
        field_bytes = yield from _read_varint((yield 1)[0])
        if field_bytes:
            yield -field_bytes


def _read_length(size: int = 1) -> _NumberWalk:
    """Return the length of an array: -1 for null."""
    return (yield from _read_varint((yield size)[-1])) - 1


def _read_varint(byte: int) -> _NumberWalk:
    """Return the unsigned varint that begins with this byte."""
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        byte = (yield 1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value
