"""Connections: order, bounds, and isolation of clients from each other."""

import asyncio

import pytest
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from gateway.net.server import GatewayOptions
from gateway.service import NoSuchReplyPartition, serving
from gateway.upstream.connections import Address
from gateway.wire.framing import framed
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.requests import JoinGroup
from kafka_why.contract.layout import TopicLayout
from tests.harness.gateway import HOST, GatewayFixture, RawClient, played
from tests.harness.gateway_requests import BEAT, HEARTBEAT, JOIN
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


@played(write_timeout_s=0.05)
async def test_client_that_does_not_read_is_disconnected(world: GatewayFixture) -> None:
    client = await world.client()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    with capture_logs() as logs:
        payload = bytes(20 * 1024 * 1024)
        client.writer.write(passed_on(1, payload) + passed_on(2, payload))
        await until(lambda: any("it took none of" in entry.get("why", "") for entry in logs))


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
    with pytest.raises(NoSuchReplyPartition, match=f"reply partition {partition} is not one of 0 to 15"):
        serving(options).__enter__()


@played
async def test_connections_closed_for_garbage_are_logged_once_a_second(world: GatewayFixture) -> None:
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
