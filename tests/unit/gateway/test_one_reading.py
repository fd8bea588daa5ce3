"""What the gateway understands of a request is what a broker understands of the same bytes: frames that would
have two meanings, or cost more than they are worth, are refused. See docs/decisions/0028.
"""

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from random import Random
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey

from bench.load.flexible import array, compact, varint
from gateway import apis
from gateway.apis import SERVED
from gateway.apis.context import LastHeartbeat
from gateway.authorization.acls import SUPPORTED, Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.upstream.share_groups import Coordinators
from gateway.wire import codec
from gateway.wire.framing import FrameBuffer, ProtocolError, RequestHeader, framed, request_header
from kafka_why.contract.layout import is_topic_name
from kafka_why.wire.schema_reader import ELEMENTS_MAX
from tests.harness.examples import scaled
from tests.harness.gateway import GatewayFixture, Right, acls, played
from tests.harness.share_frames import features

ME = "User:ANONYMOUS"
ALLOWED = "orders"
COMMIT, OFFSET_FETCH, HEARTBEAT, LEAVE = 8, 9, 68, 13
LONG = "x" * 40_000
NO_SUCH = 3
UNKNOWN_TAG = b"\1\x09\0"  # one, with the number 9 and no bytes


READER: list[Right] = [
    (Operation.READ, ResourceType.TOPIC, ALLOWED),
    (Operation.READ, ResourceType.GROUP, "g"),
]


def everything() -> Authorizer:
    made = Authorizer()
    made.replace(acls((Operation.ALL, kind, "*") for kind in SUPPORTED))
    return made


@pytest.mark.parametrize("who", [everything, lambda: Authorizer([ME])], ids=["allowed", "super user"])
@played(authorizer=lambda who: who, share_groups=Coordinators.BROKERS, versions=features(1))
async def test_every_forwarded_request_is_decoded_for_every_client(
    world: GatewayFixture, who: Callable[[], Authorizer]
) -> None:
    """Where ACLs are checked. A byte is behind the end of the request."""
    for key in (key for key in apis.PASSED if key in codec.REQUESTS):
        for version in codec.versions(key):
            client = await world.client()
            await client.send_bytes(framed(codec.encode_request(key, version, 1, "me", {}) + b"x"))
            assert await client.is_closed(), (ApiKey(key), version)
    assert not world.broker.passed


def commit(topic: str) -> tuple[int, int, dict[str, Any]]:
    partition = {"partition_index": 0, "committed_offset": 1}
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    return COMMIT, 9, {**fields, "topics": [{"name": topic, "partitions": [partition]}]}


def offset_fetch(topic: str) -> tuple[int, int, dict[str, Any]]:
    wanted = {"group_id": "g", "topics": [{"name": topic, "partition_indexes": [0]}]}
    return OFFSET_FETCH, 8, {"groups": [wanted]}


def heartbeat(topic: str) -> tuple[int, int, dict[str, Any]]:
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000}
    return HEARTBEAT, 1, {**fields, "topic_partitions": [], "subscribed_topic_names": [topic]}


NAMING = [commit, offset_fetch, heartbeat]


@pytest.mark.parametrize("naming", NAMING)
@played
async def test_name_over_the_string_limit_closes_only_its_own_connection(
    world: GatewayFixture, naming: Any
) -> None:
    asked = world.broker.metadata_requests
    client = await world.client()
    key, version, fields = naming(LONG)
    await client.send(key, version, **fields)
    assert await client.is_closed()
    assert world.broker.metadata_requests == asked


@pytest.mark.parametrize("name", ["x" * 250, "x" * 32_767, "", ".", "..", "a/b", "ü", "a\n"])
@pytest.mark.parametrize("naming", NAMING)
@played
async def test_invalid_topic_name_is_not_looked_up(world: GatewayFixture, naming: Any, name: str) -> None:
    asked = world.broker.metadata_requests
    key, version, fields = naming(name)
    answer = await world.ask(key, version, **fields)
    assert world.broker.metadata_requests == asked
    if key == COMMIT and name:
        assert answer.topics[0].partitions[0].error_code == NO_SUCH
    assert await world.cluster.describe_topics([name, ALLOWED], 0.0)  # others go on
    assert list(await world.cluster.topics([name, ALLOWED])) == [ALLOWED]


@given(st.text(max_size=3) | st.text("aZ09._-", min_size=248, max_size=250))
def test_topic_name_rules_are_kafkas(name: str) -> None:
    legal = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert is_topic_name(name) == (0 < len(name) <= 249 and name not in (".", "..") and set(name) <= legal)


@played(rights=READER)
async def test_unauthorized_topic_name_is_not_looked_up(world: GatewayFixture) -> None:
    for naming in (commit, offset_fetch):
        asked = world.broker.metadata_requests
        key, version, fields = naming("others")
        await world.ask(key, version, **fields)
        assert world.broker.metadata_requests == asked


def request(api_key: int, version: int, body: bytes) -> bytes:
    """Return a request of a flexible version, without the frame's size."""
    return pack(">hhih", api_key, version, 1, 2) + b"me" + b"\0" + body


def leave(members: int, section: bytes) -> bytes:
    one = compact(b"m" * 60) + b"\0" + b"\0" + section
    return request(LEAVE, 5, compact(b"g") + array(*([one] * members)) + b"\0")


def read_s(message: bytes) -> float:
    """Processor time of reading a message, the least of a few."""
    header: RequestHeader = request_header(message)
    taken = []
    for _ in range(3):
        began = time.process_time()
        codec.decode_request(header, message)
        taken.append(time.process_time() - began)
    return min(taken)


def test_decoding_time_is_linear_in_bytes_despite_many_tags() -> None:
    plain, tagged = (read_s(leave(ELEMENTS_MAX // 2, section)) for section in (b"\0", UNKNOWN_TAG))
    assert tagged < 5 * plain  # 60 times the time, if each tag section copied the rest


@pytest.mark.parametrize("entry", [b"", UNKNOWN_TAG])
def test_number_of_entries_in_a_request_is_limited(entry: bytes) -> None:
    message = leave(ELEMENTS_MAX + 1, entry or b"\0")
    header = request_header(message)
    with pytest.raises(ProtocolError, match="entries more than the limit"):
        apis.SERVED[header.api_key].decode(header, message, None)


def test_array_length_beyond_the_message_allocates_no_memory() -> None:
    began = time.process_time()
    for count in (2**31 - 2, 2**31 - 1, 2**32 - 2, 40_000):
        message = request(15, 5, varint(count + 1) + b"\1\0\0")
        with pytest.raises(ProtocolError):
            apis.SERVED[15].decode(request_header(message), message, None)
    assert time.process_time() - began < 0.1


HEARTBEATS = [key for key, api in SERVED.items() if api.is_heartbeat]
VERSIONS = [(key, version) for key in HEARTBEATS for version in codec.versions(key)]
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
    """Return the message with a change after the header's fixed part."""
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


def decoded(request: Any) -> Any:
    """Return a request as built-in values, because each decoding makes an object of its own."""
    return None if request is None else request.to_dict()


@pytest.mark.examples
def test_shortcut_for_repeated_heartbeats_decodes_as_the_general_codec() -> None:
    random, last, repeated, refused, sent = Random(3), LastHeartbeat(), 0, 0, list[tuple[int, bytes]]()
    for _ in range(scaled(MESSAGES)):
        if not sent or random.random() < 0.5:
            key, version = random.choice(VERSIONS)
            message = beat(random, key, version)
            for _ in range(random.choice([0, 0, 1, 1, 1, 3])):
                message = damaged(random, message)
            sent = [*sent[-2:], (key, message)]
        key, message = random.choice(sent)
        before, request, wanted = last.request, None, None
        with suppress(ProtocolError):
            request = SERVED[key].decode_at_once(request_header(message), message, last)
        with suppress(ProtocolError):
            wanted = codec.decode_request(request_header(message), message)
        assert decoded(request) == decoded(wanted), message.hex(" ")
        repeated += request is not None and request is before
        refused += request is None
    assert min(repeated, refused) > scaled(MESSAGES) // 100


def test_long_heartbeats_are_not_cached() -> None:
    last = LastHeartbeat()
    message = codec.encode_request(
        12, 4, 1, "me", {"group_id": "g" * 600, "generation_id": 1, "member_id": "m"}
    )
    request = SERVED[12].decode_at_once(request_header(message), message, last)
    assert (request.group_id, last) == ("g" * 600, LastHeartbeat())


MAX_BYTES = 64
messages = st.lists(st.binary(max_size=MAX_BYTES), max_size=8)


@given(messages, st.data())
def test_frames_are_reassembled_from_any_fragmentation(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, sent))
    buffer, received, at = FrameBuffer(MAX_BYTES), [], 0
    while at < len(stream):
        end = data.draw(st.integers(at + 1, len(stream)))
        received += buffer.feed(stream[at:end])
        at = end
    assert received == sent
    assert not buffer.has_partial


@pytest.mark.parametrize("piece_bytes", [1, 100, 16_384, 20_000, 70_000, 400_000])
def test_large_frames_are_reassembled_from_pieces(piece_bytes: int) -> None:
    sent = [Random(number).randbytes(size) for number, size in enumerate((150_000, 3, 0, 65_532, 90_000))]
    stream = b"".join(map(framed, sent))
    buffer, received = FrameBuffer(2**20), []
    for at in range(0, len(stream), piece_bytes):
        received += buffer.feed(stream[at : at + piece_bytes])
    assert received == sent
    assert all(type(frame) is bytes for frame in received)


def test_frame_received_byte_by_byte_takes_little_more_memory_than_its_size() -> None:
    size = 2**18
    buffer, byte = FrameBuffer(size), b"x"
    buffer.feed(framed(bytes(size))[:4])
    tracemalloc.start()
    for _ in range(size - 1):
        buffer.feed(byte)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes < 1.5 * size


@given(st.integers(-(2**31), -1) | st.integers(MAX_BYTES + 1, 2**31 - 1))
def test_invalid_frame_size_is_refused_before_the_frame_is_received(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):
        FrameBuffer(MAX_BYTES).feed(pack(">i", size))
