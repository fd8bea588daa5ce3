"""The short way to decode a heartbeat that says nothing new has the values of the general codec, and leaves
every other message to it.
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
from gateway.wire.keep_alive import KeepAlive, ShareKeepAlive, decode_keep_alive, decode_share_keep_alive
from tests.harness.examples import scaled

HEARTBEAT, SHARE_HEARTBEAT = 68, 76
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

SHARE_NEWS: list[dict[str, Any]] = [
    {"rack_id": ""},
    {"subscribed_topic_names": []},
    {"subscribed_topic_names": ["orders"]},
]


def decoded(message: bytes) -> KeepAlive | ShareKeepAlive | None:
    header = request_header(message)
    if header.api_key == SHARE_HEARTBEAT:
        return decode_share_keep_alive(header, message)
    return decode_keep_alive(header, message)


def by_codec(message: bytes) -> dict[str, Any]:
    header = request_header(message)
    decoded = codec.decode_request(header, message)
    kind = ShareKeepAlive if header.api_key == SHARE_HEARTBEAT else KeepAlive
    return {name: getattr(decoded, name) for name in kind.__struct_fields__}


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
    short = decoded(message)
    assert short is not None
    assert msgspec.structs.asdict(short) == by_codec(message)


@given(st.text(max_size=300), st.text(max_size=300), st.integers(-(2**31), 2**31 - 1))
def test_sp23_a_keep_alive_of_a_share_group_has_the_values_of_the_general_codec(
    group_id: str, member_id: str, member_epoch: int
) -> None:
    fields = {"group_id": group_id, "member_id": member_id, "member_epoch": member_epoch}
    message = codec.encode_request(SHARE_HEARTBEAT, 1, 1, "me", fields)
    short = decoded(message)
    assert short is not None
    assert msgspec.structs.asdict(short) == by_codec(message)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_says_anything_new_is_left_to_the_general_codec(version: int) -> None:
    for news in [*NEWS, *([{"subscribed_topic_regex": ""}] if version else [])]:
        fields = {"group_id": "g", "member_id": "m", "member_epoch": 1, **news}
        message = codec.encode_request(HEARTBEAT, version, 1, "me", fields)
        assert decoded(message) is None
        codec.decode_request(request_header(message), message)


def test_sp23_what_a_member_of_a_share_group_says_anew_is_left_to_the_general_codec() -> None:
    for news in SHARE_NEWS:
        fields = {"group_id": "g", "member_id": "m", "member_epoch": 1, **news}
        message = codec.encode_request(SHARE_HEARTBEAT, 1, 1, "me", fields)
        assert decoded(message) is None
        codec.decode_request(request_header(message), message)


@pytest.mark.examples
def test_damaged_messages_are_read_as_by_the_general_codec_or_not_at_all() -> None:
    random, read = Random(5), {HEARTBEAT: 0, SHARE_HEARTBEAT: 0}
    for _ in range(scaled(DAMAGED)):
        message = _damaged(random)
        with suppress(ProtocolError):
            header = request_header(message)
            if header.api_key not in read or header.api_version not in codec.versions(header.api_key):
                continue
            short = decoded(message)
            if short is not None:
                read[header.api_key] += 1
                assert msgspec.structs.asdict(short) == by_codec(message), message.hex(" ")
    assert min(read.values()) > scaled(DAMAGED) // 100


def _damaged(random: Random) -> bytes:
    fields = {"group_id": "gruppe-ü", "member_id": "m" * random.choice([0, 36, 130]), "member_epoch": 1}
    key = random.choice([HEARTBEAT, SHARE_HEARTBEAT])
    if key == HEARTBEAT and random.random() < 0.5:
        fields["instance_id"] = "i1"
    message = bytearray(codec.encode_request(key, random.choice(codec.versions(key)), 1, "me", fields))
    at = random.randrange(10, len(message) + 1)
    match random.randrange(3):
        case 0:
            message[at : at + 1] = bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])])
        case 1:
            del message[at:]
        case _:
            message[at:at] = random.randbytes(random.randint(1, 3))
    return bytes(message)
