"""Offsets over the coordinator's core: existing partitions by name and by id, and the errors of others."""

import pytest

from gateway.apis import topics as topics_module
from tests.harness.gateway import GatewayFixture, played, topic_id
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
