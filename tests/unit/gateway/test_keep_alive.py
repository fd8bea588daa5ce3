"""The short way to decode a ConsumerGroupHeartbeat that says nothing new has the values of the general codec,
and leaves every other message to it.
"""

from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import codec
from gateway.wire.framing import ProtocolError, request_header
from gateway.wire.keep_alive import KeepAlive, decode_keep_alive
from tests.harness.examples import scaled

HEARTBEAT = 68
VERSIONS = codec.versions(HEARTBEAT)
DAMAGED = 10_000
NEWS: list[dict[str, Any]] = [
    {"rack_id": "r"},
    {"rebalance_timeout_ms": 0},
    {"subscribed_topic_names": []},
    {"server_assignor": ""},
    {"topic_partitions": []},
    {"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]},
]


def by_codec(message: bytes) -> dict[str, Any]:
    decoded = codec.decode_request(request_header(message), message)
    return {name: getattr(decoded, name) for name in KeepAlive.__struct_fields__}


@given(
    st.sampled_from(VERSIONS),
    st.text(max_size=300),
    st.text(max_size=300),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=20),
)
def test_a_keep_alive_has_the_values_of_the_general_codec(
    version: int, group_id: str, member_id: str, member_epoch: int, instance_id: str | None
) -> None:
    fields = {"group_id": group_id, "member_id": member_id, "member_epoch": member_epoch}
    message = codec.encode_request(HEARTBEAT, version, 1, "me", {**fields, "instance_id": instance_id})
    decoded = decode_keep_alive(request_header(message), message)
    assert decoded is not None
    assert msgspec.structs.asdict(decoded) == by_codec(message)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_says_anything_new_is_left_to_the_general_codec(version: int) -> None:
    for news in [*NEWS, *([{"subscribed_topic_regex": ""}] if version else [])]:
        fields = {"group_id": "g", "member_id": "m", "member_epoch": 1, **news}
        message = codec.encode_request(HEARTBEAT, version, 1, "me", fields)
        assert decode_keep_alive(request_header(message), message) is None
        codec.decode_request(request_header(message), message)


@pytest.mark.examples
def test_damaged_messages_are_read_as_by_the_general_codec_or_not_at_all() -> None:
    random, read = Random(5), 0
    for _ in range(scaled(DAMAGED)):
        message = _damaged(random)
        with suppress(ProtocolError):
            header = request_header(message)
            if header.api_key != HEARTBEAT or header.api_version not in VERSIONS:
                continue
            decoded = decode_keep_alive(header, message)
            if decoded is not None:
                read += 1
                assert msgspec.structs.asdict(decoded) == by_codec(message), message.hex(" ")
    assert read > scaled(DAMAGED) // 50


def _damaged(random: Random) -> bytes:
    fields = {"group_id": "gruppe-ü", "member_id": "m" * random.choice([0, 36, 130]), "member_epoch": 1}
    if random.random() < 0.5:
        fields["instance_id"] = "i1"
    message = bytearray(codec.encode_request(HEARTBEAT, random.choice(VERSIONS), 1, "me", fields))
    at = random.randrange(10, len(message) + 1)
    match random.randrange(3):
        case 0:
            message[at : at + 1] = bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])])
        case 1:
            del message[at:]
        case _:
            message[at:at] = random.randbytes(random.randint(1, 3))
    return bytes(message)
