"""Replaces the member id of a ShareFetch (key 78) or ShareAcknowledge (key 79). No IO here."""

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
