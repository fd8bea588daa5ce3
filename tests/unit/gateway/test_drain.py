"""A gateway that is stopped answers what is under way, and then ends the connections."""

import asyncio
import gc
import ssl
from collections.abc import Iterator

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.net.connection import Connection
from gateway.security.authentication import ListenerSecurity
from gateway.wire.framing import framed
from kafka_why.contract.kafka.responses import JoinGroupResponse
from kafka_why.contract.messages import ErrorCode
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import HEARTBEAT, JOIN, join_fields
from tests.harness.waiting import until
from tests.unit.gateway.test_pipelining import beat, hold, until_asked
from tests.unit.gateway.test_security import PEM
from tests.unit.gateway.test_server import park

NOT_COORDINATOR = 16


async def ended(client: RawClient) -> bytes:
    """Return what still comes until the gateway ends the connection. The client ends its side then."""
    rest = await client.rest()
    client.writer.close()
    return rest


@played
async def test_drain_closes_idle_connections_and_refuses_new_ones(world: GatewayFixture) -> None:
    client, port = await world.client(), world.gateway.address.port
    await client.ask(HEARTBEAT, 4, **beat())
    draining = asyncio.create_task(world.gateway.drain(10))
    assert await ended(client) == b""
    await draining
    assert world.gateway.connections() == []
    assert not world.gateway.is_listening
    with pytest.raises(ConnectionError):
        await world.client(port)
    assert world.gateway.numbers()["connections_closed"] == {("drained",): [1]}


@pytest.mark.parametrize("tls", [None, ssl.create_default_context(cafile=PEM)], ids=["plain", "TLS"])
@played(security=lambda tls: ListenerSecurity.read(tls and PEM, None, None))
async def test_drain_answers_requests_in_flight_and_ignores_later_ones(
    world: GatewayFixture, tls: ssl.SSLContext | None
) -> None:
    client = await world.client(tls=tls)
    held = hold(world, "slow")
    sent = [await client.send(HEARTBEAT, 4, **beat("slow")) for _ in range(3)]
    await until_asked(world, 3)
    draining = asyncio.create_task(world.gateway.drain(10))
    await until(lambda: world.gateway.is_draining)
    for _ in range(20):
        await client.send(ApiKey.ApiVersions, 0)
    held.set()
    assert [(await client.receive())[0] for _ in sent] == sent
    assert await ended(client) == b""
    await draining
    assert (world.broker.passed, world.gateway.connections()) == ([], [])


@played
async def test_drain_answers_a_parked_join_and_keeps_its_member_id(world: GatewayFixture) -> None:
    client = await world.client()
    member_id = (await client.ask(JOIN, 9, **join_fields())).member_id
    join = await client.send(JOIN, 9, **join_fields(member_id))
    await until_asked(world, 2)
    draining = asyncio.create_task(world.gateway.drain(10))
    number, answer = await client.receive()
    assert (number, answer.error_code) == (join, NOT_COORDINATOR)
    assert await ended(client) == b""
    await draining
    world.core.advance(3_000)  # the coordinator's own answer is dropped


@played
async def test_drain_ends_at_its_timeout_despite_open_requests(world: GatewayFixture) -> None:
    client = await world.client()
    hold(world, "slow")
    await client.send(HEARTBEAT, 4, **beat("slow"))
    await until_asked(world, 1)
    await world.gateway.drain(0.05)
    assert len(world.gateway.connections()) == 1
    await world.gateway.close()
    assert await client.is_closed()


@played
async def test_parked_join_answered_while_the_drain_starts_gets_one_response(world: GatewayFixture) -> None:
    """The coordinator's response is here, and the event loop has not come to it yet."""
    client = await world.client()
    responded: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.core, "send", lambda *_: responded)
        join = await client.send(JOIN, 9, **join_fields("m"))
        await until(lambda: world.gateway.numbers()["parked_bytes"] != {(): [0]})
    (connection,) = world.gateway.connections()
    responded.set_result(
        JoinGroupResponse(group_id="g", correlation_id="1", request="r", error_code=ErrorCode.NONE)
    )
    connection.drain()
    number, answer = await client.receive()
    assert (number, answer.error_code) == (join, NOT_COORDINATOR)
    assert await ended(client) == b""
    await until(lambda: not world.gateway.connections())
    assert world.gateway.numbers()["connections_closed"] == {("drained",): [1]}
    assert world.gateway.numbers()["parked_bytes"] == {(): [0]}


def connections() -> int:
    return sum(isinstance(one, Connection) for one in gc.get_objects())


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """Python's collector counts objects: a few that hold large messages would live for long."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@played
async def test_closed_connection_leaves_no_objects_behind(world: GatewayFixture) -> None:
    before = connections()
    refused, gone = await world.client(), await world.client()
    # A LeaveGroup of version 5 whose group id has no end.
    await refused.send_bytes(framed(bytes.fromhex("000d 0005 00000001 ffff 00") + b"\xff" * 9))
    assert await refused.is_closed()
    await park(world, gone)
    await until(lambda: connections() == before + 1)
    gone.writer.transport.abort()
    await until(lambda: connections() == before)
