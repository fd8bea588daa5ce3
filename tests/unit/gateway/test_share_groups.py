"""Share groups (KIP-932) of the brokers behind the gateway."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.authorization.acls import Acl, Operation, PatternType, Permission, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.upstream.share_groups import ShareGroups, partition_hash
from gateway.wire import codec
from gateway.wire.framing import request_header
from tests.harness.gateway import NODE_ID, PATIENCE_S, GatewayFixture, RawClient, played, topic_id
from tests.harness.gateway_requests import DELETE_GROUPS, LIST, stable

ME = "User:ANONYMOUS"
HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92
TOPIC_DENIED, GROUP_DENIED, UNSUPPORTED, NOT_COORDINATOR, UNKNOWN_TOPIC_ID = 29, 30, 35, 16, 100
SOFTWARE = {"client_software_name": "me", "client_software_version": "1"}
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


def acls(*rights: tuple[ResourceType, str, Operation]) -> list[Acl]:
    return [
        Acl(kind, name, PatternType.LITERAL, ME, "*", operation, Permission.ALLOW)
        for kind, name, operation in rights
    ]


def with_acls(*rights: tuple[ResourceType, str, Operation]) -> Callable[[], Authorizer]:
    def make() -> Authorizer:
        made = Authorizer()
        made.replace(acls(*rights))
        return made

    return make


async def finds_share_groups(world: GatewayFixture, level: int = 1) -> RawClient:
    """A client of a gateway that knows the level of the brokers' feature `share.version`."""
    names = {HEARTBEAT: 1, DESCRIBE: 1, FETCH: 2, ACKNOWLEDGE: 2, OFFSETS: 1, LIST: 5, DELETE_GROUPS: 2}
    world.broker.answers[ApiKey.ApiVersions] = {
        "api_keys": [
            {"api_key": key, "min_version": 0, "max_version": last} for key, last in (names | {84: 0}).items()
        ],
        "finalized_features": [
            {"name": "share.version", "min_version_level": level, "max_version_level": level}
        ],
    }
    stranger = await world.client()
    (broker,) = (await stranger.ask(ApiKey.Metadata, 12, topics=[])).brokers
    client = await world.client(broker.port)
    await client.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
    world.broker.passed.clear()
    return client


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


def beat(group_id: str = "g", names: list[str] | None = None) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "member_id": "m",
        "member_epoch": 0,
        "rack_id": None,
        "subscribed_topic_names": names,
    }


def fetched(*topics: str, epoch: int = 0, member_id: str = "m", group_id: str = "g") -> dict[str, Any]:
    partitions = [{"partition_index": 0, "acknowledgement_batches": []}]
    return {
        "group_id": group_id,
        "member_id": member_id,
        "share_session_epoch": epoch,
        "topics": [{"topic_id": topic_id(name), "partitions": partitions} for name in topics],
    }


REQUESTS: dict[int, tuple[int, dict[str, Any]]] = {
    HEARTBEAT: (1, beat(names=["orders"])),
    DESCRIBE: (1, {"group_ids": ["g"]}),
    FETCH: (2, fetched("orders")),
    ACKNOWLEDGE: (2, fetched("orders", epoch=1)),
    OFFSETS: (1, {"groups": [{"group_id": "g", "topics": None}]}),
    ALTER_OFFSETS: (0, {"group_id": "g", "topics": []}),
    DELETE_OFFSETS: (0, {"group_id": "g", "topics": []}),
}


def error_of(answer: Any) -> int:
    return int(answer.groups[0].error_code if hasattr(answer, "groups") else answer.error_code)


@pytest.mark.parametrize("key", REQUESTS)
@pytest.mark.parametrize(("is_on", "level"), [(True, 0), (False, 1)])
def test_without_share_groups_clients_get_kafkas_refusal(key: int, level: int, is_on: bool) -> None:
    """Also where the brokers are older than the APIs: a client without them waits for ever."""

    @played(share_groups=is_on)
    async def play(world: GatewayFixture) -> None:
        client = await finds_share_groups(world, level)
        answer = await client.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
        version, body = REQUESTS[key]
        offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        versions = codec.versions(key)
        assert offered[key] == (versions.start, versions.stop - 1)
        assert "share.version" not in {feature.name for feature in answer.finalized_features}
        assert error_of(await client.ask(key, version, **body)) == UNSUPPORTED
        assert [header.api_key for header in world.broker.passed] == [ApiKey.ApiVersions]

    play()


@pytest.mark.parametrize("key", REQUESTS)
def test_requests_of_share_groups_pass_to_the_broker_of_the_listener(key: int) -> None:
    @played
    async def play(world: GatewayFixture) -> None:
        client = await finds_share_groups(world)
        version, body = REQUESTS[key]
        world.broker.answers[key] = {"error_code": 7}
        if key in (DESCRIBE, OFFSETS):
            world.broker.answers[key] = {"groups": [{"group_id": "g", "error_code": 7}]}
        assert error_of(await client.ask(key, version, **body)) == 7
        assert [header.api_key for header in world.broker.passed] == [key]

    play()


@played
async def test_clients_see_the_feature_and_the_versions_of_the_brokers(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    answer = await client.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
    offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert offered[FETCH] == (1, 2)
    assert ALTER_OFFSETS not in offered  # the broker has none
    assert 84 not in offered  # the state of share groups is not for clients
    levels = {f.name: f.max_version_level for f in answer.finalized_features}
    assert levels["share.version"] == 1


@played(
    authorizer=with_acls((GROUP, "g", Operation.READ), (GROUP, "g", Operation.DESCRIBE)),
)
async def test_a_member_needs_read_on_the_group_and_describe_on_its_topics(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    world.broker.answers[HEARTBEAT] = {"error_code": 0, "member_epoch": 1}
    assert error_of(await client.ask(HEARTBEAT, 1, **beat("another"))) == GROUP_DENIED
    assert error_of(await client.ask(HEARTBEAT, 1, **beat(names=["orders"]))) == TOPIC_DENIED
    assert not world.broker.passed
    assert (await client.ask(HEARTBEAT, 1, **beat())).member_epoch == 1


READER = with_acls((GROUP, "g", Operation.READ), (TOPIC, "orders", Operation.READ))


@played(authorizer=READER)
async def test_a_share_session_needs_read_on_the_group_and_on_each_topic(world: GatewayFixture) -> None:
    world.broker.answers[FETCH] = {"error_code": 0}
    for group_id, topics, error in [
        ("another", ["orders"], GROUP_DENIED),
        ("g", ["orders", "prices"], TOPIC_DENIED),
        ("g", ["nothing"], UNKNOWN_TOPIC_ID),
        ("g", ["orders"], 0),
    ]:
        client = await finds_share_groups(world)
        answer = await client.ask(FETCH, 2, **fetched(*topics, group_id=group_id))
        assert answer.error_code == error
        assert len(world.broker.passed) == (not error)


@played(authorizer=READER)
async def test_a_session_ends_to_read_a_topic_when_the_acls_change(world: GatewayFixture) -> None:
    """A request names only what is new in its session."""
    world.broker.answers[FETCH] = {"error_code": 0}
    client = await finds_share_groups(world)
    assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0
    assert (await client.ask(FETCH, 2, **fetched(epoch=1))).error_code == 0
    assert world.authorizer is not None
    world.authorizer.replace(acls((GROUP, "g", Operation.READ), (TOPIC, "prices", Operation.READ)))
    assert (await client.ask(FETCH, 2, **fetched(epoch=2))).error_code == TOPIC_DENIED


def assigned(*topics: str) -> dict[str, Any]:
    return {
        "assignment": {"topic_partitions": [{"topic_name": topic, "partitions": [0]} for topic in topics]}
    }


@played(authorizer=with_acls((GROUP, "g", Operation.DESCRIBE), (TOPIC, "orders", Operation.DESCRIBE)))
async def test_a_description_needs_describe_on_the_groups_and_the_assigned_topics(
    world: GatewayFixture,
) -> None:
    """Rows SD1 and SD4. The operations are the client's, not the gateway's."""
    client = await finds_share_groups(world)
    shown = {"group_id": "g", "members": [assigned("orders")], "authorized_operations": set(range(2, 9))}
    world.broker.answers[DESCRIBE] = {"groups": [shown]}
    asked = {"group_ids": ["g", "another"], "include_authorized_operations": True}
    found = {group.group_id: group for group in (await client.ask(DESCRIBE, 1, **asked)).groups}
    assert (found["another"].error_code, found["g"].error_code) == (GROUP_DENIED, 0)
    assert found["g"].authorized_operations == {Operation.DESCRIBE}
    world.broker.answers[DESCRIBE] = {
        "groups": [{"group_id": "g", "members": [assigned("orders", "prices")]}]
    }
    (hidden,) = (await client.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (hidden.error_code, hidden.members) == (TOPIC_DENIED, [])


def offsets_of(group_id: str, *topics: str) -> dict[str, Any]:
    partition = {"partition_index": 0, "start_offset": 5, "leader_epoch": 1, "lag": 3}
    return {
        "group_id": group_id,
        "topics": [{"topic_name": topic, "partitions": [partition]} for topic in topics],
    }


@played(
    authorizer=with_acls(
        (GROUP, "g", Operation.DESCRIBE),
        (GROUP, "h", Operation.DESCRIBE),
        (TOPIC, "orders", Operation.DESCRIBE),
    )
)
async def test_offsets_need_describe_on_the_groups_and_the_topics(world: GatewayFixture) -> None:
    """Rows SO3 and SO4: topics that are not named are left out, those that are have an error."""
    client = await finds_share_groups(world)
    topics = "orders", "prices"
    world.broker.answers[OFFSETS] = {"groups": [offsets_of("g", *topics), offsets_of("h", *topics)]}
    named = [{"topic_name": topic, "partitions": [0]} for topic in topics]
    asked = [{"group_id": "g", "topics": None}, {"group_id": "h", "topics": named}]
    answer = await client.ask(OFFSETS, 1, groups=[*asked, {"group_id": "another", "topics": None}])
    found = {
        (group.group_id, topic.topic_name): (p.start_offset, p.lag, p.error_code)
        for group in answer.groups
        for topic in group.topics
        for p in topic.partitions
    }
    assert found == {
        ("g", "orders"): (5, 3, 0),
        ("h", "orders"): (5, 3, 0),
        ("h", "prices"): (-1, -1, TOPIC_DENIED),
    }
    assert {group.group_id: group.error_code for group in answer.groups}["another"] == GROUP_DENIED


@pytest.mark.parametrize(
    ("key", "operation"), [(ALTER_OFFSETS, Operation.READ), (DELETE_OFFSETS, Operation.DELETE)]
)
def test_changed_offsets_need_a_right_on_the_group_and_read_on_the_topics(
    key: int, operation: Operation
) -> None:
    @played(authorizer=with_acls((GROUP, "g", operation), (TOPIC, "orders", Operation.READ)))
    async def play(world: GatewayFixture) -> None:
        client = await finds_share_groups(world)
        world.broker.scripts[key] = lambda request: {
            "responses": [{"topic_name": topic.topic_name} for topic in request.topics]
        }
        partitions = (
            {"partitions": [{"partition_index": 0, "start_offset": 0}]} if key == ALTER_OFFSETS else {}
        )
        topics = [{"topic_name": topic, **partitions} for topic in ("orders", "prices")]
        assert (await client.ask(key, 0, group_id="another", topics=topics)).error_code == GROUP_DENIED
        assert not world.broker.passed
        answer = await client.ask(key, 0, group_id="g", topics=topics)
        assert [topic.topic_name for topic in answer.responses] == ["orders", "prices"]
        (message,) = world.broker.messages[-1:]
        passed = codec.decode_request(request_header(message), message)
        assert [topic.topic_name for topic in passed.topics] == ["orders"]

    play()


@played
async def test_a_connection_has_the_share_session_of_one_member(world: GatewayFixture) -> None:
    """A broker would keep the sessions of the others until it ends."""
    world.broker.answers |= {FETCH: {"error_code": 0}, ACKNOWLEDGE: {"error_code": 0}}
    client = await finds_share_groups(world)
    assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0
    assert (await client.ask(ACKNOWLEDGE, 2, **fetched("orders", epoch=1))).error_code == 0
    assert (await client.ask(FETCH, 2, **fetched("orders"))).error_code == 0  # its session begins anew
    await client.send(FETCH, 2, **fetched("orders", member_id="another"))
    assert await client.is_closed()


@played
async def test_the_connection_ends_with_the_brokers_connection_of_its_share_session(
    world: GatewayFixture,
) -> None:
    """The broker has released what the member acquired. Only a new connection tells the member."""
    world.broker.answers[FETCH] = {"error_code": 0}
    client = await finds_share_groups(world)
    await client.ask(FETCH, 2, **fetched("orders"))
    for writer in world.broker.writers:
        writer.close()
    await until(lambda: not any(one.has_upstream for one in world.gateway.connections()))
    await client.send(FETCH, 2, **fetched("orders", epoch=1))
    assert await client.is_closed()


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
def test_leaders_that_moved_have_the_gateways_addresses(key: int) -> None:
    @played
    async def play(world: GatewayFixture) -> None:
        there = {"node_id": NODE_ID, "host": "broker.invalid", "port": 9092}
        world.broker.answers[key] = {"responses": [], "node_endpoints": [there]}
        client = await finds_share_groups(world)
        answer = await client.ask(key, 2, **fetched("orders"))
        (named,) = answer.node_endpoints
        assert (named.node_id, named.port) == (NODE_ID, await world.broker_port())

    play()


def listed(*groups: tuple[str, str]) -> dict[str, Any]:
    return {
        "groups": [
            {"group_id": group, "protocol_type": kind, "group_type": kind, "group_state": "Empty"}
            for group, kind in groups
        ]
    }


@played
async def test_a_list_has_the_brokers_share_groups_beside_the_coordinators_groups(
    world: GatewayFixture,
) -> None:
    client = await finds_share_groups(world)
    await stable(world, await world.client())
    world.broker.answers[LIST] = listed(("shared", "share"), ("hidden", "consumer"))

    async def names(version: int = 5, **more: Any) -> set[str]:
        return {group.group_id for group in (await client.ask(LIST, version, **more)).groups}

    assert await names() == {"g", "shared"}
    assert await names(0) == {"g", "shared"}
    assert await names(types_filter=["Classic"]) == {"g"}


@played(authorizer=with_acls((GROUP, "seen", Operation.DESCRIBE)))
async def test_a_list_has_the_share_groups_that_the_client_may_describe(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    world.broker.answers[LIST] = listed(("seen", "share"), ("hidden", "share"))
    assert [group.group_id for group in (await client.ask(LIST, 5)).groups] == ["seen"]


@played
async def test_share_groups_are_deleted_by_the_broker_and_its_other_groups_are_not(
    world: GatewayFixture,
) -> None:
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


@pytest.mark.parametrize(
    ("group_id", "value"),
    [("", 0), ("hello", 99_162_322), ("polygenelubricants", 0), ("gruppe-\u00e4\U0001f600", 1_282_783_819)],
)
def test_a_group_has_the_partition_that_kafka_gives_it(group_id: str, value: int) -> None:
    """GroupCoordinatorService.partitionFor: the absolute value of String.hashCode."""
    assert partition_hash(group_id) == value


@played
async def test_a_group_is_found_at_its_brokers_coordinator(world: GatewayFixture) -> None:
    """The first look makes the topic. The leaders are found anew when a broker is not the coordinator."""

    def create(request: Any) -> dict[str, Any]:
        world.broker.topics["__consumer_offsets"] = 4
        return {"coordinators": []}

    world.broker.scripts[ApiKey.FindCoordinator] = create
    known = ShareGroups(world.cluster, are_offered=True)
    known.look("g")
    assert known.coordinator_of("g") is None  # the brokers have no share groups
    known.learn(1)
    known.look("g")
    await until(lambda: known.coordinator_of("g") == NODE_ID)
    asked = world.broker.metadata_asked
    known.look("g")
    known.forget()
    known.look("g")
    await until(lambda: world.broker.metadata_asked == asked + 1)
    known.close()


@played
async def test_the_leaders_are_forgotten_when_a_broker_is_not_the_coordinator(world: GatewayFixture) -> None:
    world.broker.topics["__consumer_offsets"] = 4
    client = await finds_share_groups(world)
    first = world.broker.metadata_asked
    find = {"coordinator_keys": ["g"]}
    await client.ask(ApiKey.FindCoordinator, 4, **find)
    await until(lambda: world.broker.metadata_asked > first)
    again = world.broker.metadata_asked
    world.broker.answers[HEARTBEAT] = {"error_code": NOT_COORDINATOR}
    async with asyncio.timeout(PATIENCE_S):
        while world.broker.metadata_asked == again:
            await client.ask(HEARTBEAT, 1, **beat())
            await client.ask(ApiKey.FindCoordinator, 4, **find)


RESOURCE = {"resource_type": 32, "resource_name": "g"}
SHARED, OWN = "share.record.lock.duration.ms", "consumer.session.timeout.ms"


def settings(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "config_operation": 0, "value": "46000"} for name in names]


@pytest.mark.parametrize(("names", "passed"), [([SHARED], [SHARED]), ([OWN], []), ([OWN, SHARED], [SHARED])])
def test_settings_of_share_groups_reach_the_brokers(names: list[str], passed: list[str]) -> None:
    """Row SN24: the leaders of partitions read them."""

    @played
    async def play(world: GatewayFixture) -> None:
        client = await finds_share_groups(world)
        world.broker.answers[44] = {"responses": [{**RESOURCE, "error_code": 0}]}
        world.broker.answers[32] = {
            "results": [{**RESOURCE, "configs": [{"name": name, "value": "1"} for name in (SHARED, OWN)]}]
        }
        (answer,) = (await client.ask(44, 1, resources=[{**RESOURCE, "configs": settings(*names)}])).responses
        assert answer.error_code == 0
        reached = [
            config.name
            for message in world.broker.messages
            if (header := request_header(message)).api_key == 44
            for resource in codec.decode_request(header, message).resources
            for config in resource.configs
        ]
        assert reached == passed
        (described,) = (await client.ask(32, 4, resources=[{**RESOURCE, "configuration_keys": None}])).results
        shown = {config.name: config.value for config in described.configs}
        assert (shown[SHARED], shown[OWN]) == ("1", "46000" if OWN in names else "45000")

    play()


@played
async def test_a_setting_that_the_coordinator_refuses_reaches_no_broker(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    configs = [*settings(SHARED), {"name": OWN, "config_operation": 0, "value": "1"}]
    (answer,) = (await client.ask(44, 1, resources=[{**RESOURCE, "configs": configs}])).responses
    assert answer.error_code == 40
    assert not world.broker.passed
