"""Offsets over the coordinator's core: existing partitions by name and by id, and the errors of others."""

import asyncio
from uuid import UUID

import pytest

from gateway.apis import topics as topics_module
from tests.harness.gateway import PATIENCE_S, GatewayFixture, played, topic_id
from tests.harness.gateway_requests import (
    COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    commit_fields,
    outcomes,
    topic_partition,
)


@played(upstream_timeout_s=0.3)
async def test_without_a_broker_commits_are_refused(world: GatewayFixture) -> None:
    world.broker.silent = True
    by_id = [{"group_id": "g", "topics": [{"topic_id": topic_id("orders"), "partition_indexes": [0]}]}]
    assert outcomes(await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7)))) == [("orders", 0, 15)]
    deleted = await world.ask(OFFSET_DELETE, 0, group_id="g", topics=[topic_partition("orders")])
    assert deleted.error_code == 15
    assert (await world.ask(OFFSET_FETCH, 10, groups=by_id)).groups[0].error_code == 14
    assert world.core.asked == []


@played
async def test_offsets_of_a_recreated_topic_are_hidden_until_its_first_commit(world: GatewayFixture) -> None:
    await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7), ("orders", 1, 8), ("prices", 0, 9)))
    wanted = [{"name": "orders", "partition_indexes": [0, 1]}]

    async def fetched(topics: object) -> list[tuple[str, int, int]]:
        answer = await world.ask(OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": topics}])
        return [
            (t.name, p.partition_index, p.committed_offset)
            for t in answer.groups[0].topics
            for p in t.partitions
        ]

    assert await fetched(wanted) == [("orders", 0, 7), ("orders", 1, 8)]
    again = UUID(int=7)
    world.broker.ids["orders"] = again
    async with asyncio.timeout(PATIENCE_S):
        while await fetched(wanted) != [("orders", 0, -1), ("orders", 1, -1)]:
            await asyncio.sleep(0.05)  # until the gateway reads the topic's metadata again
    assert await fetched(None) == [("prices", 0, 9)]
    by_id = [{"topic_id": topic, "partition_indexes": [0]} for topic in (topic_id("orders"), again)]
    answer = await world.ask(OFFSET_FETCH, 10, groups=[{"group_id": "g", "topics": by_id}])
    assert outcomes(answer.groups[0]) == [(topic_id("orders"), 0, 100), (again, 0, 0)]
    assert outcomes(await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 2)))) == [("orders", 0, 0)]
    assert await fetched(wanted) == [("orders", 0, 2), ("orders", 1, -1)]
    assert await fetched(None) == [("orders", 0, 2), ("prices", 0, 9)]


@played(upstream_timeout_s=0.3)
async def test_without_a_broker_offsets_are_fetched_by_topic_name(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7)))
    world.broker.silent = True
    monkeypatch.setattr(topics_module, "OFFSETS_AGE_MAX_S", 0.0)  # the cached metadata is too old
    for topics in ([{"name": "orders", "partition_indexes": [0]}], None):
        answer = await world.ask(OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": topics}])
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 7
