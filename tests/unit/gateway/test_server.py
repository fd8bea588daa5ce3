"""Connections: order, pipelined requests, bounds, and isolation of clients from each other."""

import asyncio
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from gateway.net.server import GatewayOptions
from gateway.service import serving
from gateway.upstream.connections import Address
from gateway.wire.framing import framed
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.requests import JoinGroup
from kafka_why.contract.layout import TopicLayout
from kafka_why.errors import UserFacingError
from tests.harness.gateway import (
    BEAT,
    COMMIT,
    HEARTBEAT,
    HOST,
    JOIN,
    OFFSET_FETCH,
    GatewayFixture,
    RawClient,
    commit_fields,
    join_fields,
    played,
)
from tests.harness.waiting import until


async def park(world: GatewayFixture, client: RawClient) -> int:
    """Send a JoinGroup that is not answered before time advances. Return its correlation id."""
    number = await client.send(
        JOIN,
        1,
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    await world.core.wait_for(lambda: any(isinstance(r, JoinGroup) for r in world.core.asked))
    return number


async def join(client: RawClient, group_id: str, metadata_bytes: int) -> int:
    """Send a JoinGroup about a group of its own, with metadata of this size. Return its correlation id."""
    protocols = [{"name": "range", "metadata": bytes(metadata_bytes)}]
    fields = join_fields(group_id=group_id, protocols=protocols, protocol_type="other")
    return await client.send(JOIN, 3, **fields)


def passed_on(number: int, payload: bytes = b"") -> bytes:
    """Return a request of the forwarded API, as a frame."""
    return framed(bytes.fromhex("0002 0001") + number.to_bytes(4, "big") + b"\xff\xff" + payload)


@played
async def test_coordinator_request_waits_for_earlier_broker_requests(world: GatewayFixture) -> None:
    client = await world.client()
    world.broker.open.clear()
    await client.send_bytes(passed_on(71) + passed_on(72))
    beat = await client.send(HEARTBEAT, 4, **BEAT)
    await until(lambda: world.broker.passed)
    assert world.core.asked == []
    world.broker.open.set()
    answers = [await client.receive_bytes() for _ in range(3)]
    assert [int.from_bytes(a[:4], "big") for a in answers] == [71, 72, beat]


@played
async def test_a_produce_without_acks_has_no_answer(world: GatewayFixture) -> None:
    client = await world.client()
    await client.send(ApiKey.Produce, 9, acks=0, topic_data=[])
    versions = await client.send(ApiKey.ApiVersions, 0)
    assert (await client.receive())[0] == versions
    assert [header.api_key for header in world.broker.passed] == [ApiKey.Produce, ApiKey.ApiVersions]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (bytes.fromhex("80000000"), "a frame of -2147483648 bytes"),
        (bytes.fromhex("7fffffff"), "a frame of 2147483647 bytes"),
        (framed(b"GET / HTTP/1.1\r\n"), "a client id of"),
        (framed(bytes.fromhex("000c 0004 00000001 0002 61")), "a client id of 2 bytes"),
        (framed(bytes.fromhex("000c 0004 00000001 0001 ff 00")), "a client id that is not UTF-8"),
        (framed(bytes.fromhex("0000 0009 00000001 ffff 00 01 ff")), "a Produce that ends before its acks"),
        (framed(b""), "has no header"),
        (framed(bytes.fromhex("000c 0004 00000001 ffff 00 7f")), "not a HeartbeatRequest v4"),
        (framed(bytes.fromhex("000c 0063 00000001 ffff 00")), "api 12 version 99 is not served"),
        (
            framed(bytes.fromhex("000b 0009 00000001 ffff") + bytes(3 * 1024 * 1024)),
            "not a JoinGroupRequest v9",
        ),
    ],
)
@played
async def test_malformed_frame_ends_only_its_connection(world: GatewayFixture, sent: bytes, why: str) -> None:
    bad, good = await world.client(), await world.client()
    with capture_logs() as logs:
        bad.writer.write(sent)
        assert await bad.is_closed()
    (entry,) = [entry for entry in logs if entry["event"] == "a connection was closed"]
    assert why in entry["why"]
    assert entry["client"] == HOST
    assert (await good.ask(HEARTBEAT, 4, **BEAT)).error_code == 25


@played(forwarded=2)
async def test_broker_requests_in_flight_of_all_clients_are_limited(world: GatewayFixture) -> None:
    clients = [await world.client() for _ in range(5)]
    world.broker.open.clear()
    for number, client in enumerate(clients):
        await client.send_bytes(passed_on(number))
    await until(lambda: len(world.broker.passed) == 2)
    clients[world.broker.passed[0].correlation_id].writer.transport.abort()  # makes room for another client
    await until(lambda: len(world.broker.passed) == 3)
    world.broker.open.set()
    for number, client in enumerate(clients):
        if number != world.broker.passed[0].correlation_id:
            assert await client.receive_bytes() == number.to_bytes(4, "big")


@played(idle_timeout_s=0.5)
async def test_idle_connection_is_closed_but_not_one_with_a_parked_request(world: GatewayFixture) -> None:
    idle, waiting = await world.client(), await world.client()
    join = await park(world, waiting)
    assert await idle.is_closed()
    world.core.advance(3_000)
    assert (await waiting.receive())[0] == join


@played
async def test_lost_broker_connection_closes_clients_waiting_for_it(world: GatewayFixture) -> None:
    waiting, idle = await world.client(), await world.client()
    await idle.ask(ApiKey.ApiVersions, 0)
    world.broker.open.clear()
    await waiting.send_bytes(passed_on(1))
    await until(lambda: len(world.broker.passed) == 2)
    with capture_logs() as logs:
        for writer in world.broker.writers:
            writer.transport.abort()
        assert await waiting.is_closed()
    assert "the broker at" in logs[0]["why"]
    # A client without a request under way does not notice.
    world.broker.open.set()
    await idle.ask(ApiKey.ApiVersions, 0)


@pytest.mark.parametrize("partition", [-1, 16])
def test_missing_reply_partition_is_refused(partition: int) -> None:
    options = GatewayOptions(
        ClientConfig("nowhere:1"), TopicLayout.named(), Address(HOST, 0), reply_partition=partition
    )
    with pytest.raises(UserFacingError, match=f"reply partition {partition} is not one of 0 to 15"):
        serving(options).__enter__()


@played
async def test_connections_closed_for_malformed_data_are_logged_once_a_second(world: GatewayFixture) -> None:
    loop, closed = asyncio.get_running_loop(), 300
    with capture_logs() as logs:
        began_s = loop.time()
        for _ in range(closed):
            client = await world.client()
            await client.send_bytes(framed(b"GET / HTTP/1.1\r\n"))
            assert await client.is_closed()
        await until(lambda: sum(entry["connections"] for entry in logs) >= closed)
        took_s = loop.time() - began_s
    assert sum(entry["connections"] for entry in logs) == closed
    assert {entry["event"] for entry in logs} == {"a connection was closed"}
    assert len(logs) <= 2 + took_s
    assert "a client id of" in logs[-1]["why"]


FIND_COORDINATOR, CONSUMER_GROUP_DESCRIBE = 10, 69
UNKNOWN_MEMBER_ID = 25


def beat(group_id: str = "g") -> dict[str, Any]:
    return BEAT | {"group_id": group_id}


def asked(world: GatewayFixture) -> list[str]:
    return [type(request).__name__ for request in world.core.asked]


async def until_asked(world: GatewayFixture, number: int) -> None:
    await world.core.wait_for(lambda: len(world.core.asked) >= number)


async def nothing_more(world: GatewayFixture, number: int) -> None:
    """Check that the core has this many requests, and gets no more without further events."""
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert len(world.core.asked) == number


async def numbers(client: RawClient, count: int) -> list[int]:
    """Return the correlation ids of the next answers."""
    return [int.from_bytes((await client.receive_bytes())[:4], "big") for _ in range(count)]


def hold(world: GatewayFixture, group_id: str) -> asyncio.Event:
    """Hold the coordinator's responses about a group until the event is set."""
    return world.core.held.setdefault(group_id, asyncio.Event())


@played
async def test_requests_reach_the_coordinator_in_order_despite_topic_lookups(world: GatewayFixture) -> None:
    """A commit and a fetch look topics up at the broker, a fetch of several groups has several requests."""
    client = await world.client()
    held = hold(world, "g")
    fetched = [{"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}]
    several = [*fetched, {"group_id": "h", "topics": None}]
    sent = [
        await client.send(COMMIT, 9, **commit_fields("", ("orders", 0, 1))),
        await client.send(HEARTBEAT, 4, **beat()),
        await client.send(COMMIT, 9, **commit_fields("", ("prices", 0, 2))),
        await client.send(FIND_COORDINATOR, 4, coordinator_keys=["g"], key_type=0),
        await client.send(OFFSET_FETCH, 9, groups=fetched),
        await client.send(HEARTBEAT, 3, **beat()),
        await client.send(OFFSET_FETCH, 9, groups=several),
        await client.send(HEARTBEAT, 4, **beat()),
    ]
    before = ["OffsetCommit", "Heartbeat", "OffsetCommit", "OffsetFetch", "Heartbeat"]
    await until_asked(world, len(before) + 2)
    assert asked(world) == [*before, "OffsetFetch", "OffsetFetch"]
    await nothing_more(world, len(before) + 2)  # the last heartbeat waits for both groups of the fetch
    held.set()
    assert await numbers(client, len(sent)) == sent
    assert asked(world)[-1] == "Heartbeat"


@played
async def test_malformed_request_closes_the_connection_after_earlier_answers(world: GatewayFixture) -> None:
    client = await world.client()
    held = hold(world, "g")
    sent = [await client.send(HEARTBEAT, 4, **beat()) for _ in range(3)]
    await client.send_bytes(framed(bytes.fromhex("000c 0004 00000001 ffff 00 7f")))
    await until_asked(world, 3)
    held.set()
    assert await numbers(client, 3) == sent
    assert await client.is_closed()
