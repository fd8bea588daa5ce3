"""TxnOffsetCommit names topics by their ids from version 6 on (KIP-1319)."""

from kafka.protocol.api_key import ApiKey

from state.kafka.requests import TxnOffsetCommit
from tests.harness.gateway import GatewayFixture, played, topic_id
from tests.harness.gateway_requests import outcomes
from tests.unit.gateway.test_transactions import PRODUCER, Brokers

UNKNOWN_TOPIC_OR_PARTITION = 3
UNKNOWN_TOPIC_ID = 100


@played
async def test_topics_are_named_by_their_ids_from_version_6_on(world: GatewayFixture) -> None:
    Brokers().on(world)
    client = await world.client()
    partitions = [
        {"partition_index": 0, "committed_offset": 7},
        {"partition_index": 9, "committed_offset": 7},
    ]
    orders, nobodys = topic_id("orders"), topic_id("nobody's")
    topics = [{"topic_id": found, "partitions": partitions} for found in (orders, nobodys)]
    fields = {**PRODUCER, "group_id": "g", "topics": topics}
    found = outcomes(await client.ask(ApiKey.TxnOffsetCommit, 6, **fields))
    assert set(found) == {
        (orders, 0, 0),
        (orders, 9, UNKNOWN_TOPIC_OR_PARTITION),
        (nobodys, 0, UNKNOWN_TOPIC_ID),
        (nobodys, 9, UNKNOWN_TOPIC_ID),
    }
    (asked,) = world.core.asked
    assert isinstance(asked, TxnOffsetCommit)
    (topic,) = asked.topics
    assert (topic.name, topic.topic_id) == ("orders", orders)
    assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == [(0, 7)]
    assert (asked.api_version, asked.txn_version) == (6, 2)
