"""Large responses pass as they come, and what clients do not read stays at the broker. A drain ends all."""

import asyncio
import gc
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey

from gateway.net.connection import Connection
from gateway.net.limits.buffers import WriteBufferLimit
from gateway.net.stream import HELD_MAX_BYTES
from gateway.security.authentication import ListenerSecurity
from gateway.wire.framing import framed
from kafka_why.contract.kafka.responses import JoinGroupResponse
from kafka_why.contract.messages import ErrorCode
from tests.harness.gateway import HEARTBEAT, JOIN, GatewayFixture, RawClient, join_fields, played
from tests.harness.waiting import until
from tests.unit.gateway.test_security import PEM
from tests.unit.gateway.test_server import beat, hold, park, passed_on, until_asked

MIB = 1024 * 1024
# More than the buffers of all sockets between a broker and a client have.
MUCH = 16 * MIB


async def asked(
    world: GatewayFixture, number: int, tls: ssl.SSLContext | None = None
) -> tuple[RawClient, asyncio.StreamWriter]:
    """Return a client whose request waits at the broker, and the broker's side."""
    world.broker.silent = True
    client, before = await world.client(tls=tls), len(world.broker.passed)
    await client.send_bytes(passed_on(number))
    await until(lambda: len(world.broker.passed) > before)
    return client, world.broker.writers[-1]


def large(number: int, size: int = MUCH) -> bytes:
    return framed(number.to_bytes(4, "big") + b"r" * size)


@played
async def test_large_response_is_streamed_before_it_is_complete(world: GatewayFixture) -> None:
    client, broker = await asked(world, 7)
    response = large(7, 10 * HELD_MAX_BYTES)
    half = len(response) // 2
    broker.write(response[:half])
    async with asyncio.timeout(10):
        assert await client.reader.readexactly(half) == response[:half]
        broker.write(response[half:])
        assert await client.reader.readexactly(len(response) - half) == response[half:]


@pytest.mark.parametrize("tls", [None, ssl.create_default_context(cafile=PEM)], ids=["plain", "TLS"])
@played(security=lambda tls: ListenerSecurity.read(tls and PEM, None, None))
async def test_backpressure_of_a_client_reaches_the_broker(
    world: GatewayFixture, tls: ssl.SSLContext | None
) -> None:
    client, broker = await asked(world, 7, tls)
    response = framed((7).to_bytes(4, "big") + bytes(range(256)) * (MUCH // 256))
    broker.write(response)
    sending = asyncio.create_task(broker.drain())
    await until(lambda: unread(world) > 0)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert 0 < unread(world) <= 4 * HELD_MAX_BYTES
    assert not sending.done()
    async with asyncio.timeout(10):
        assert await client.reader.readexactly(len(response)) == response
    await sending
    await until(lambda: unread(world) == 0)


@played(security=ListenerSecurity.read(PEM, None, None), write_timeout_s=0.5)
async def test_unread_tls_response_counts_and_closes_the_connection(world: GatewayFixture) -> None:
    """It is one that is held whole, a Produce's. TLS has taken all of it at once, and the kernel has not."""
    world.broker.silent = True
    client = await world.client(tls=ssl.create_default_context(cafile=PEM))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send_bytes(framed(bytes.fromhex("0000 0008 00000007 ffff ffff 0001")))
    await until(lambda: world.broker.passed)
    world.broker.writers[-1].write(large(7))
    await until(lambda: unread(world) == MUCH + 8)
    await until(lambda: not world.gateway.connections())
    await until(lambda: not unread(world))


@played(unread_bytes=MIB // 2)
async def test_client_with_most_unread_bytes_is_disconnected_over_the_limit(world: GatewayFixture) -> None:
    slow = []
    for _ in range(20):
        client, broker = await asked(world, 7)
        broker.write(large(7))
        slow.append(client)
    await until(lambda: len(world.gateway.connections()) < 20)
    await until(lambda: unread(world) <= MIB // 2)
    world.broker.silent = False
    other = await world.client()
    await other.ask(ApiKey.ApiVersions, 0)


def unread(world: GatewayFixture) -> float:
    (number,) = world.gateway.numbers()["unread_bytes"][()]
    return number


MOVES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50), st.booleans()), max_size=60)


@given(MOVES, st.integers(1, 100))
def test_clients_with_fewer_unread_bytes_are_not_disconnected_first(
    moves: list[tuple[int, int, bool]], bound: int
) -> None:
    unread = WriteBufferLimit(bound)
    held = dict.fromkeys(range(5), 0)

    def end_of(name: int) -> Any:
        def end(_: Exception) -> None:
            assert held[name] == max(held.values())
            held[name] = 0

        return end

    ends = [end_of(name) for name in held]
    for name, number, is_added in moves:
        if is_added:
            held[name] += number
            unread.add(ends[name], number)
        elif held[name] >= number:
            held[name] -= number
            unread.remove(ends[name], number)
        assert unread.bytes == sum(held.values()) <= bound


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


@pytest.mark.usefixtures("no_collector")
@played
async def test_closed_connection_leaves_no_objects_behind(world: GatewayFixture) -> None:
    before = connections()
    refused, gone = await world.client(), await world.client()
    # A LeaveGroup of version 5 whose group id has no end.
    await refused.send_bytes(framed(bytes.fromhex("000d 0005 00000001 ffff 00") + b"\xff" * 9))
    assert await refused.is_closed()
    await park(world, gone)
    await until(lambda: connections() == before + 1)
    assert world.gateway.numbers()["parked_bytes"] != {(): [0]}
    gone.writer.transport.abort()
    await until(lambda: connections() == before)
    # The cancelled response's callback, which counts the bytes, may run in the next turn of the event loop.
    await until(lambda: (world.core.waiting, world.gateway.numbers()["parked_bytes"]) == (0, {(): [0]}))
