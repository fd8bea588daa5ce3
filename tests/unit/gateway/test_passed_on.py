"""The gateway's own rules about ACLs of requests that pass to the brokers (decision 22). What a broker
answers to the same requests is in `tests/e2e/test_gateway_acls.py`.
"""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.limits import MIB
from gateway.security.authentication import ListenerSecurity, SecuritySettings
from gateway.wire import codec
from kafka_why.contract.messages import ANONYMOUS
from tests.harness.gateway import LAYOUT, GatewayFixture, Right, played, topic_id
from tests.harness.sasl import authenticate, by_password

REFUSED, NO_SESSION, UNKNOWN_ID = 29, 70, 100
SESSION = 4_711
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


READER: list[Right] = [(Operation.READ, TOPIC, "orders")]


def fetch(*topics: str, session: tuple[int, int] = (0, -1), by_id: bool = False) -> dict[str, Any]:
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}]
    named = [
        {**({"topic_id": topic_id(t)} if by_id else {"topic": t}), "partitions": partitions} for t in topics
    ]
    limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 100, "replica_id": -1}
    return {"session_id": session[0], "session_epoch": session[1], "topics": named, **limits}


def produce(*topics: str, acks: int = -1) -> dict[str, Any]:
    data = [{"index": 0, "records": b"records"}]
    named = [{"name": topic, "partition_data": data} for topic in topics]
    return {"acks": acks, "timeout_ms": 1, "topic_data": named}


def errors_of(answer: Any) -> dict[str, int]:
    return {topic.name: p.error_code for topic in answer.responses for p in topic.partition_responses}


@played(rights=READER)
async def test_fetch_session_continues_on_its_connection_until_acls_change(world: GatewayFixture) -> None:
    world.broker.answers[ApiKey.Fetch] = {"error_code": 0, "session_id": SESSION, "responses": []}
    for version in (7, 11, 12, 18):
        client, by_id = await world.client(), version >= 13
        began = await client.ask(ApiKey.Fetch, version, **fetch("orders", session=(0, 0), by_id=by_id))
        assert (began.error_code, began.session_id) == (0, SESSION)
        passed = len(world.broker.passed)
        added = await client.ask(ApiKey.Fetch, version, **fetch("prices", session=(SESSION, 1), by_id=by_id))
        assert (added.error_code, len(world.broker.passed)) == (NO_SESSION, passed)
        goes_on = fetch(session=(SESSION, 1))
        assert (await client.ask(ApiKey.Fetch, version, **goes_on)).error_code == 0
        other = await client.ask(ApiKey.Fetch, version, **fetch(session=(SESSION + 1, 1)))
        assert (other.error_code, other.session_id) == (NO_SESSION, 0)
        elsewhere = await world.client()
        assert (await elsewhere.ask(ApiKey.Fetch, version, **goes_on)).error_code == NO_SESSION
        world.allow(*READER, (Operation.READ, TOPIC, f"{version}"))
        assert (await client.ask(ApiKey.Fetch, version, **goes_on)).error_code == NO_SESSION
        world.allow(*READER)


@played(rights=READER)
async def test_fetch_is_forwarded_without_its_denied_topic_and_session(world: GatewayFixture) -> None:
    partitions = [{"partition_index": 0, "error_code": 0, "records": b"r"}]
    world.broker.answers[ApiKey.Fetch] = {"responses": [{"topic": "orders", "partitions": partitions}]}
    answer = await world.ask(ApiKey.Fetch, 12, **fetch("orders", "prices", session=(0, 0)))
    errors = {topic.topic: [p.error_code for p in topic.partitions] for topic in answer.responses}
    assert errors == {"orders": [0], "prices": [REFUSED]}
    passed = world.broker.requests()[-1]
    assert [topic.topic for topic in passed.topics] == ["orders"]
    assert (passed.session_id, passed.session_epoch) == (0, -1)


@played(rights=READER)
async def test_fetch_with_a_rewritten_response_is_limited_to_the_buffer_size(world: GatewayFixture) -> None:
    world.broker.answers[ApiKey.Fetch] = {"responses": []}
    for wanted, asked in ((55 * MIB, MIB), (100, 100)):
        await world.ask(ApiKey.Fetch, 11, **{**fetch("orders", "prices"), "max_bytes": wanted})
        assert world.broker.requests()[-1].max_bytes == asked


@pytest.mark.parametrize("version", codec.versions(ApiKey.Fetch))
@played(rights=READER)
async def test_fetch_with_a_replica_id_closes_the_connection(world: GatewayFixture, version: int) -> None:
    """Kafka demands CLUSTER_ACTION for it, and takes its offset as that of a follower in sync."""
    client = await world.client()
    wanted = fetch("orders", by_id=version >= 13)
    replica: dict[str, Any] = {"replica_id": 1}
    if version >= 15:
        replica = {"replica_state": {"replica_id": 1, "replica_epoch": 1}}
    with capture_logs() as logs:
        await client.send(ApiKey.Fetch, version, **wanted | replica)
        assert await client.is_closed()
    assert "a Fetch of a replica" in logs[0]["why"]
    assert not world.broker.passed


@played(rights=READER)
async def test_unknown_topic_id_is_not_forwarded(world: GatewayFixture) -> None:
    world.broker.answers[ApiKey.Fetch] = {"responses": []}
    answer = await world.ask(ApiKey.Fetch, 13, **fetch("nowhere", by_id=True))
    assert [p.error_code for topic in answer.responses for p in topic.partitions] == [UNKNOWN_ID]
    assert not world.broker.passed
    topics = [{"topic_id": UUID(int=9), "partition_data": [{"index": 0, "records": b"x"}]}]
    written = await world.ask(ApiKey.Produce, 13, acks=-1, timeout_ms=1, topic_data=topics)
    assert [p.error_code for topic in written.responses for p in topic.partition_responses] == [UNKNOWN_ID]
    assert not world.broker.passed


@played(rights=[])
async def test_denied_produce_without_acks_closes_the_connection(world: GatewayFixture) -> None:
    client = await world.client()
    with capture_logs() as logs:
        await client.send(ApiKey.Produce, 9, **produce("orders", acks=0))
        assert await client.is_closed()
    assert "may not change" in logs[0]["why"]
    assert not world.broker.passed


UNKNOWN_API, DESCRIBE_LOG_DIRS = 12_345, 35
ODD_NAME = "a\x1b[2J" + "b" * 100


@pytest.mark.parametrize("super_user", [False, True])
@pytest.mark.parametrize("api_key", [UNKNOWN_API, ApiKey.DescribeTopicPartitions, DESCRIBE_LOG_DIRS])
@played(authorizer=lambda super_user: Authorizer([ANONYMOUS] if super_user else []))
async def test_request_type_without_an_acl_rule_is_for_super_users_only(
    world: GatewayFixture, api_key: int, super_user: bool
) -> None:
    """An API that the gateway does not know has an empty body. The stub answers with the same bytes."""
    message = api_key.to_bytes(2) + b"\0\0" + b"\0\0\0\1" + b"\xff\xff"
    if api_key in codec.REQUESTS:
        message = codec.encode_request(api_key, codec.versions(api_key).start, 1, "me", {})
    world.broker.answers[ApiKey.DescribeTopicPartitions] = {"topics": []}
    client = await world.client()
    await client.send_bytes(len(message).to_bytes(4) + message)
    assert await client.is_closed() is not super_user
    assert len(world.broker.passed) == super_user


@pytest.fixture
def odd_user(tmp_path: Path) -> ListenerSecurity:
    (tmp_path / "users").write_text(f"{ODD_NAME}:secret\n")
    return ListenerSecurity(SecuritySettings(users=tmp_path / "users"))


@played(rights=[], security=lambda odd_user: odd_user)
async def test_refused_clients_name_is_escaped_in_the_log(
    world: GatewayFixture, odd_user: ListenerSecurity
) -> None:
    client = await world.client()
    assert (await authenticate(client, by_password("PLAIN", ODD_NAME, "secret"))).error_code == 0
    with capture_logs() as logs:
        await client.send_bytes(bytes.fromhex("0000000a 3039 0000 00000001 ffff"))
        assert await client.is_closed()
    assert "'User:a\\x1b[2Jbbb" in logs[0]["why"]
    assert "may not send a request of api 12345" in logs[0]["why"]
    assert len(logs[0]["why"]) < 150


@played(rights=[(Operation.DESCRIBE, CLUSTER, "kafka-cluster")])
async def test_cluster_request_needs_the_same_acl_operation_as_in_kafka(world: GatewayFixture) -> None:
    client = await world.client()
    message = DESCRIBE_LOG_DIRS.to_bytes(2) + b"\0\1" + b"\0\0\0\1" + b"\xff\xff" + b"\xff\xff\xff\xff"
    await client.send_bytes(len(message).to_bytes(4) + message)
    assert not await client.is_closed()
    assert [header.api_key for header in world.broker.passed] == [DESCRIBE_LOG_DIRS]


@pytest.mark.parametrize("brokers_authenticate", [False, True])
@played(
    rights=READER,
    security=lambda brokers_authenticate: ListenerSecurity(brokers_authenticate=brokers_authenticate),
)
async def test_describe_topic_partitions_is_offered_only_where_brokers_authorize_clients(
    world: GatewayFixture, brokers_authenticate: bool
) -> None:
    """They check what passes, so the gateway need not hide what it cannot check."""
    offered = [{"api_key": key, "min_version": 0, "max_version": 0} for key in (3, 75)]
    world.broker.answers[ApiKey.ApiVersions] = {"api_keys": offered}
    keys = {api.api_key for api in (await world.ask(ApiKey.ApiVersions, 0)).api_keys}
    assert ApiKey.Metadata in keys
    assert (ApiKey.DescribeTopicPartitions in keys) is brokers_authenticate


OWN = LAYOUT.requests_topic


@played(rights=[(Operation.WRITE, TOPIC, name) for name in ("orders", OWN)], expose_internal_topics=False)
async def test_internal_topics_stay_closed_despite_write_permission(world: GatewayFixture) -> None:
    written = [{"index": 0, "error_code": 0, "base_offset": 7}]
    world.broker.answers[ApiKey.Produce] = {"responses": [{"name": "orders", "partition_responses": written}]}
    answer = await world.ask(ApiKey.Produce, 9, **produce("orders", OWN, "prices"))
    assert errors_of(answer) == {"orders": 0, OWN: 17, "prices": REFUSED}
    refused = await world.ask(ApiKey.Produce, 9, **produce(OWN, "prices"))
    assert errors_of(refused) == {OWN: 17, "prices": REFUSED}


@pytest.mark.parametrize("version", [12, 13])
@played(rights=[(Operation.DESCRIBE, TOPIC, "orders")])
async def test_denied_topic_id_is_hidden_despite_an_allowed_name(world: GatewayFixture, version: int) -> None:
    """Kafka ignores all names of a request that has an id."""
    wanted = [{"name": "orders", "topic_id": topic_id("prices")}]
    (topic,) = (await world.ask(ApiKey.Metadata, version, topics=wanted)).topics
    assert (topic.error_code, topic.name, topic.partitions) == (REFUSED, None, [])


@played(
    rights=[(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "t"), (Operation.DESCRIBE, TOPIC, "orders")]
)
async def test_described_transaction_shows_only_topics_the_client_may_describe(world: GatewayFixture) -> None:
    topics = [{"topic": name, "partitions": [0]} for name in ("orders", "prices")]
    state = {"error_code": 0, "transactional_id": "t", "transaction_state": "Ongoing", "topics": topics}
    world.broker.answers[ApiKey.DescribeTransactions] = {"transaction_states": [state]}
    for ids, errors in ((["t"], {"t": 0}), (["t", "other"], {"t": 0, "other": 53})):
        answer = await world.ask(ApiKey.DescribeTransactions, 0, transactional_ids=ids)
        assert {one.transactional_id: one.error_code for one in answer.transaction_states} == errors
        shown = [topic.topic for one in answer.transaction_states for topic in one.topics or ()]
        assert shown == ["orders"]
