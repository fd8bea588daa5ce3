"""What the gateway remembers between its own requests about transactions: coordinators, the markers topic."""

from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.upstream.transactions import OwnRequests, Transactions
from gateway.wire import codec
from kafka_why.contract.layout import TopicLayout
from tests.harness.gateway import NODE_ID, GatewayFixture, played, topic_id

MARKERS = TopicLayout.named().txn_markers_topic
X = 40


@pytest.mark.parametrize(("length", "finds"), [(250, 1), (251, 2)])
@played
async def test_tg8_coordinator_of_a_long_transactional_id_is_not_cached(
    world: GatewayFixture, length: int, finds: int
) -> None:
    """Thousands of ids of 32 KiB would otherwise stay in memory."""
    named, found = "t" * length, []

    def find(request: Any) -> codec.Fields:
        found.append(request.key)
        return {"error_code": 0, "node_id": NODE_ID, "host": "broker.invalid", "port": 9092}

    state = {"error_code": 0, "transactional_id": named, "transaction_state": "Ongoing", "topics": []}
    world.broker.scripts[ApiKey.FindCoordinator] = find
    world.broker.answers[ApiKey.DescribeTransactions] = {"transaction_states": [state]}
    asked = Transactions(world.cluster, TopicLayout.named())
    try:
        for _ in range(2):
            assert (await asked.describe(named)).transactional_id == named
    finally:
        asked.close()
    assert found == [named] * finds


@played
async def test_tg7_end_offset_belongs_to_the_topic_id_returned_with_it(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the end is on its way, the topic is made again, and another request looks it up."""
    real, made_again_id = OwnRequests.ask, topic_id("made again")
    ends = {topic_id(MARKERS): X, made_again_id: 3}
    world.broker.topics[MARKERS] = 1
    world.broker.ids[MARKERS] = topic_id(MARKERS)

    def end(_: Any) -> codec.Fields:
        found = {"partition_index": 0, "error_code": 0, "offset": ends[world.broker.ids[MARKERS]]}
        return {"topics": [{"name": MARKERS, "partitions": [found]}]}

    async def ask(own: OwnRequests, node_id: int | None, api_key: int, *more: Any) -> Any:
        answer = await real(own, node_id, api_key, *more)
        if api_key == ApiKey.ListOffsets and world.broker.ids[MARKERS] != made_again_id:
            world.broker.ids[MARKERS] = made_again_id
            asked.forget_topic()
            assert await asked.position(0) == (made_again_id, 3)
        return answer

    world.broker.scripts[ApiKey.ListOffsets] = end
    monkeypatch.setattr(OwnRequests, "ask", ask)
    asked = Transactions(world.cluster, TopicLayout.named())
    try:
        assert await asked.position(0) == (made_again_id, 3)
    finally:
        asked.close()
