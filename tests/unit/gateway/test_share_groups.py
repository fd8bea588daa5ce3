"""Share groups (KIP-932) of the brokers behind the gateway."""

from functools import partial
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.upstream.share_groups import Coordinators, ShareGroups
from gateway.wire import codec
from tests.harness.gateway import DELETE_GROUPS, LIST, NODE_ID, GatewayFixture, stable, topic_id
from tests.harness.gateway import played as any_played
from tests.harness.share_frames import (
    ACKNOWLEDGE,
    ALTER_OFFSETS,
    DELETE_OFFSETS,
    DESCRIBE,
    FETCH,
    HEARTBEAT,
    OFFSETS,
    SOFTWARE,
    beat,
    error_of,
    features,
    fetched,
    finds_share_groups,
    listed,
)
from tests.harness.waiting import until

FAILED, UNSUPPORTED, UNKNOWN_TOPIC_ID, NO_SESSION = -1, 35, 100, 122
played = partial(any_played, share_groups=Coordinators.BROKERS)


REQUESTS: dict[int, tuple[int, dict[str, Any]]] = {
    HEARTBEAT: (1, beat(names=["orders"])),
    DESCRIBE: (1, {"group_ids": ["g"]}),
    FETCH: (2, fetched("orders")),
    ACKNOWLEDGE: (2, fetched("orders", epoch=1)),
    OFFSETS: (1, {"groups": [{"group_id": "g", "topics": None}]}),
    ALTER_OFFSETS: (0, {"group_id": "g", "topics": []}),
    DELETE_OFFSETS: (0, {"group_id": "g", "topics": []}),
}


@pytest.mark.parametrize("key", REQUESTS)
@pytest.mark.parametrize(
    ("wanted", "level"), [(Coordinators.OURS, 0), (Coordinators.BROKERS, 0), (Coordinators.OFF, 1)]
)
@any_played(share_groups=lambda wanted: wanted)
async def test_clients_get_kafkas_refusal_while_share_groups_are_off(
    world: GatewayFixture, key: int, level: int, wanted: Coordinators
) -> None:
    """Also where the brokers are older than the APIs: a client without them waits for ever."""
    client = await finds_share_groups(world, level)
    answer = await client.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
    version, body = REQUESTS[key]
    offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    versions = codec.versions(key)
    assert offered[key] == (versions.start, versions.stop - 1)
    assert "share.version" not in {feature.name for feature in answer.finalized_features}
    assert error_of(await client.ask(key, version, **body)) == UNSUPPORTED
    assert [header.api_key for header in world.broker.passed] == [ApiKey.ApiVersions]


@pytest.mark.parametrize("asks_versions", [True, False])
@pytest.mark.parametrize("key", REQUESTS)
@any_played(
    share_groups=Coordinators.BROKERS, versions=lambda asks_versions: {} if asks_versions else features(1)
)
async def test_requests_of_share_groups_pass_to_the_broker_of_the_listener(
    world: GatewayFixture, key: int, asks_versions: bool
) -> None:
    """Also the first request after a start of the gateway, of a client that has not asked for versions."""
    if asks_versions:
        client = await finds_share_groups(world)
    else:
        client = await world.client(await world.broker_port())
    version, body = REQUESTS[key]
    world.broker.answers[key] = {"error_code": 7}
    if key in (DESCRIBE, OFFSETS):
        world.broker.answers[key] = {"groups": [{"group_id": "g", "error_code": 7}]}
    assert error_of(await client.ask(key, version, **body)) == 7
    assert [header.api_key for header in world.broker.passed] == [key]


@pytest.mark.parametrize("other", ["group_id", "member_id"])
@played
async def test_connection_is_limited_to_one_members_share_session(world: GatewayFixture, other: str) -> None:
    """A broker would keep the sessions of the others until it ends."""
    world.broker.answers |= {FETCH: {"error_code": 0}, ACKNOWLEDGE: {"error_code": 0}}
    client = await finds_share_groups(world)
    assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0
    assert (await client.ask(ACKNOWLEDGE, 2, **fetched("orders", epoch=1))).error_code == 0
    assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0  # its session begins anew
    await client.send(FETCH, 2, **fetched("orders") | {other: "another"})
    assert await client.is_closed()


@played
async def test_connection_closes_with_the_brokers_of_its_share_session(world: GatewayFixture) -> None:
    """The broker has released the acquired records. The member learns of it only by a new connection."""
    world.broker.answers[FETCH] = {"error_code": 0}
    client = await finds_share_groups(world)
    await client.ask(FETCH, 2, **fetched("orders"))
    for writer in world.broker.writers:
        writer.close()
    await until(lambda: not any(one.has_upstream for one in world.gateway.connections()))
    await client.send(FETCH, 2, **fetched("orders", epoch=1))
    assert await client.is_closed()


@played
async def test_new_share_session_after_a_broker_failure_omits_deleted_topics(world: GatewayFixture) -> None:
    """Brokers of Kafka 4.4 with an authorizer fail at a topic that is gone. The member lets it go, and learns
    the id of one that was made again, by the error of the partition alone.
    """
    both = fetched("orders", "prices")
    client = await finds_share_groups(world)
    world.broker.answers[FETCH] = {"error_code": 0}
    assert not (await client.ask(FETCH, 2, **both)).responses
    del world.broker.topics["prices"]
    world.broker.answers[FETCH] = {"error_code": FAILED}
    assert (await client.ask(FETCH, 2, **fetched(epoch=1))).error_code == NO_SESSION
    world.broker.answers[FETCH] = {"error_code": 0}
    answer = await client.ask(FETCH, 2, **both)
    ((gone, (partition,)),) = [(one.topic_id, one.partitions) for one in answer.responses]
    assert (answer.error_code, gone, partition.error_code) == (0, topic_id("prices"), UNKNOWN_TOPIC_ID)
    named = [[topic.topic_id for topic in request.topics] for request in world.broker.requests(FETCH)]
    assert named == [[topic_id("orders"), topic_id("prices")], [], [topic_id("orders")]]
    assert not (await client.ask(FETCH, 2, **both)).responses  # it is not doubted any more


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
@played
async def test_new_leaders_in_share_responses_have_gateway_addresses(world: GatewayFixture, key: int) -> None:
    there = {"node_id": NODE_ID, "host": "broker.invalid", "port": 9092}
    world.broker.answers[key] = {"responses": [], "node_endpoints": [there]}
    client = await finds_share_groups(world)
    answer = await client.ask(key, 2, **fetched("orders"))
    (named,) = answer.node_endpoints
    assert (named.node_id, named.port) == (NODE_ID, await world.broker_port())


@played
async def test_list_merges_brokers_share_groups_with_the_coordinators(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    await stable(world, await world.client())
    world.broker.answers[LIST] = listed(("shared", "share"), ("hidden", "consumer"))

    async def names(version: int = 5, **more: Any) -> set[str]:
        return {group.group_id for group in (await client.ask(LIST, version, **more)).groups}

    assert await names() == {"g", "shared"}
    assert await names(0) == {"g", "shared"}
    assert await names(types_filter=["Classic"]) == {"g"}


@played
async def test_broker_deletes_its_share_groups_and_no_other_groups(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    world.broker.scripts |= {
        DESCRIBE: lambda request: {
            "groups": [{"group_id": g, "error_code": 0 if g == "shared" else 69} for g in request.group_ids]
        },
        DELETE_GROUPS: lambda request: {
            "results": [{"group_id": g, "error_code": 0} for g in request.groups_names]
        },
    }
    answer = await client.ask(DELETE_GROUPS, 2, groups_names=["shared", "classic"])
    assert {one.group_id: one.error_code for one in answer.results} == {"shared": 0, "classic": 69}
    answer = await client.ask(DELETE_GROUPS, 2, groups_names=["classic"])
    assert {one.group_id: one.error_code for one in answer.results} == {"classic": 69}
    assert [header.api_key for header in world.broker.passed] == [DELETE_GROUPS]


@played
async def test_share_group_coordinator_is_found_from_offsets_topic_leaders(world: GatewayFixture) -> None:
    """The first query creates the topic. A broker that is not the coordinator causes another query."""

    def create(request: Any) -> dict[str, Any]:
        world.broker.topics["__consumer_offsets"] = 4
        return {"coordinators": []}

    world.broker.scripts[ApiKey.FindCoordinator] = create
    known = ShareGroups(world.cluster, Coordinators.BROKERS)
    known.refresh_leaders("g")
    assert known.coordinator_of("g") is None  # the brokers have no share groups
    known.feature_level = 1
    known.refresh_leaders("g")
    await until(lambda: known.coordinator_of("g") == NODE_ID)
    asked = world.broker.metadata_requests
    known.refresh_leaders("g")
    known.expire_leaders()
    known.refresh_leaders("g")
    await until(lambda: world.broker.metadata_requests == asked + 1)
    known.close()


RESOURCE = {"resource_type": 32, "resource_name": "g"}
SHARED, OWN = "share.record.lock.duration.ms", "consumer.session.timeout.ms"


@pytest.mark.parametrize(("names", "passed"), [([SHARED], [SHARED]), ([OWN], []), ([OWN, SHARED], [SHARED])])
@played
async def test_settings_of_share_groups_reach_the_brokers(
    world: GatewayFixture, names: list[str], passed: list[str]
) -> None:
    """Row SN24: the leaders of partitions read them."""
    client = await finds_share_groups(world)
    world.broker.answers[44] = {"responses": [{**RESOURCE, "error_code": 0}]}
    world.broker.answers[32] = {
        "results": [{**RESOURCE, "configs": [{"name": name, "value": "1"} for name in (SHARED, OWN)]}]
    }
    configs = [{"name": name, "config_operation": 0, "value": "46000"} for name in names]
    (answer,) = (await client.ask(44, 1, resources=[{**RESOURCE, "configs": configs}])).responses
    assert answer.error_code == 0
    reached = [
        config.name
        for request in world.broker.requests(44)
        for resource in request.resources
        for config in resource.configs
    ]
    assert reached == passed
    (described,) = (await client.ask(32, 4, resources=[{**RESOURCE, "configuration_keys": None}])).results
    shown = {config.name: config.value for config in described.configs}
    assert (shown[SHARED], shown[OWN]) == ("1", "46000" if OWN in names else "45000")
