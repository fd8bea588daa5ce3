"""Large JoinGroups and SyncGroups pass at a bounded rate. Other requests do not wait for them."""

import asyncio
from typing import Any

from gateway.net.limits.requests import SMALL_BYTES, LargeRequestRate
from tests.harness.coroutines import asynchronous
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import COMMIT, HEARTBEAT, JOIN, SYNC, commit_fields, join_fields
from tests.harness.waiting import until
from tests.unit.gateway.test_pipelining import beat, nothing_more, until_asked

LARGE = 4 * SMALL_BYTES
SLOW: dict[str, Any] = {"large_bytes_per_s": 1, "large_burst_bytes": LARGE}
"""One large request passes, and the next one not before the end of the test."""


@asynchronous
async def test_small_requests_do_not_wait() -> None:
    flow = LargeRequestRate(1, 1)
    large = [asyncio.create_task(flow.acquire(LARGE)) for _ in range(2)]
    await asyncio.sleep(0)
    assert flow.waiting == 1
    for _ in range(100):
        await flow.acquire(SMALL_BYTES)
    for task in large:
        task.cancel()


async def join(client: RawClient, group_id: str, metadata_bytes: int) -> int:
    protocols = [{"name": "p", "metadata": bytes(metadata_bytes)}]
    fields = {**join_fields(), "group_id": group_id, "protocols": protocols, "protocol_type": "other"}
    return await client.send(JOIN, 3, **fields)


@played(**SLOW)
async def test_waiting_large_joins_of_disconnected_clients_are_dropped(world: GatewayFixture) -> None:
    for number in range(10):
        client = await world.client()
        await join(client, f"large-{number}", LARGE)
        if number == 0:
            await until_asked(world, 1)
        client.writer.transport.abort()
    other = await world.client()
    assert (await other.ask(HEARTBEAT, 3, **beat())).error_code == 25
    await join(other, "small", 100)
    await until_asked(world, 3)
    await until(lambda: world.gateway.numbers()["held_clients"]["flow",] == [0])
    await nothing_more(world, 3)


@played(**SLOW)
async def test_large_requests_of_each_kind_wait_for_their_turn(world: GatewayFixture) -> None:
    client = await world.client()
    await join(client, "large", LARGE)
    await until_asked(world, 1)
    assignments = [{"member_id": "m", "assignment": bytes(LARGE)}]
    other = await world.client()
    await other.send(SYNC, 3, group_id="g", generation_id=1, member_id="m", assignments=assignments)
    other = await world.client()
    offsets = [("orders", number, 0) for number in range(LARGE // 32)]
    await other.send(COMMIT, 8, **commit_fields("", *offsets))
    await until(lambda: world.gateway.numbers()["held_clients"]["flow",] == [2])
    await nothing_more(world, 1)
