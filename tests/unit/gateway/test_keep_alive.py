"""The short ways to decode heartbeats have the values of the general codec, for whatever bytes."""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID

import pytest

from gateway.wire import codec
from gateway.wire.framing import ProtocolError, request_header
from gateway.wire.heartbeats import (
    HeartbeatRequest,
    KeepAlive,
    ShareKeepAlive,
    StreamsKeepAlive,
    decode_consumer_heartbeat,
    decode_heartbeat,
    decode_share_heartbeat,
    decode_streams_heartbeat,
)
from tests.harness.examples import scaled

SHORT: dict[int, tuple[Callable[..., Any], Any]] = {
    12: (decode_heartbeat, HeartbeatRequest),
    68: (decode_consumer_heartbeat, KeepAlive),
    76: (decode_share_heartbeat, ShareKeepAlive),
    88: (decode_streams_heartbeat, StreamsKeepAlive),
}
VERSIONS = [(key, version) for key in SHORT for version in codec.versions(key)]
MESSAGES = 12_000
NAMES = ("", "g", "gruppe-ü", "m" * 36, "m" * 130)
# What makes a heartbeat of a member more than a sign of life (row SP23).
NEWS: tuple[dict[str, Any], ...] = (
    {"rack_id": ""},
    {"rebalance_timeout_ms": 0},
    {"subscribed_topic_names": []},
    {"subscribed_topic_names": ["orders"]},
    {"subscribed_topic_regex": ""},
    {"server_assignor": ""},
    {"topic_partitions": []},
    {"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]},
    {"topology": {"epoch": 0, "subtopologies": []}},
    {"active_tasks": []},
    {"standby_tasks": [{"subtopology_id": "0", "partitions": [1]}]},
    {"warmup_tasks": []},
    {"process_id": ""},
    {"user_endpoint": {"host": "h", "port": 40_000}},
    {"client_tags": []},
    {"task_offsets": [{"subtopology_id": "0", "partition": 1, "offset": 2}]},
    {"task_end_offsets": []},
    {"shutdown_application": True},
)


def beat(random: Random, key: int, version: int) -> bytes:
    number, instance_id = random.choice([-1, 1, 2**31 - 1]), random.choice([None, "", "i1"])
    fields: dict[str, Any] = {"group_id": random.choice(NAMES), "member_id": random.choice(NAMES)}
    fields |= {"generation_id": number, "group_instance_id": instance_id}
    fields |= {"endpoint_information_epoch": random.choice([-1, 0, 7])}
    fields |= {"member_epoch": number, "instance_id": instance_id} | random.choice([*NEWS, *[{}] * len(NEWS)])
    wanted = codec.REQUESTS[key](version=version).fields
    return codec.encode_request(
        key, version, 1, "me", {name: fields[name] for name in fields if name in wanted}
    )


def damaged(random: Random, message: bytes) -> bytes:
    """Change something behind the header's fixed part."""
    at = random.randrange(10, max(11, len(message) + 1))
    match random.randrange(4):
        case 0:
            byte = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
            return message[:at] + bytes([byte]) + message[at + 1 :]
        case 1:
            return message[:at]
        case 2:
            return message[:at] + random.randbytes(random.randint(1, 3)) + message[at:]
    return message + random.choice([b"\0", b"\1\0\1x", random.randbytes(4)])


@pytest.mark.examples
def test_heartbeats_are_read_as_by_the_general_codec() -> None:
    random, short, long, refused = Random(3), dict.fromkeys(SHORT, 0), 0, 0
    for _ in range(scaled(MESSAGES)):
        key, version = random.choice(VERSIONS)
        message = beat(random, key, version)
        for _ in range(random.choice([0, 0, 1, 1, 1, 3])):
            message = damaged(random, message)
        decode, record = SHORT[key]
        read: list[Any] = [None, None]
        for number, way in enumerate((decode, codec.decode_request)):
            with suppress(ProtocolError):
                read[number] = way(request_header(message), message)
        values = [one and {name: getattr(one, name) for name in record.__struct_fields__} for one in read]
        assert values[0] == values[1], message.hex(" ")
        short[key] += isinstance(read[0], record)
        refused += read[0] is None
        long += not isinstance(read[0], record | None)
    assert min(*short.values(), long, refused) > scaled(MESSAGES) // 100
