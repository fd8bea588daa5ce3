"""An overloaded coordinator: clients wait at their sockets, and get no errors."""

from kafka_why.contract.kafka.requests import JoinGroup
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import HEARTBEAT, JOIN, join_fields
from tests.harness.waiting import until
from tests.unit.gateway.test_pipelining import UNKNOWN_MEMBER_ID, beat, hold, nothing_more, until_asked


async def beating(world: GatewayFixture, count: int) -> list[RawClient]:
    """Return clients that have sent a heartbeat each, one after the other."""
    clients = []
    for number in range(count):
        clients.append(await world.client())
        await clients[-1].send(HEARTBEAT, 4, **beat(f"g{number}"))
        await waits(world, number + 1)
    return clients


async def waits(world: GatewayFixture, requests: int) -> None:
    await until(lambda: sum(connection.unanswered for connection in world.gateway.connections()) >= requests)


@played(at_coordinator=1)
async def test_request_that_may_be_parked_needs_no_capacity(world: GatewayFixture) -> None:
    hold(world, "g0")
    await beating(world, 1)
    client = await world.client()
    await client.send(JOIN, 1, **join_fields())
    await until_asked(world, 2)
    assert isinstance(world.core.asked[1], JoinGroup)


@played(bytes_at_coordinator=50)
async def test_bytes_of_requests_at_the_coordinator_are_limited(world: GatewayFixture) -> None:
    held = [hold(world, f"g{number}") for number in range(5)]
    clients = await beating(world, 5)
    await nothing_more(world, 2)  # of 29 bytes each
    for event in held:
        event.set()
    for client in clients:
        assert (await client.receive())[1].error_code == UNKNOWN_MEMBER_ID
