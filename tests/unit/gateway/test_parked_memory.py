"""Memory of requests that the coordinator parks, and of those that it could not answer."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.limits.requests import ParkedMemoryLimit
from gateway.wire.framing import STRING_MAX_BYTES
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    OFFSET_FETCH,
    SYNC,
    commit_fields,
    join_fields,
)
from tests.harness.waiting import until
from tests.unit.gateway.test_pipelining import beat, nothing_more, until_asked

CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE, ALTER_CONFIGS = 68, 69, 33
COORDINATOR_NOT_AVAILABLE = 15
LONGEST = "g" * STRING_MAX_BYTES
TOO_LONG = ["g" * (STRING_MAX_BYTES + 1), "é" * (STRING_MAX_BYTES // 2 + 1)]


def about(group_id: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Return a request of each API whose requests are about groups, in a version that has lengths as
    varints.
    """
    beaten = {"group_id": group_id, "generation_id": 1, "member_id": "m"}
    group = [{"resource_type": 32, "resource_name": group_id, "configs": []}]
    return [
        (JOIN, 9, join_fields(group_id=group_id)),
        (SYNC, 5, {**beaten, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}),
        (HEARTBEAT, 4, beaten),
        (LEAVE, 5, {"group_id": group_id, "members": [{"member_id": "m"}]}),
        (COMMIT, 9, {**commit_fields("", ("orders", 0, 1)), "group_id": group_id}),
        (OFFSET_FETCH, 7, {"group_id": group_id, "topics": None}),
        (OFFSET_FETCH, 9, {"groups": [{"group_id": group_id, "topics": None}]}),
        (DESCRIBE, 5, {"groups": [group_id]}),
        (DESCRIBE, 5, {"groups": [group_id, group_id]}),
        (CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": [group_id]}),
        (DELETE_GROUPS, 2, {"groups_names": [group_id]}),
        (CONSUMER_GROUP_HEARTBEAT, 1, {"group_id": group_id, "member_id": "m", "member_epoch": 0}),
        (ALTER_CONFIGS, 2, {"resources": group}),
    ]


@pytest.mark.parametrize("group_id", TOO_LONG)
@pytest.mark.parametrize("kind", range(len(about(""))))
@played
async def test_group_id_over_kafkas_limit_does_not_reach_the_coordinator(
    world: GatewayFixture, kind: int, group_id: str
) -> None:
    """The coordinator could not read whom to answer. The frame is refused."""
    api_key, version, fields = about(group_id)[kind]
    with pytest.raises(asyncio.IncompleteReadError):
        await world.ask(api_key, version, **fields)
    assert world.core.asked == []


@played
async def test_group_id_at_kafkas_limit_is_served(world: GatewayFixture) -> None:
    assert (await world.ask(HEARTBEAT, 4, **beat(LONGEST))).error_code == 25
    assert [request.group_id for request in world.core.asked] == [LONGEST]


async def parked(world: GatewayFixture, group_id: str, metadata_bytes: int) -> tuple[RawClient, int]:
    """As `join`, when it is parked."""
    before = len(world.core.asked)
    client, number = await join(world, group_id, metadata_bytes)
    await until_asked(world, before + 1)
    return client, number


async def join(world: GatewayFixture, group_id: str, metadata_bytes: int) -> tuple[RawClient, int]:
    """Return a client that has sent a JoinGroup about a group of its own."""
    client = await world.client()
    protocols = [{"name": "range", "metadata": b"m" * metadata_bytes}]
    fields = {**join_fields(), "group_id": group_id, "protocols": protocols, "protocol_type": "other"}
    return client, await client.send(JOIN, 3, **fields)


@played(parked_bytes=100_000)
async def test_largest_parked_request_is_evicted_when_memory_runs_out(world: GatewayFixture) -> None:
    members = [await parked(world, f"g-{n}", 1_000) for n in range(50)]
    attacker, number = await join(world, "large", 60_000)
    answered, answer = await attacker.receive()
    assert (answered, answer.error_code) == (number, COORDINATOR_NOT_AVAILABLE)
    await nothing_more(world, 50)
    world.core.advance(3_000)
    for client, number in members:
        answered, answer = await client.receive()
        assert (answered, answer.error_code) == (number, 0)


@played
async def test_parked_request_is_removed_when_its_connection_closes(world: GatewayFixture) -> None:
    client, _ = await parked(world, "g", 1_000)
    (counted,) = world.gateway.numbers()["parked_bytes"][()]
    assert counted > 1_000
    client.writer.transport.abort()
    await until(lambda: not world.core.waiting)
    await until(lambda: world.gateway.numbers()["parked_bytes"] == {(): [0]})


SIZES = st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=60)


@given(SIZES, st.integers(1, 1_000))
def test_request_not_above_the_mean_is_not_evicted(sizes: list[tuple[int, bool]], bound: int) -> None:
    parked = ParkedMemoryLimit(bound)
    here: dict[int, tuple[int, int]] = {}

    def enter(name: int, size: int) -> None:
        def give_up() -> None:
            assert here[name][1] > bound / len(here)
            parked.remove(here.pop(name)[0])

        here[name] = parked.add(size, give_up), size

    for name, (size, leaves) in enumerate(sizes):
        enter(name, size)
        parked.shrink()
        if leaves and here:
            parked.remove(here.pop(next(iter(here)))[0])
        assert parked.bytes == sum(size for _, size in here.values()) <= bound


@played
async def test_subscription_too_large_for_a_record_is_refused(world: GatewayFixture) -> None:
    names = [f"{n:030}" for n in range(12_000)]
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": names}
    answer = await world.ask(CONSUMER_GROUP_HEARTBEAT, 1, **fields)
    assert answer.error_code == 42
    assert world.core.asked == []
