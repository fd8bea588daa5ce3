"""Several requests of one connection under way: their order, what waits for what, and their bounds."""

import asyncio
from typing import Any

from gateway.wire.framing import framed
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import BEAT, COMMIT, HEARTBEAT, OFFSET_FETCH, commit_fields
from tests.harness.waiting import until

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


@played
async def test_disconnected_client_leaves_no_request_waiting(world: GatewayFixture) -> None:
    client = await world.client()
    hold(world, "g")
    for _ in range(100):
        await client.send(HEARTBEAT, 4, **beat())
    await until_asked(world, 100)
    client.writer.transport.abort()
    await until(lambda: not world.core.waiting and not world.gateway.connections())
