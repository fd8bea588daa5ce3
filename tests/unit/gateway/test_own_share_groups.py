"""Share groups (KIP-932) of this project's coordinator, at the gateway: `--share-groups coordinator`."""

from kafka.protocol.api_key import ApiKey

from gateway.authorization.acls import ResourceType
from gateway.wire import codec
from state.kafka.share_requests import ShareGroupHeartbeat
from tests.harness.gateway import LAYOUT, NODE_ID, TOPICS, GatewayFixture, RawClient, played, topic_id
from tests.harness.share_frames import (
    ALTER_OFFSETS,
    DELETE_OFFSETS,
    DESCRIBE,
    FETCH,
    HEARTBEAT,
    SOFTWARE,
    beat,
    finds_share_groups,
)
from tests.unit.gateway.test_consumer_members import image

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
INVALID_REQUEST, TOPIC_DENIED, GROUP_DENIED, NON_EMPTY_GROUP, NOT_FOUND = 42, 29, 30, 68, 69
INVALID_GROUP_ID = 24


async def assigned(world: GatewayFixture, client: RawClient, group_id: str = "g") -> int:
    """A member that has all partitions of the topic `orders`. Returns its epoch."""
    first = await client.ask(HEARTBEAT, 1, **beat(group_id, ["orders"]))
    assert first.error_code == 0
    world.core.carry_out_tasks(group_id)
    world.core.advance(1_000)
    second = await client.ask(HEARTBEAT, 1, **beat(group_id) | {"member_epoch": first.member_epoch})
    (topic,) = second.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (topic_id("orders"), list(range(TOPICS["orders"])))
    return int(second.member_epoch)


def last_beat(world: GatewayFixture) -> ShareGroupHeartbeat:
    asked = world.core.asked[-1]
    assert isinstance(asked, ShareGroupHeartbeat)
    return asked


@played
async def test_a_member_of_a_share_group_is_the_coordinators(world: GatewayFixture) -> None:
    """What a member says reaches the coordinator with what the brokers know of its topics (row SP1)."""
    client = await finds_share_groups(world)
    epoch = await assigned(world, client)
    assert last_beat(world).topics is None
    asked_of_brokers = world.broker.metadata_asked
    answer = await client.ask(HEARTBEAT, 1, **beat() | {"member_epoch": epoch})
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None)
    assert answer.heartbeat_interval_ms == 5_000
    assert world.broker.metadata_asked == asked_of_brokers
    named = beat(names=["orders", "absent"]) | {"member_epoch": epoch, "rack_id": "r"}
    assert (await client.ask(HEARTBEAT, 1, **named)).error_code == 0
    assert last_beat(world).topics == {"orders": image("orders"), "absent": None}
    assert (last_beat(world).rack_id, last_beat(world).principal) == ("r", "User:ANONYMOUS")
    left = await client.ask(HEARTBEAT, 1, **beat() | {"member_epoch": -1})
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert not world.broker.passed


@played(expose_internal_topics=False)
async def test_sf24_the_coordinators_own_topics_are_no_queues(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    refused = await client.ask(HEARTBEAT, 1, **beat(names=["orders", LAYOUT.requests_topic]))
    assert refused.error_code == TOPIC_DENIED
    assert world.core.asked == []


@played
async def test_more_names_than_a_request_can_carry_are_refused(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    before = world.broker.metadata_asked
    names = [f"{number:0200}" for number in range(4_000)]
    assert (await client.ask(HEARTBEAT, 1, **beat(names=names))).error_code == INVALID_REQUEST
    assert world.broker.metadata_asked == before
    assert world.core.asked == []


@played
async def test_the_coordinator_of_a_share_group_is_the_gateways_choice(world: GatewayFixture) -> None:
    """No broker is looked for."""
    world.broker.topics["__consumer_offsets"] = 4
    client = await finds_share_groups(world)
    before = world.broker.metadata_asked
    (found,) = (await client.ask(ApiKey.FindCoordinator, 6, key_type=0, coordinator_keys=["g"])).coordinators
    assert (found.error_code, found.node_id) == (0, NODE_ID)
    assert found.port == await world.broker_port()
    assert world.broker.metadata_asked == before


@played
async def test_sf1_clients_see_the_feature_of_the_brokers_and_the_gateways_versions(
    world: GatewayFixture,
) -> None:
    client = await finds_share_groups(world)
    answer = await client.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
    offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    for key in (HEARTBEAT, DESCRIBE, ALTER_OFFSETS, DELETE_OFFSETS):
        versions = codec.versions(key)
        assert offered[key] == (versions.start, versions.stop - 1)
    assert offered[FETCH] == (1, 2)  # as the brokers': they answer it
    levels = {f.name: f.max_version_level for f in answer.finalized_features}
    assert levels["share.version"] == 1
