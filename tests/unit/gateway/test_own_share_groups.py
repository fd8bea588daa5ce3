"""Share groups (KIP-932) of this project's coordinator, at the gateway: `--share-groups coordinator`."""

from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.authorization.acls import Operation, ResourceType
from gateway.wire import codec
from state.kafka.share_requests import ShareGroupHeartbeat
from tests.harness.gateway import LAYOUT, NODE_ID, TOPICS, GatewayFixture, RawClient, played, topic_id
from tests.harness.gateway_requests import DELETE_GROUPS, LIST, stable
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
from tests.unit.gateway.test_consumer_groups import allowed, only
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


@played
async def test_an_error_of_the_coordinator_is_the_members(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    absent = await client.ask(HEARTBEAT, 1, **beat() | {"member_epoch": 3})
    assert (absent.error_code, absent.member_id, absent.member_epoch) == (NOT_FOUND, None, 0)
    assert absent.error_message == "Share group g not found."


@pytest.mark.parametrize("member_id", ["", "m" * 37])
def test_sh3_a_member_id_has_1_to_36_characters(member_id: str) -> None:
    @played
    async def play(world: GatewayFixture) -> None:
        client = await finds_share_groups(world)
        refused = await client.ask(HEARTBEAT, 1, **beat(names=["orders"]) | {"member_id": member_id})
        assert (refused.error_code, refused.error_message) == (INVALID_REQUEST, None)
        assert world.core.asked == []

    play()


@played(authorizer=lambda: only((GROUP, "g", Operation.READ), (TOPIC, "orders", Operation.DESCRIBE)))
async def test_sh2_sh4_a_member_needs_read_on_the_group_and_describe_on_its_topics(
    world: GatewayFixture,
) -> None:
    """Row SA1."""
    client = await finds_share_groups(world)
    refused = await client.ask(HEARTBEAT, 1, **beat("another", ["orders"]))
    assert (refused.error_code, refused.error_message) == (GROUP_DENIED, None)
    assert (await client.ask(HEARTBEAT, 1, **beat(names=["orders", "prices"]))).error_code == TOPIC_DENIED
    assert world.core.asked == []
    assert (await client.ask(HEARTBEAT, 1, **beat(names=["orders"]))).error_code == 0


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


@played(authorizer=lambda: only((GROUP, "g", Operation.READ), (TOPIC, "orders", Operation.DESCRIBE)))
async def test_sd1_sd3_sd4_a_share_group_is_described(world: GatewayFixture) -> None:
    """Row SA2: it needs DESCRIBE on the group, which READ implies, and on what its members have."""
    client = await finds_share_groups(world)
    epoch = await assigned(world, client)
    asked = {"group_ids": ["g", "another"], "include_authorized_operations": True}
    group, another = (await client.ask(DESCRIBE, 1, **asked)).groups
    assert (group.group_id, group.error_code, group.group_state) == ("g", 0, "Stable")
    assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (epoch, epoch, "simple")
    assert group.authorized_operations == {Operation.READ, Operation.DESCRIBE}
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.client_id) == ("m", epoch, "me")
    assert member.subscribed_topic_names == ["orders"]
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_id, topic.topic_name, topic.partitions) == (
        topic_id("orders"),
        "orders",
        [0, 1, 2],
    )
    assert (another.error_code, another.members) == (GROUP_DENIED, [])
    assert world.authorizer is not None
    world.authorizer.replace([allowed(GROUP, "g", Operation.DESCRIBE)])
    (hidden,) = (await client.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (hidden.error_code, hidden.members, hidden.group_state) == (TOPIC_DENIED, [], "")
    assert hidden.error_message is not None
    assert "not authorized to describe" in hidden.error_message


@played
async def test_sd1_sd2_groups_that_are_no_share_groups_have_kafkas_errors(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    await stable(world, await world.client())
    groups = (await client.ask(DESCRIBE, 1, group_ids=["", "g", "absent"])).groups
    assert [(group.group_id, group.error_code) for group in groups] == [("", 24), ("g", 69), ("absent", 69)]
    assert [group.error_message for group in groups] == [
        None,
        "Group g is not a share group.",
        "Group absent not found.",
    ]
    assert {group.authorized_operations for group in groups} == {None}


@played
async def test_sd5_share_groups_are_listed_and_deleted_by_the_coordinator(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    await stable(world, await world.client())
    await assigned(world, client, "queue")

    async def names(**more: Any) -> dict[str, tuple[str, str, str]]:
        groups = (await client.ask(LIST, 5, **more)).groups
        return {g.group_id: (g.group_type, g.protocol_type, g.group_state) for g in groups}

    queue = ("share", "share", "Stable")
    assert await names() == {"g": ("classic", "consumer", "Stable"), "queue": queue}
    assert await names(types_filter=["Share"], states_filter=["stable"]) == {"queue": queue}
    assert await names(types_filter=["share"], states_filter=["Empty"]) == {}
    (refused,) = (await client.ask(DELETE_GROUPS, 2, groups_names=["queue"])).results
    assert refused.error_code == NON_EMPTY_GROUP
    assert not world.broker.passed


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
