"""The gateway with thousands of idle clients."""

import resource

from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.waiting import until

HEARTBEAT = 12
BEAT = {"group_id": "g", "generation_id": 1, "member_id": "nobody"}
CONNECTIONS = 2_000
MIB = 1_024 * 1_024


@played
async def test_thousands_of_idle_connections_use_little_memory(world: GatewayFixture) -> None:
    steady = await world.client()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    idle: list[RawClient] = [await world.client() for _ in range(CONNECTIONS)]
    for client in idle:
        await client.ask(HEARTBEAT, 4, **BEAT)
    assert (await steady.ask(HEARTBEAT, 4, **BEAT)).error_code == 25
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib * 1_024 < 200 * MIB, "both ends of them are in this process"
    for client in idle:
        client.writer.transport.abort()
    await until(lambda: len(world.gateway.connections()) == 1, 60)
