"""The short ways to decode heartbeats have the values of the general codec, and leave to it what is not an
ordinary heartbeat.
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import codec
from gateway.wire.framing import ProtocolError, request_header
from gateway.wire.heartbeats import (
    HeartbeatRequest,
    KeepAlive,
    ShareKeepAlive,
    decode_consumer_heartbeat,
    decode_heartbeat,
    decode_share_heartbeat,
)
from tests.harness.examples import scaled

CLASSIC, CONSUMER, SHARE = 12, 68, 76
SHORT: dict[int, Callable[..., Any]] = {
    CLASSIC: decode_heartbeat,
    CONSUMER: decode_consumer_heartbeat,
    SHARE: decode_share_heartbeat,
}
FIELDS = {
    CLASSIC: HeartbeatRequest.__struct_fields__,
    CONSUMER: KeepAlive.__struct_fields__,
    SHARE: ShareKeepAlive.__struct_fields__,
}
VERSIONS = [(key, version) for key in SHORT for version in codec.versions(key)]
DAMAGED = 30_000
NEWS: list[tuple[int, dict[str, Any]]] = [
    (CONSUMER, {"rack_id": "r"}),
    (CONSUMER, {"rebalance_timeout_ms": 0}),
    (CONSUMER, {"subscribed_topic_names": []}),
    (CONSUMER, {"subscribed_topic_regex": ""}),
    (CONSUMER, {"server_assignor": ""}),
    (CONSUMER, {"topic_partitions": []}),
    (CONSUMER, {"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]}),
    (SHARE, {"rack_id": ""}),
    (SHARE, {"subscribed_topic_names": []}),
    (SHARE, {"subscribed_topic_names": ["orders"]}),
]


def beat(
    key: int, version: int, group_id: str, member_id: str, number: int, instance_id: str | None
) -> bytes:
    of_classic = {"generation_id": number, "group_instance_id": instance_id}
    of_others = {"member_epoch": number, "instance_id": instance_id}
    fields = {"group_id": group_id, "member_id": member_id, **(of_classic if key == CLASSIC else of_others)}
    wanted = codec.REQUESTS[key](version=version).fields
    fields = {name: value for name, value in fields.items() if name in wanted}
    return codec.encode_request(key, version, 1, "me", fields)


def values(decode: Callable[..., Any], message: bytes) -> dict[str, Any] | None:
    """Return the decoded values, None for a message that is refused."""
    header = request_header(message)
    with suppress(ProtocolError):
        decoded = decode(header, message)
        return {name: getattr(decoded, name) for name in FIELDS[header.api_key]}
    return None


def is_short(message: bytes) -> bool:
    """Return True if a message is decoded without the general codec."""
    header = request_header(message)
    return isinstance(SHORT[header.api_key](header, message), HeartbeatRequest | KeepAlive | ShareKeepAlive)


@given(
    st.sampled_from(VERSIONS),
    st.text(max_size=300),
    st.text(max_size=300),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=20),
)
def test_short_heartbeat_decoder_reads_the_values_of_the_general_codec(
    api: tuple[int, int], group_id: str, member_id: str, number: int, instance_id: str | None
) -> None:
    message = beat(*api, group_id, member_id, number, instance_id)
    read = values(SHORT[api[0]], message)
    assert read is not None
    assert is_short(message)
    assert read == values(codec.decode_request, message)
    assert {group_id, member_id, number} <= {*read.values()}


@pytest.mark.parametrize(("key", "news"), NEWS)
def test_sp23_changed_heartbeat_is_left_to_the_general_codec(key: int, news: dict[str, Any]) -> None:
    version = codec.versions(key)[-1]
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 1, **news}
    message = codec.encode_request(key, version, 1, "me", fields)
    assert not is_short(message)
    assert values(SHORT[key], message) == values(codec.decode_request, message) is not None


@pytest.mark.examples
def test_damaged_heartbeats_are_read_as_by_the_general_codec() -> None:
    random, read, refused = Random(3), dict.fromkeys(SHORT, 0), 0
    for _ in range(scaled(DAMAGED)):
        key, message = _damaged(random)
        with suppress(ProtocolError):
            general = values(codec.decode_request, message)
            assert values(SHORT[key], message) == general, message.hex(" ")
            refused += general is None
            read[key] += general is not None and is_short(message)
    assert min(*read.values(), refused) > scaled(DAMAGED) // 100


def _damaged(random: Random) -> tuple[int, bytes]:
    """Return a message with changes behind its header's fixed part."""
    key, version = random.choice(VERSIONS)
    member_id = "m" * random.choice([0, 3, 36, 130])
    message = bytearray(beat(key, version, "gruppe-ü", member_id, 1, random.choice([None, "i1"])))
    for _ in range(random.choice([1, 1, 1, 3])):
        at = random.randrange(10, max(11, len(message) + 1))
        match random.randrange(4):
            case 0:
                message[at : at + 1] = bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])])
            case 1:
                del message[at:]
            case 2:
                message[at:at] = random.randbytes(random.randint(1, 3))
            case _:
                message += random.choice([b"\0", b"\1\0\1x", random.randbytes(4)])
    return key, bytes(message)
