"""Several requests of one connection under way: their order, what waits for what, and their bounds."""

import asyncio
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.wire.framing import framed
from state.kafka.requests import Heartbeat, JoinGroup
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LIST,
    OFFSET_FETCH,
    commit_fields,
    join_fields,
    stable,
)
from tests.harness.waiting import until

FIND_COORDINATOR, CONSUMER_GROUP_DESCRIBE = 10, 69
UNKNOWN_MEMBER_ID = 25


def beat(group_id: str = "g") -> dict[str, Any]:
    return {"group_id": group_id, "generation_id": 1, "member_id": "nobody"}


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
    """The correlation ids of the next answers."""
    return [int.from_bytes((await client.receive_bytes())[:4], "big") for _ in range(count)]


def hold(world: GatewayFixture, group_id: str) -> asyncio.Event:
    """Hold the coordinator's responses about a group until the event is set."""
    return world.core.held.setdefault(group_id, asyncio.Event())


@played
async def test_requests_are_under_way_together_and_answered_in_order(world: GatewayFixture) -> None:
    client = await world.client()
    held = hold(world, "slow")
    sent = [await client.send(HEARTBEAT, 4, **beat("slow" if n % 5 == 0 else "quick")) for n in range(100)]
    await until_asked(world, 100)
    assert [r.group_id for r in world.core.asked] == ["slow" if n % 5 == 0 else "quick" for n in range(100)]
    held.set()
    assert await numbers(client, 100) == sent


@played
async def test_requests_reach_the_coordinator_in_order_whatever_is_looked_up_before(
    world: GatewayFixture,
) -> None:
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
async def test_a_parked_request_starts_at_once_and_what_is_behind_it_waits(world: GatewayFixture) -> None:
    client = await world.client()
    held = hold(world, "other")
    sent = [
        await client.send(HEARTBEAT, 4, **beat("other")),
        await client.send(JOIN, 1, **join_fields()),
        await client.send(HEARTBEAT, 4, **beat()),
    ]
    await until_asked(world, 2)
    assert asked(world) == [Heartbeat.__name__, JoinGroup.__name__]
    held.set()
    assert await numbers(client, 1) == sent[:1]
    await nothing_more(world, 2)
    world.core.advance(3_000)
    assert await numbers(client, 2) == sent[1:]


@pytest.mark.parametrize(("api_key", "version"), [(LIST, 4), (ApiKey.ApiVersions, 0)])
@played
async def test_a_list_and_what_is_passed_on_are_alone(
    world: GatewayFixture, api_key: int, version: int
) -> None:
    client = await world.client()
    held = hold(world, "g")
    sent = [
        await client.send(HEARTBEAT, 4, **beat()),
        await client.send(api_key, version),
        await client.send(HEARTBEAT, 4, **beat("h")),
    ]
    await until_asked(world, 1)
    await nothing_more(world, 1)
    assert world.broker.passed == []
    held.set()
    assert await numbers(client, 3) == sent
    assert asked(world)[0] == asked(world)[-1] == Heartbeat.__name__


def about(*group_ids: str) -> list[tuple[int, int, dict[str, Any]]]:
    """A request of each API that may be about several groups."""
    return [
        (DESCRIBE, 5, {"groups": group_ids}),
        (CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": group_ids}),
        (DELETE_GROUPS, 2, {"groups_names": group_ids}),
        (OFFSET_FETCH, 9, {"groups": [{"group_id": name, "topics": None} for name in group_ids]}),
    ]


@played
async def test_descriptions_and_deletions_of_a_group_each_are_under_way_together(
    world: GatewayFixture,
) -> None:
    """As librdkafka sends them: a client that deletes several groups waits no longer than for one."""
    client = await world.client()
    for n in range(len(about("g"))):
        world.core.asked.clear()
        held = hold(world, "g-0")
        held.clear()
        requests = [about(f"g-{group}")[n] for group in range(20)]
        sent = [await client.send(api_key, version, **fields) for api_key, version, fields in requests]
        sent.append(await client.send(HEARTBEAT, 4, **beat("g-0")))
        await until_asked(world, len(sent))
        assert [r.group_id for r in world.core.asked] == [*(f"g-{group}" for group in range(20)), "g-0"]
        held.set()
        assert await numbers(client, len(sent)) == sent


@played
async def test_what_is_behind_a_request_about_several_groups_waits(world: GatewayFixture) -> None:
    """The requests before it do not hold it back: it starts in their order."""
    client = await world.client()
    for api_key, version, fields in about("h", "g"):
        world.core.asked.clear()
        held = hold(world, "g")
        held.clear()
        sent = [
            await client.send(HEARTBEAT, 4, **beat()),
            await client.send(api_key, version, **fields),
            await client.send(HEARTBEAT, 4, **beat("h")),
        ]
        await until_asked(world, 3)
        assert [r.group_id for r in world.core.asked] == ["g", "h", "g"]
        await nothing_more(world, 3)
        held.set()
        assert await numbers(client, 3) == sent
        assert asked(world)[-1] == Heartbeat.__name__


@played
async def test_the_groups_of_a_request_are_asked_about_side_by_side(world: GatewayFixture) -> None:
    """As many as a tool asks about in one request."""
    client = await world.client()
    group_ids = [f"g-{n}" for n in range(300)]
    for api_key, version, fields in about(*group_ids):
        world.core.asked.clear()
        held = hold(world, group_ids[0])
        held.clear()
        sent = await client.send(api_key, version, **fields)
        await until_asked(world, len(group_ids))
        assert [r.group_id for r in world.core.asked] == group_ids
        held.set()
        assert await numbers(client, 1) == [sent]


@played(in_flight_per_connection=3)
async def test_so_many_requests_for_the_coordinator_are_under_way(world: GatewayFixture) -> None:
    client, other = await world.client(), await world.client()
    held = hold(world, "g")
    sent = [await client.send(HEARTBEAT, 4, **beat()) for _ in range(100)]
    await until_asked(world, 3)
    assert (await other.ask(HEARTBEAT, 4, **beat("h"))).error_code == UNKNOWN_MEMBER_ID
    await nothing_more(world, 4)
    held.set()
    assert await numbers(client, 100) == sent


@played(in_flight_bytes_per_connection=100_000)
async def test_so_many_bytes_of_a_connection_are_under_way(world: GatewayFixture) -> None:
    client = await world.client()
    held = hold(world, "g")
    long = {**beat(), "member_id": "m" * 30_000}
    sending = asyncio.create_task(_send_all(client, long, 500))  # 15 MB: more than the sockets hold
    await until_asked(world, 4)
    await nothing_more(world, 4)
    assert not sending.done()
    held.set()
    sent = await sending
    assert await numbers(client, 500) == sent


async def _send_all(client: RawClient, fields: dict[str, Any], count: int) -> list[int]:
    return [await client.send(HEARTBEAT, 4, **fields) for _ in range(count)]


@played(in_flight_bytes_per_connection=1)
async def test_a_request_larger_than_the_bound_is_taken_up_alone(world: GatewayFixture) -> None:
    client = await world.client()
    sent = [await client.send(HEARTBEAT, 4, **beat()) for _ in range(3)]
    assert await numbers(client, 3) == sent


@played
async def test_a_malformed_request_closes_the_connection_after_the_answers_before_it(
    world: GatewayFixture,
) -> None:
    client = await world.client()
    held = hold(world, "g")
    sent = [await client.send(HEARTBEAT, 4, **beat()) for _ in range(3)]
    await client.send_bytes(framed(bytes.fromhex("000c 0004 00000001 ffff 00 7f")))
    await until_asked(world, 3)
    held.set()
    assert await numbers(client, 3) == sent
    assert await client.is_closed()


@played
async def test_a_request_without_an_answer_takes_none_of_those_behind_it_along(world: GatewayFixture) -> None:
    """As on a broker: a request that fails does not keep the requests behind it from being handled."""
    client = await world.client()
    member_id = await stable(world, client)
    alive = {"group_id": "g", "generation_id": 1, "member_id": member_id}
    world.core.away = True
    lost = await client.send(HEARTBEAT, 4, **alive)
    number, answer = await client.receive()
    assert (number, answer.error_code) == (lost, 15)
    held = hold(world, "h")
    world.core.away = False
    sent = [
        await client.send(HEARTBEAT, 4, **beat("h")),
        await client.send(HEARTBEAT, 4, **alive),
        await client.send(COMMIT, 9, **commit_fields(member_id, ("orders", 0, 3))),
    ]
    await until_asked(world, 3)
    held.set()
    answers = [await client.receive() for _ in range(3)]
    assert [number for number, _ in answers] == sent
    assert [answers[0][1].error_code, answers[1][1].error_code] == [UNKNOWN_MEMBER_ID, 0]


@played
async def test_a_client_that_goes_away_with_many_requests_under_way_is_forgotten(
    world: GatewayFixture,
) -> None:
    client = await world.client()
    hold(world, "g")
    for _ in range(100):
        await client.send(HEARTBEAT, 4, **beat())
    await until_asked(world, 100)
    client.writer.transport.abort()
    await until(lambda: not world.core.waiting and not world.gateway.connections())
