"""Large responses of brokers: they pass as they come, and what clients do not read stays at the broker."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey

from gateway.net.limits.buffers import WriteBufferLimit
from gateway.net.stream import HELD_MAX_BYTES
from gateway.security.authentication import ListenerSecurity
from gateway.wire.framing import framed
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.waiting import until
from tests.unit.gateway.test_server import passed_on

PEM = Path(__file__).parents[2] / "data" / "gateway.pem"
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
