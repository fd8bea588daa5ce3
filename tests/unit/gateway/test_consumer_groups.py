"""Requests of the consumer protocol (KIP-848) at the gateway: rights, the switch, what is added of topics."""

from kafka.protocol.api_key import ApiKey

from assignors.kafka.api import Subscription, TopicPartition
from assignors.kafka.consumer_protocol import encode_subscription
from gateway.authorization.acls import Operation, ResourceType
from gateway.wire import codec
from state.kafka.requests import JoinGroup
from state.kafka.topic_images import TopicImage
from tests.harness.gateway import TOPICS, GatewayFixture, played, topic_id
from tests.harness.gateway_requests import JOIN, join_fields

HEARTBEAT, DESCRIBE = 68, 69


def joining(**more: object) -> dict[str, object]:
    """The fields of a ConsumerGroupHeartbeat that joins."""
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000}
    return fields | {"subscribed_topic_names": ["orders"], "topic_partitions": []} | more


@played(consumer_protocol=False)
async def test_hb1_while_the_protocol_is_off_it_is_not_offered_and_refused(
    world: GatewayFixture,
) -> None:
    world.broker.answers[ApiKey.ApiVersions] = {
        "api_keys": [
            {"api_key": key, "min_version": 0, "max_version": 1} for key in (3, HEARTBEAT, DESCRIBE)
        ],
        "supported_features": [{"name": "group.version", "min_version": 0, "max_version": 1}],
    }
    client = await world.client()
    offered = await client.ask(ApiKey.ApiVersions, 4)
    assert not {api.api_key for api in offered.api_keys} & {HEARTBEAT, DESCRIBE}
    assert (offered.supported_features, offered.finalized_features) == ([], [])
    for version in codec.versions(HEARTBEAT):
        assert (await client.ask(HEARTBEAT, version, **joining())).error_code == 35
        (group,) = (await client.ask(DESCRIBE, version, group_ids=["g"])).groups
        assert (group.group_id, group.error_code) == ("g", 35)
    assert world.core.asked == []


@played(rights=[(Operation.READ, ResourceType.GROUP, "other")])
async def test_hb2_and_ad1_a_group_needs_read_and_describe(world: GatewayFixture) -> None:
    client = await world.client()
    refused = await client.ask(HEARTBEAT, 1, **joining())
    assert (refused.error_code, refused.member_id, refused.assignment) == (30, None, None)
    (group,) = (await client.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (group.group_id, group.error_code, group.members) == ("g", 30, [])
    assert world.core.asked == []


@played(
    rights=[(Operation.READ, ResourceType.GROUP, "g"), (Operation.DESCRIBE, ResourceType.TOPIC, "orders")]
)
async def test_hb3_each_name_needs_describe(world: GatewayFixture) -> None:
    client = await world.client()
    both = joining(subscribed_topic_names=["orders", "prices"])
    assert (await client.ask(HEARTBEAT, 1, **both)).error_code == 29
    assert world.core.asked == []


@played
async def test_mi2_a_join_says_what_the_brokers_know_of_its_topics(world: GatewayFixture) -> None:
    """The topics that the member subscribes to, and those it owns partitions of, in any of its protocols."""
    owned = Subscription(("absent",), owned_partitions=(TopicPartition("prices", 0),))
    protocols = [
        {"name": "range", "metadata": encode_subscription(Subscription(("orders",)))},
        {"name": "cooperative-sticky", "metadata": encode_subscription(owned)},
        {"name": "own", "metadata": b"not of this protocol"},
    ]
    client = await world.client()
    await client.ask(JOIN, 9, **join_fields(protocols=protocols))
    (asked,) = world.core.asked
    assert isinstance(asked, JoinGroup)
    images = {name: TopicImage(topic_id(name), partitions) for name, partitions in TOPICS.items()}
    assert asked.topics == {**images, "absent": None}
    assert asked.partitions_per_topic == {}


@played
async def test_mi2_a_join_of_another_protocol_type_says_nothing_of_topics(world: GatewayFixture) -> None:
    client = await world.client()
    await client.ask(JOIN, 9, **join_fields(protocol_type="connect"))
    (asked,) = world.core.asked
    assert isinstance(asked, JoinGroup)
    assert asked.topics is None
    assert world.broker.metadata_asked == 1  # at the gateway's start


@played(
    rights=[(Operation.READ, ResourceType.GROUP, "g"), (Operation.DESCRIBE, ResourceType.TOPIC, "orders")]
)
async def test_ad6_a_group_of_a_hidden_topic_is_not_described(world: GatewayFixture) -> None:
    client = await world.client()
    joined = await client.ask(HEARTBEAT, 1, **joining())
    assert joined.error_code == 0
    (group,) = (await client.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (group.error_code, len(group.members)) == (0, 1)
    world.allow((Operation.DESCRIBE, ResourceType.GROUP, "g"))
    (group,) = (await client.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (group.error_code, group.group_id, group.group_state, group.members) == (29, "g", "", [])
    assert group.error_message
