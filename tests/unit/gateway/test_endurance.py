"""The gateway under invalid bytes, silence and crowds: others are unharmed, and memory is bounded."""

import asyncio
from random import Random

from structlog.testing import capture_logs

from gateway import apis
from gateway.wire import codec
from gateway.wire.framing import framed
from tests.harness.gateway import GatewayFixture, played
from tests.harness.waiting import until

HEARTBEAT = 12
BEAT = {"group_id": "g", "generation_id": 1, "member_id": "nobody"}


def damaged(random: Random) -> bytes:
    """A request of a served API, with some bytes changed, cut off or added."""
    api_key = random.choice(sorted(apis.SERVED))
    version = random.choice(list(codec.versions(api_key)))
    message = bytearray(codec.encode_request(api_key, version, 1, "me", {}))
    for _ in range(random.randint(1, 4)):
        match random.randrange(3):
            case 0:
                message[random.randrange(len(message))] = random.randrange(256)
            case 1:
                del message[random.randrange(8, len(message) + 1) :]
            case _:
                message += random.randbytes(random.randint(1, 20))
    return bytes(message)


@played
async def test_rubbish_on_many_connections_harms_nobody_else(world: GatewayFixture) -> None:
    random = Random(7)
    steady = await world.client()
    for _ in range(100):
        client = await world.client()
        await client.send_bytes(framed(damaged(random)) + random.randbytes(30))
        client.writer.close()
        assert (await steady.ask(HEARTBEAT, 4, **BEAT)).error_code == 25
    await until(lambda: len(world.gateway.connections()) == 1)


@played
async def test_connections_that_end_by_rubbish_are_one_log_line_a_second(world: GatewayFixture) -> None:
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


@played
async def test_a_half_open_connection_holds_nobody_up(world: GatewayFixture) -> None:
    """One client sends only the beginning of a frame, another sends nothing."""
    begun, silent, steady = await world.client(), await world.client(), await world.client()
    await begun.send_bytes((1_000).to_bytes(4, "big") + b"\x00\x0c")
    assert (await steady.ask(HEARTBEAT, 4, **BEAT)).error_code == 25
    assert len(world.gateway.connections()) == 3
    for client in (begun, silent):
        client.writer.transport.abort()
    await until(lambda: len(world.gateway.connections()) == 1)
