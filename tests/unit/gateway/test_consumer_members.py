"""The consumer protocol (KIP-848) at the gateway: its switch, rights, and what requests tell of topics.

`tests/conformance/scripts/consumer_*.txt` have the answers beside Kafka's.
"""

from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.apis import topics
from gateway.authorization.acls import Operation, ResourceType
from gateway.wire import codec
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat, JoinGroup, RegexResolution
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.protocols.subscriptions import Subscription, TopicPartition, encode_subscription
from tests.harness.gateway import LAYOUT, PATIENCE_S, TOPICS, GatewayFixture, played, topic_id
from tests.harness.gateway_requests import JOIN, join_fields

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
HEARTBEAT, DESCRIBE = 68, 69
ORDERS = {topic_id("orders"): [0, 1, 2]}


def joining(**more: Any) -> dict[str, Any]:
    """Return the fields of a ConsumerGroupHeartbeat that joins group g as member m."""
    fields: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 0}
    fields |= {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
    return fields | {"subscribed_topic_names": ["orders"]} | more


def by_pattern(pattern: str, **more: Any) -> dict[str, Any]:
    return joining(subscribed_topic_names=None, subscribed_topic_regex=pattern, **more)


def assigned(answer: Any) -> dict[Any, list[int]] | None:
    if answer.assignment is None:
        return None
    return {topic.topic_id: sorted(topic.partitions) for topic in answer.assignment.topic_partitions}


def last_asked(world: GatewayFixture) -> ConsumerGroupHeartbeat:
    asked = world.core.asked[-1]
    assert isinstance(asked, ConsumerGroupHeartbeat)
    return asked


def image(topic: str) -> TopicImage:
    return TopicImage(topic_id(topic), TOPICS[topic])


@played
async def test_mi1_heartbeat_with_topic_names_carries_broker_metadata(world: GatewayFixture) -> None:
    """A topic without a leader has an error, and is not called absent. The topic watcher reports it later."""
    world.broker.topic_errors["prices"] = 5
    names = ["orders", "absent", "prices"]
    answer = await world.ask(HEARTBEAT, 1, **joining(subscribed_topic_names=names))
    assert last_asked(world).topics == {"orders": image("orders"), "absent": None}
    assert last_asked(world).regex is None
    assert assigned(answer) == ORDERS
    before = world.broker.metadata_asked
    await world.ask(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=answer.member_epoch)
    assert (last_asked(world).topics, last_asked(world).regex) == (None, None)
    await world.ask(HEARTBEAT, 1, **joining(member_epoch=-1))
    assert last_asked(world).topics is None
    assert world.broker.metadata_asked == before


@played(topics_look_up_s=0.05)
async def test_mi1_mi2_without_brokers_heartbeat_is_forwarded_without_metadata(world: GatewayFixture) -> None:
    world.broker.silent = True
    await world.ask(HEARTBEAT, 1, **joining())
    assert last_asked(world).topics is None
    await world.stop_broker()
    for writer in world.broker.writers:
        writer.close()
    await world.ask(HEARTBEAT, 1, **joining(subscribed_topic_regex="o.*"))
    assert (last_asked(world).topics, last_asked(world).regex) == (None, None)
    protocols = [{"name": "range", "metadata": encode_subscription(Subscription(("orders",)))}]
    assert (await world.ask(JOIN, 9, **join_fields(group_id="h", protocols=protocols))).error_code == 79
    assert last_join(world).topics is None


@pytest.mark.parametrize("exposed", [False, True])
@played(expose_internal_topics=lambda exposed: exposed)
async def test_rx1_and_rx7_a_pattern_is_resolved_without_internal_topics(
    world: GatewayFixture, exposed: bool
) -> None:
    """Without the coordinator's own ones also where clients see them, as for the topic watcher."""
    world.broker.topics |= {"__consumer_offsets": 50, LAYOUT.requests_topic: 1, "marked": 1}
    world.broker.internal.add("marked")
    answer = await world.ask(HEARTBEAT, 1, **by_pattern(".*"))
    regex = last_asked(world).regex
    assert regex is not None
    assert regex.topics == {"orders": image("orders"), "prices": image("prices")}
    assert regex.at_ms > 0
    assert assigned(answer) == ORDERS | {topic_id("prices"): [0]}
    await world.ask(HEARTBEAT, 1, **by_pattern("order", member_id="n"))
    regex = last_asked(world).regex
    assert regex is not None
    assert regex.topics == {}  # the whole name has to match


@played(topics_look_up_s=0.05)
async def test_rx4_slow_pattern_blocks_neither_heartbeat_nor_gateway(world: GatewayFixture) -> None:
    released, client, other = Event(), await world.client(), await world.client()

    def hanging(*_: object) -> RegexResolution:
        released.wait(PATIENCE_S)
        return RegexResolution(at_ms=1, error="late")

    with patch.object(topics, "resolve", hanging):
        try:
            assert (await client.ask(HEARTBEAT, 1, **by_pattern("o.*"))).error_code == 0
            assert last_asked(world).regex is None
            assert (await other.ask(HEARTBEAT, 1, **by_pattern("p.*", member_id="n"))).error_code == 0
            assert last_asked(world).regex is None
        finally:
            released.set()


@played(topics_look_up_s=PATIENCE_S)
async def test_heartbeat_with_too_many_topics_is_refused(world: GatewayFixture) -> None:
    """The coordinator would never get the request, and the client would send it again without end."""
    names = [f"{number:0200}" for number in range(4_000)]
    world.broker.topics |= dict.fromkeys(names, 1)
    refused = await world.ask(HEARTBEAT, 1, **by_pattern("0.*"))
    assert (refused.error_code, bool(refused.error_message)) == (42, True)
    assert (await world.ask(HEARTBEAT, 1, **by_pattern("0*1.*"))).error_code == 0
    before = world.broker.metadata_asked
    assert (await world.ask(HEARTBEAT, 1, **joining(subscribed_topic_names=names))).error_code == 42
    assert world.broker.metadata_asked == before
    assert len(world.core.asked) == 1


def last_join(world: GatewayFixture) -> JoinGroup:
    asked = world.core.asked[-1]
    assert isinstance(asked, JoinGroup)
    return asked


@played(consumer_protocol=False, streams_protocol=False)
async def test_hb1_disabled_consumer_protocol_is_not_offered_and_is_refused(world: GatewayFixture) -> None:
    world.broker.answers[ApiKey.ApiVersions] = {
        "api_keys": [
            {"api_key": key, "min_version": 0, "max_version": 1} for key in (3, HEARTBEAT, DESCRIBE)
        ],
        "supported_features": [{"name": "group.version", "min_version": 0, "max_version": 1}],
    }
    offered = await world.ask(ApiKey.ApiVersions, 4)
    assert not {api.api_key for api in offered.api_keys} & {HEARTBEAT, DESCRIBE}
    assert (offered.supported_features, offered.finalized_features) == ([], [])
    for version in codec.versions(HEARTBEAT):
        assert (await world.ask(HEARTBEAT, version, **joining())).error_code == 35
        (group,) = (await world.ask(DESCRIBE, version, group_ids=["g"])).groups
        assert (group.group_id, group.error_code) == ("g", 35)
    assert world.core.asked == []


@played
async def test_mi2_join_carries_metadata_of_subscribed_and_owned_topics(world: GatewayFixture) -> None:
    """The topics that the member subscribes to, and those it owns partitions of, in any of its protocols."""
    owned = Subscription(("absent",), owned_partitions=(TopicPartition("prices", 0),))
    protocols = [
        {"name": "range", "metadata": encode_subscription(Subscription(("orders",)))},
        {"name": "cooperative-sticky", "metadata": encode_subscription(owned)},
        {"name": "own", "metadata": b"not of this protocol"},
    ]
    await world.ask(JOIN, 9, **join_fields(protocols=protocols))
    asked = last_join(world)
    images = {name: TopicImage(topic_id(name), partitions) for name, partitions in TOPICS.items()}
    assert asked.topics == {**images, "absent": None}
    assert asked.partitions_per_topic == {}


@played(rights=[(Operation.READ, GROUP, "g"), (Operation.DESCRIBE, TOPIC, "orders")])
async def test_hb2_hb3_ad1_ad6_a_group_needs_rights_on_itself_and_its_topics(world: GatewayFixture) -> None:
    refused = await world.ask(HEARTBEAT, 1, **joining(group_id="other"))
    assert (refused.error_code, refused.member_id, refused.assignment) == (30, None, None)
    (group,) = (await world.ask(DESCRIBE, 1, group_ids=["other"])).groups
    assert (group.group_id, group.error_code, group.members) == ("other", 30, [])
    both = joining(subscribed_topic_names=["orders", "prices"])
    assert (await world.ask(HEARTBEAT, 1, **both)).error_code == 29
    assert world.core.asked == []
    assert (await world.ask(HEARTBEAT, 1, **joining())).error_code == 0
    (group,) = (await world.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (group.error_code, len(group.members)) == (0, 1)
    world.allow((Operation.DESCRIBE, GROUP, "g"))
    (group,) = (await world.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (group.error_code, group.group_id, group.group_state, group.members) == (29, "g", "", [])
    assert group.error_message
