"""Each API over the coordinator's core: a client's request on the wire, and its response."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.api_key import ApiKey

from clients.pending import ClientClosed, CoordinatorError, RequestNotSent, RequestTimedOut, RequestTooLarge
from gateway.apis import REFUSED, SERVED
from gateway.apis import topics as topics_module
from gateway.coordinator.failures import error_code_of
from gateway.wire import codec
from gateway.wire.framing import RequestHeader
from kafka_why.contract.kafka.requests import JoinGroup
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import Subscription, decode_assignment, encode_subscription
from kafka_why.topic_reader import ClientError
from tests.harness.gateway import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    HOST,
    JOIN,
    LEAVE,
    NODE_ID,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC,
    TOPICS,
    GatewayFixture,
    commit_fields,
    join_fields,
    outcomes,
    played,
    topic_id,
    topic_partition,
)

SOFTWARE = {"client_software_name": "me", "client_software_version": "1"}


@played
async def test_join_for_coordinator_assignment_includes_partition_counts(world: GatewayFixture) -> None:
    """The counts are from brokers' metadata. A leader has to skip the assignment, if its version can."""
    subscription = encode_subscription(Subscription(("orders", "absent")))
    fields = join_fields(protocols=[{"name": "coordinator:uniform", "metadata": subscription}])
    for version in (5, 9):
        client = await world.client()
        fields["group_id"] = f"v{version}"
        fields["member_id"] = (await client.ask(JOIN, version, **fields | {"member_id": ""})).member_id
        asked = world.core.asked[-1]
        assert isinstance(asked, JoinGroup)
        assert asked.partitions_per_topic == {"orders": TOPICS["orders"]}
        await client.send(JOIN, version, **fields)
        await world.core.wait_for(lambda before=asked: world.core.asked[-1] is not before)  # type: ignore[misc]
        world.core.advance(3_000)
        _, joined = await client.receive()
        assert joined.leader == joined.member_id
        assert joined.skip_assignment == (version == 9)
        identity = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        synced = await client.ask(SYNC, 3, group_id=fields["group_id"], **identity, assignments=[])
        assert len(decode_assignment(synced.assignment).partitions) == TOPICS["orders"]


@played
async def test_clients_do_not_find_the_coordinators_of_share_partitions(world: GatewayFixture) -> None:
    """With them they could change the state of any share group."""
    answer = await world.ask(ApiKey.FindCoordinator, 6, coordinator_keys=["g:t:0"], key_type=2)
    assert [(f.node_id, f.error_code) for f in answer.coordinators] == [(-1, 42)]


@played
async def test_broker_addresses_are_never_sent_to_clients(world: GatewayFixture) -> None:
    port = await world.broker_port()
    client = await world.client(port)
    there = {"node_id": NODE_ID, "host": "broker.invalid", "port": 9092}
    world.broker.answers |= {
        ApiKey.DescribeCluster: {
            "cluster_id": "c",
            "brokers": [{"broker_id": NODE_ID, "host": "broker.invalid", "port": 9092}],
        },
        ApiKey.FindCoordinator: {"coordinators": [{**there, "key": "txn"}], **there},
        ApiKey.Produce: {"responses": [], "node_endpoints": [there]},
        ApiKey.Fetch: {"responses": [], "node_endpoints": [there]},
    }
    named = [
        (await client.ask(ApiKey.Metadata, 12, topics=None)).brokers[0],
        (await client.ask(ApiKey.DescribeCluster, 1)).brokers[0],
        (await client.ask(ApiKey.FindCoordinator, 6, coordinator_keys=["txn"], key_type=1)).coordinators[0],
        await client.ask(ApiKey.FindCoordinator, 3, key="txn", key_type=1),
        (await client.ask(ApiKey.Produce, 12, acks=-1)).node_endpoints[0],
        (await client.ask(ApiKey.Fetch, 17)).node_endpoints[0],
    ]
    assert {(found.host, found.port) for found in named} == {(HOST, port)}


@played
async def test_controllers_keep_their_ids_and_lose_their_addresses(world: GatewayFixture) -> None:
    listener = {"name": "CONTROLLER", "host": "broker.invalid", "port": 9093}
    world.broker.answers[ApiKey.DescribeQuorum] = {"nodes": [{"node_id": 3000, "listeners": [listener]}]}
    (node,) = (await (await world.client()).ask(ApiKey.DescribeQuorum, 2)).nodes
    assert (node.node_id, node.listeners) == (3000, [])


@played
async def test_cluster_and_node_id_of_api_versions_reach_the_broker(world: GatewayFixture) -> None:
    """It is the broker that knows whether they are its own (KIP-1242)."""
    client = await world.client()
    await client.ask(ApiKey.ApiVersions, 5, **SOFTWARE, cluster_id="c", node_id=3)
    passed = world.broker.requests()[-1]
    assert (passed.cluster_id, passed.node_id) == ("c", 3)
    world.broker.answers[ApiKey.ApiVersions] = {"error_code": 129}
    number = await client.send(ApiKey.ApiVersions, 5, **SOFTWARE, cluster_id="another", node_id=3)
    header = RequestHeader(ApiKey.ApiVersions, 5, number, None, 0)
    assert await client.receive_bytes() == codec.encode_response(header, {"error_code": 129})


@played
async def test_api_versions_lists_exactly_the_served_apis(world: GatewayFixture) -> None:
    has = {3: (0, 13), 11: (2, 9), 25: (0, 4), 55: (0, 2), 68: (0, 1), 71: (0, 0), 78: (1, 2), 1: (4, 99)}
    world.broker.answers[ApiKey.ApiVersions] = {
        "api_keys": [{"api_key": k, "min_version": a, "max_version": b} for k, (a, b) in has.items()],
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": 1} for name in ("group.version", "kraft.version")
        ],
    }
    for version in range(5):
        answer = await world.ask(ApiKey.ApiVersions, version)
        named = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        expected = {3: (0, 13), 55: (0, 2), 71: (0, 0), 1: (4, 18)}
        at_brokers = ApiKey.FindCoordinator, ApiKey.GetTelemetrySubscriptions, ApiKey.PushTelemetry
        own = {key: api.versions for key, api in SERVED.items() if key not in at_brokers}
        assert named == expected | {k: (v.start, v.stop - 1) for k, v in own.items()}
        assert not named.keys() & REFUSED
        if version >= 3:
            supported = {f.name: (f.min_version, f.max_version) for f in answer.supported_features}
            # A client of version 3 takes no feature whose lowest version is 0.
            own_features = dict.fromkeys(("group.version", "streams.version"), (0, 1))
            assert supported == {"kraft.version": (0, 1)} | (own_features if version > 3 else {})
            finalized = {f.name: f.max_version_level for f in answer.finalized_features}
            assert finalized == dict.fromkeys(own_features, 1)


@played
async def test_unsupported_api_versions_request_gets_the_supported_versions(world: GatewayFixture) -> None:
    client = await world.client()
    # api key 18, version 9, correlation id 1, no client id, no tagged fields
    await client.send_bytes(bytes.fromhex("0000000b 0012 0009 00000001 ffff 00"))
    # error 35, and ApiVersions alone with its versions
    assert await client.receive_bytes() == bytes.fromhex("00000001 0023 00000001 0012 0000 0005")


# Of the share coordinator, descriptions of topologies, and delegation tokens: a broker would make them
# for the gateway's principal.
@pytest.mark.parametrize("api_key", [83, 84, 85, 86, 87, 93, 38, 39, 40, 41])
@played
async def test_api_not_meant_for_clients_is_neither_offered_nor_forwarded(
    world: GatewayFixture, api_key: int
) -> None:
    offered = [{"api_key": key, "min_version": 0, "max_version": 0} for key in (api_key, 3)]
    world.broker.answers[ApiKey.ApiVersions] = {"api_keys": offered}
    client = await world.client()
    answer = await client.ask(ApiKey.ApiVersions, 0)
    assert api_key not in {api.api_key for api in answer.api_keys}
    world.broker.passed.clear()
    await client.send_bytes(bytes.fromhex(f"0000000b {api_key:04x} 0000 00000001 ffff 00"))
    assert await client.is_closed()
    assert world.broker.passed == []


@played
async def test_while_coordinator_is_unavailable_clients_get_retriable_errors(world: GatewayFixture) -> None:
    world.core.away = True
    alive = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    wanted = [{"name": "orders", "partition_indexes": [0]}]
    not_available = [
        await world.ask(JOIN, 9, **join_fields()),
        await world.ask(SYNC, 5, **alive, assignments=[]),
        await world.ask(HEARTBEAT, 4, **alive),
        await world.ask(LEAVE, 2, group_id="g", member_id="m"),
        await world.ask(LEAVE, 5, group_id="g", members=[{"member_id": "m"}]),
        await world.ask(OFFSET_DELETE, 0, group_id="g", topics=[topic_partition("orders")]),
        (await world.ask(DELETE_GROUPS, 2, groups_names=["g"])).results[0],
        (await world.ask(DESCRIBE, 6, groups=["g"])).groups[0],
        await world.ask(ApiKey.ConsumerGroupHeartbeat, 1, group_id="g", member_id="m", member_epoch=3),
        (await world.ask(ApiKey.ConsumerGroupDescribe, 1, group_ids=["g"])).groups[0],
    ]
    assert {answer.error_code for answer in not_available} == {15}
    assert outcomes(await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7)))) == [("orders", 0, 15)]
    # OffsetFetch has another error code for it, after which all clients retry.
    assert outcomes(await world.ask(OFFSET_FETCH, 1, group_id="g", topics=wanted)) == [("orders", 0, 14)]
    assert (await world.ask(OFFSET_FETCH, 7, group_id="g", topics=wanted)).error_code == 14
    groups = [{"group_id": "g", "topics": wanted}]
    assert (await world.ask(OFFSET_FETCH, 9, groups=groups)).groups[0].error_code == 14


def not_sent(cause: Exception) -> RequestNotSent:
    error = RequestNotSent("it could not be sent")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CoordinatorError("Heartbeat", "g", ErrorCode.INVALID_REQUEST, "so it is"), 42),
        (RequestTimedOut("no answer"), 15),
        (ClientClosed("closed"), 15),
        (RequestTooLarge("too large", 2, 1), -1),
        (ClientError("no more memory"), 15),
        (not_sent(UnicodeError("surrogates")), -1),
        (not_sent(BufferError("queue full")), 15),
        (not_sent(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))), -1),
        (not_sent(KafkaException(KafkaError(KafkaError.INVALID_RECORD))), -1),
        (not_sent(KafkaException(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS))), 15),
        (not_sent(KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))), 15),
        (not_sent(KafkaException(KafkaError(KafkaError._FATAL))), 15),
    ],
)
def test_only_transient_failures_have_a_retriable_error_code(error: ClientError, code: int) -> None:
    assert error_code_of(error) == code


@played
async def test_without_a_broker_commits_are_refused(world: GatewayFixture) -> None:
    await world.stop_broker()
    by_id = [{"group_id": "g", "topics": [{"topic_id": topic_id("orders"), "partition_indexes": [0]}]}]
    assert outcomes(await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7)))) == [("orders", 0, 15)]
    deleted = await world.ask(OFFSET_DELETE, 0, group_id="g", topics=[topic_partition("orders")])
    assert deleted.error_code == 15
    assert (await world.ask(OFFSET_FETCH, 10, groups=by_id)).groups[0].error_code == 14
    assert world.core.asked == []


@played
async def test_without_a_broker_offsets_are_fetched_by_topic_name(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.ask(COMMIT, 9, **commit_fields("", ("orders", 0, 7)))
    await world.stop_broker()
    monkeypatch.setattr(topics_module, "OFFSETS_AGE_MAX_S", 0.0)  # the cached metadata is too old
    for topics in ([{"name": "orders", "partition_indexes": [0]}], None):
        answer = await world.ask(OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": topics}])
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 7


ALTER, INCREMENTAL = 33, 44
TOPIC, BROKER = 2, 4  # ConfigResource.Type
INVALID_CONFIG = 40
DYNAMIC = 2  # DescribeConfigsResponse.ConfigSource


def config(name: str, value: str) -> dict[str, Any]:
    synonym = {"name": name, "value": value, "source": DYNAMIC}
    return {
        "name": name,
        "value": value,
        "read_only": False,
        "config_source": DYNAMIC,
        "is_sensitive": False,
        "synonyms": [synonym],
    }


def resource(name: str = "1", kind: int = BROKER, **more: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **more}


@pytest.mark.parametrize(("api", "version"), [(ALTER, 2), (INCREMENTAL, 1)])
@played
async def test_startup_settings_of_the_coordinator_cannot_be_altered_by_request(
    world: GatewayFixture, api: int, version: int
) -> None:
    configs = [{"name": "num.io.threads", "value": "4"}]
    refused = [*configs, {"name": "group.max.size", "value": "4"}]
    others = resource("2", configs=configs), resource("orders", TOPIC, configs=refused)
    world.broker.answers[api] = {
        "responses": [{**resource("2"), "error_code": 0}, {**resource("orders", TOPIC), "error_code": 0}]
    }
    answer = await world.ask(api, version, resources=[resource(configs=refused), *others])
    errors = {r.resource_name: (r.error_code, r.error_message) for r in answer.responses}
    why = "group.max.size is a setting of the group coordinator, given where that starts."
    assert errors.pop("1") == (INVALID_CONFIG, why)
    assert {code for code, _ in errors.values()} == {0}
    passed = world.broker.requests()[-1]
    assert [r.resource_name for r in passed.resources] == ["2", "orders"]
    world.broker.passed.clear()
    for name in ("offsets.retention.minutes", "offset.metadata.max.bytes", "group.streams.max.size"):
        only = [resource(configs=[{"name": name, "value": "1"}])]
        (entry,) = (await world.ask(api, version, resources=only)).responses
        assert (entry.error_code, entry.error_message.split()[0]) == (INVALID_CONFIG, name)
    assert world.broker.passed == []
