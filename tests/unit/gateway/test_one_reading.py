"""What the gateway understands of a request is what a broker understands of the same bytes: frames that would
have two meanings, or cost more than they are worth, are refused. See docs/decisions/0028.
"""

import time
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey

from bench.load.flexible import array, compact, varint
from gateway import apis
from gateway.authorization.acls import SUPPORTED, Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.upstream.share_groups import Coordinators
from gateway.wire import codec
from gateway.wire.framing import ProtocolError, RequestHeader, framed, request_header
from kafka_why.contract.layout import is_topic_name
from kafka_why.wire.schema_reader import ELEMENTS_MAX
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
async def test_every_forwarded_request_is_decoded_whoever_sends_it(
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
    asked = world.broker.metadata_asked
    client = await world.client()
    key, version, fields = naming(LONG)
    await client.send(key, version, **fields)
    assert await client.is_closed()
    assert world.broker.metadata_asked == asked


@pytest.mark.parametrize("name", ["x" * 250, "x" * 32_767, "", ".", "..", "a/b", "ü", "a\n"])
@pytest.mark.parametrize("naming", NAMING)
@played
async def test_invalid_topic_name_is_not_looked_up(world: GatewayFixture, naming: Any, name: str) -> None:
    asked = world.broker.metadata_asked
    key, version, fields = naming(name)
    answer = await world.ask(key, version, **fields)
    assert world.broker.metadata_asked == asked
    if key == COMMIT and name:
        assert answer.topics[0].partitions[0].error_code == NO_SUCH
    assert await world.cluster.described([name, ALLOWED], 0.0)  # others go on
    assert list(await world.cluster.topics([name, ALLOWED])) == [ALLOWED]


@given(st.text(max_size=3) | st.text("aZ09._-", min_size=248, max_size=250))
def test_topic_name_rules_are_kafkas(name: str) -> None:
    legal = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert is_topic_name(name) == (0 < len(name) <= 249 and name not in (".", "..") and set(name) <= legal)


@played(rights=READER)
async def test_unauthorized_topic_name_is_not_looked_up(world: GatewayFixture) -> None:
    for naming in (commit, offset_fetch):
        asked = world.broker.metadata_asked
        key, version, fields = naming("others")
        await world.ask(key, version, **fields)
        assert world.broker.metadata_asked == asked


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
    with pytest.raises(ProtocolError, match=f"more than {ELEMENTS_MAX} entries"):
        apis.SERVED[header.api_key].decode(header, message, None)


def test_array_length_beyond_the_message_allocates_no_memory() -> None:
    began = time.process_time()
    for count in (2**31 - 2, 2**31 - 1, 2**32 - 2, 40_000):
        message = request(15, 5, varint(count + 1) + b"\1\0\0")
        with pytest.raises(ProtocolError):
            apis.SERVED[15].decode(request_header(message), message, None)
    assert time.process_time() - began < 0.1
