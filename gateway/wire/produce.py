"""The topics that a Produce names, found by walking it. The cost grows with partitions, not with bytes."""

import struct

from gateway.wire.framing import (
    ProtocolError,
    RequestHeader,
    read_varint,
    skip_compact_bytes,
    skip_tagged_fields,
)

_FIRST_FLEXIBLE, _FIRST_TRANSACTIONAL, _FIRST_BY_ID = 9, 3, 13
_ACKS_AND_TIMEOUT_BYTES = 6
_ID_BYTES = 16
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")

# A frame has room for millions of empty partitions. Walking this many takes some 30 ms.
PARTITIONS_MAX = 100_000


def produced_topics(header: RequestHeader, message: bytes) -> list[bytes]:
    """The topics of a Produce: their names as UTF-8, or from version 13 on their ids of 16 bytes. Records are
    skipped undecoded.

    Raises ProtocolError if the message is cut short or has more than PARTITIONS_MAX partitions.
    """
    try:
        if header.api_version >= _FIRST_FLEXIBLE:
            return _walk_flexible(message, header.client_id_end, by_id=header.api_version >= _FIRST_BY_ID)
        return _walk_plain(message, header.client_id_end, header.api_version >= _FIRST_TRANSACTIONAL)
    except struct.error:
        raise ProtocolError("a Produce that is cut short") from None


def transactional_id_of(header: RequestHeader, message: bytes) -> str | None:
    """The transactional id of a Produce, None if it is not in a transaction. Raises ProtocolError."""
    at = header.client_id_end
    if header.api_version < _FIRST_TRANSACTIONAL:
        return None
    try:
        if header.api_version >= _FIRST_FLEXIBLE:
            size, at = read_varint(message, skip_tagged_fields(message, at))
            size -= 1
        else:
            (size,), at = _INT16.unpack_from(message, at), at + _INT16.size
        return None if size < 0 else message[at : at + size].decode()
    except (struct.error, UnicodeDecodeError):
        raise ProtocolError("a Produce without a readable transactional id") from None


def _walk_flexible(message: bytes, at: int, *, by_id: bool) -> list[bytes]:
    at = skip_compact_bytes(message, skip_tagged_fields(message, at)) + _ACKS_AND_TIMEOUT_BYTES
    topics, left = [], PARTITIONS_MAX
    count, at = read_varint(message, at)
    for _ in range(count - 1):
        size = _ID_BYTES
        if not by_id:
            size, at = read_varint(message, at)
            size -= 1
        topics.append(message[at : at + size])
        partitions, at = read_varint(message, at + size)
        left = _room(left, partitions)
        for _ in range(partitions - 1):
            at = skip_tagged_fields(message, skip_compact_bytes(message, at + _INT32.size))
        at = skip_tagged_fields(message, at)
    return topics


def _walk_plain(message: bytes, at: int, is_transactional: bool) -> list[bytes]:
    if is_transactional:
        at += _INT16.size + max(_INT16.unpack_from(message, at)[0], 0)
    at += _ACKS_AND_TIMEOUT_BYTES
    topics, left = [], PARTITIONS_MAX
    count, at = _INT32.unpack_from(message, at)[0], at + _INT32.size
    for _ in range(count):
        size, at = max(_INT16.unpack_from(message, at)[0], 0), at + _INT16.size
        topics.append(message[at : at + size])
        at += size
        partitions, at = _INT32.unpack_from(message, at)[0], at + _INT32.size
        left = _room(left, partitions)
        for _ in range(partitions):
            at += _INT32.size
            at += _INT32.size + max(_INT32.unpack_from(message, at)[0], 0)
    if at > len(message):
        raise ProtocolError("a Produce that is cut short")
    return topics


def _room(left: int, partitions: int) -> int:
    """The number of partitions that may still follow a topic, which itself counts as a partition."""
    left -= 1 + max(partitions, 0)
    if left < 0:
        raise ProtocolError(f"a Produce of more than {PARTITIONS_MAX} partitions")
    return left
