"""The short way to decode a Heartbeat accepts and refuses the same messages as the general codec, and returns
the same values.
"""

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey

from gateway.wire import codec
from gateway.wire.framing import ProtocolError, request_header
from gateway.wire.heartbeat import decode_heartbeat
from tests.harness.examples import scaled

VERSIONS = codec.versions(ApiKey.Heartbeat)
DAMAGED = 20_000


def outcome(decode: object, message: bytes) -> tuple[object, ...] | None:
    """The decoded values, None for a message that is refused."""
    header = request_header(message)
    try:
        request = decode(header, message)  # type: ignore[operator]
    except ProtocolError:
        return None
    return request.group_id, request.generation_id, request.member_id, request.group_instance_id


@given(
    st.sampled_from(VERSIONS),
    st.text(max_size=300),
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=300),
    st.none() | st.text(max_size=20),
)
def test_a_heartbeat_has_the_values_that_it_was_made_of(
    version: int, group_id: str, generation_id: int, member_id: str, instance_id: str | None
) -> None:
    fields = {"group_id": group_id, "generation_id": generation_id, "member_id": member_id}
    is_static = version >= 3
    if is_static:
        fields["group_instance_id"] = instance_id
    message = codec.encode_request(ApiKey.Heartbeat, version, 1, "me", fields)
    expected = group_id, generation_id, member_id, instance_id if is_static else None
    assert outcome(decode_heartbeat, message) == outcome(codec.decode_request, message) == expected


@pytest.mark.examples
def test_damaged_heartbeats_are_read_or_refused_as_by_the_general_codec() -> None:
    random, refused, count = Random(3), 0, scaled(DAMAGED)
    for _ in range(count):
        message = _damaged(random)
        with suppress(ProtocolError):
            request_header(message)
            read = outcome(decode_heartbeat, message)
            assert read == outcome(codec.decode_request, message), message.hex(" ")
            refused += read is None
    assert count // 10 < refused < count


def _damaged(random: Random) -> bytes:
    version = random.choice(VERSIONS)
    fields = {"group_id": "gruppe-ü", "generation_id": 1, "member_id": "m" * random.choice([0, 3, 130])}
    if version >= 3 and random.random() < 0.5:
        fields["group_instance_id"] = "i1"
    message = bytearray(codec.encode_request(ApiKey.Heartbeat, version, 1, None, fields))  # type: ignore[arg-type]
    body = 10
    for _ in range(random.randint(1, 3)):
        at = random.randrange(body, len(message) + 1)
        match random.randrange(4):
            case 0:
                message[at : at + 1] = bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])])
            case 1:
                del message[at:]
            case 2:
                message[at:at] = random.randbytes(random.randint(1, 3))
            case _:
                message += random.choice([b"\0", b"\1\0\1x", random.randbytes(4)])
        if len(message) < body:
            break
    return bytes(message)
