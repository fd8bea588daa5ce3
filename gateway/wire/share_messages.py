"""ShareFetch (key 78) and ShareAcknowledge (key 79): the member id of requests is replaced, responses are
read.
"""

from collections.abc import Generator
from struct import Struct
from typing import Protocol

from kafka.protocol.api_key import ApiKey

from gateway.wire.framing import RequestHeader, skip_compact_bytes, skip_tagged_fields

_ONE_BYTE_MAX = 0x7F  # of a length


def with_member_id(header: RequestHeader, message: bytes, member_id: str) -> bytes:
    """Return the request of another member, with an id of at most 126 bytes. Raises ProtocolError."""
    encoded = member_id.encode()
    length = len(encoded) + 1
    assert length <= _ONE_BYTE_MAX, "a longer length has more bytes"
    begin = skip_compact_bytes(message, skip_tagged_fields(message, header.client_id_end))  # behind the group
    end = skip_compact_bytes(message, begin)
    return b"".join((message[:begin], bytes([length]), encoded, message[end:]))


# Reads responses to ShareFetch (key 78) and ShareAcknowledge (key 79), whole or in parts. No IO here.
#
# Records are skipped: they are neither decoded nor copied. Each field is reported as it is read, so reading
# takes no memory, however large a response is. A broker is trusted to send well-formed responses.


_FIRST_ACKNOWLEDGE_WITH_LOCK = 2

# Most end with the first byte of a length, or of a number of tagged fields.
_BEGINNING_BYTES = 4 + 1  # correlation id, tagged fields
_TOP = Struct(">4xhB")  # throttle time, error, message
_LOCK = Struct(">i")
_TOPIC = Struct(">16sB")  # id, partitions
_PARTITION = Struct(">ihB")  # index, error, message
_ACKNOWLEDGED = Struct(">hB")  # error, message
_LEADER_BYTES = 4 + 4 + 1  # id, epoch, tagged fields
_ACQUIRED = Struct(">qqhB")  # first offset, last offset, delivery count, tagged fields

_Walk = Generator[int, bytes, None]
"""A walk through a response. It yields a number of bytes to get, or a negative one of bytes to skip."""
_Length = Generator[int, bytes, int]
_PAST_ALL = -(2**63)


def error_of(response: bytes) -> int:
    """The error of the whole."""
    error_code: int = _TOP.unpack_from(response, _BEGINNING_BYTES)[0]
    return error_code


class Seen(Protocol):
    """Takes what is read of a response, in the order of its fields."""

    def top(self, error_code: int, lock_ms: int | None) -> None:
        """The error of the whole, and AcquisitionLockTimeoutMs if this version has it."""

    def acknowledged(self, topic_id: bytes, partition: int, error_code: int) -> None:
        """What became of a partition's acknowledgements. Partitions without any have NONE."""

    def acquired(self, topic_id: bytes, partition: int, first: int, last: int, delivery_count: int) -> None:
        """The member got these offsets, both included, and it is their `delivery_count`th delivery."""

    def end(self) -> None:
        """All of the partitions was told."""


class ShareResponse:
    """One response, as it comes."""

    def __init__(self, header: RequestHeader, seen: Seen) -> None:
        is_fetch = header.api_key == ApiKey.ShareFetch
        has_lock = is_fetch or header.api_version >= _FIRST_ACKNOWLEDGE_WITH_LOCK
        self._walk = _response(seen, is_fetch=is_fetch, has_lock=has_lock)
        self._wanted = next(self._walk)
        self._kept = b""
        """The beginning of the bytes that the walk wants, where they come in several parts."""

    def feed(self, part: bytes) -> None:
        """Take the next part. What comes after the partitions is not looked at."""
        while self._kept and part:
            lacks = self._wanted - len(self._kept)
            both, part = self._kept + part[:lacks], part[lacks:]
            self._kept = b""
            self._read(both)
        if part:
            self._read(part)

    def _read(self, part: bytes) -> None:
        wanted, at, end, send = self._wanted, 0, len(part), self._walk.send
        try:
            while True:
                if wanted > 0:
                    if end - at < wanted:
                        self._kept = part[at:]
                        break
                    at += wanted
                    wanted = send(part[at - wanted : at])
                elif end - at < -wanted:
                    wanted += end - at
                    break
                else:
                    at -= wanted
                    wanted = send(b"")
        except StopIteration:
            wanted = _PAST_ALL
        self._wanted = wanted


def _response(seen: Seen, *, is_fetch: bool, has_lock: bool) -> _Walk:
    yield from _tags((yield _BEGINNING_BYTES)[-1])
    error_code, message = _TOP.unpack((yield _TOP.size))
    yield from _sized(message)
    seen.top(error_code, _LOCK.unpack((yield _LOCK.size))[0] if has_lock else None)
    for _ in range((yield from _length((yield 1)[0])) - 1):
        topic_id, partitions = _TOPIC.unpack((yield _TOPIC.size))
        for _ in range((yield from _length(partitions)) - 1):
            yield from _fetched(seen, topic_id) if is_fetch else _acknowledged(seen, topic_id)
        yield from _tags((yield 1)[0])
    seen.end()


def _acknowledged(seen: Seen, topic_id: bytes) -> _Walk:
    partition, error_code, message = _PARTITION.unpack((yield _PARTITION.size))
    yield from _sized(message)
    seen.acknowledged(topic_id, partition, error_code)
    yield from _tags((yield _LEADER_BYTES)[-1])
    yield from _tags((yield 1)[0])


def _fetched(seen: Seen, topic_id: bytes) -> _Walk:
    partition, _, message = _PARTITION.unpack((yield _PARTITION.size))
    yield from _sized(message)
    error_code, message = _ACKNOWLEDGED.unpack((yield _ACKNOWLEDGED.size))
    yield from _sized(message)
    seen.acknowledged(topic_id, partition, error_code)
    yield from _tags((yield _LEADER_BYTES)[-1])
    yield from _sized((yield 1)[0])
    for _ in range((yield from _length((yield 1)[0])) - 1):
        first, last, delivery_count, tags = _ACQUIRED.unpack((yield _ACQUIRED.size))
        seen.acquired(topic_id, partition, first, last, delivery_count)
        if tags:
            yield from _tags(tags)
    yield from _tags((yield 1)[0])


def _sized(byte: int) -> _Walk:
    """A string or records, null or with a length that begins with this byte."""
    size = (yield from _length(byte)) - 1
    if size > 0:
        yield -size


def _tags(byte: int) -> _Walk:
    for _ in range((yield from _length(byte))):
        yield from _length((yield 1)[0])
        size = yield from _length((yield 1)[0])
        if size:
            yield -size


def _length(byte: int) -> _Length:
    """A number that begins with this byte."""
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        byte = (yield 1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value
