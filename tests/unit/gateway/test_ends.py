"""What is left of a connection that has ended: nothing."""

import gc
from collections.abc import Iterator

import pytest

from gateway.net.connection import Connection
from gateway.wire.framing import framed
from tests.harness.gateway import GatewayFixture, played
from tests.harness.waiting import until
from tests.unit.gateway.test_server import park

MALFORMED = framed(bytes.fromhex("000d 0005 00000001 ffff 00") + b"\xff" * 9)
"""A LeaveGroup of version 5 whose group id has no end."""


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """Python's collector counts objects: a few that hold large messages would live for long."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections() -> int:
    return sum(isinstance(one, Connection) for one in gc.get_objects())


@pytest.mark.usefixtures("_no_collector")
@played
async def test_a_connection_that_is_refused_leaves_nothing(world: GatewayFixture) -> None:
    before = connections()
    client = await world.client()
    await client.send_bytes(MALFORMED)
    assert await client.is_closed()
    await until(lambda: connections() == before)


@pytest.mark.usefixtures("_no_collector")
@played
async def test_a_connection_whose_client_goes_leaves_nothing(world: GatewayFixture) -> None:
    before = connections()
    client = await world.client()
    await park(world, client)
    assert connections() == before + 1
    client.writer.transport.abort()
    await until(lambda: connections() == before)
