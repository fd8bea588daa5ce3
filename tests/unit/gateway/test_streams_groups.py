"""The streams protocol (KIP-1071) at the gateway: its switch, rights, metadata of topics in requests, and the
creation of internal topics.

`tests/conformance/scripts/streams_*.txt` have the answers beside Kafka's.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from kafka.protocol.api_key import ApiKey
from msgspec import UNSET

from gateway.apis import context
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.security.authentication import ListenerSecurity
from gateway.upstream import share_groups
from gateway.wire import codec
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from tests.harness.gateway import LAYOUT, TOPICS, GatewayFixture, RawClient, Right, played, topic_id
from tests.harness.waiting import until

HEARTBEAT, DESCRIBE = ApiKey.StreamsGroupHeartbeat, ApiKey.StreamsGroupDescribe
CREATE = ApiKey.CreateTopics
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
MISSING_SOURCE, MISSING_INTERNAL = 1, 3
INVALID_REQUEST, INVALID_TOPOLOGY, DENIED, GROUP_DENIED = 42, 130, 29, 30
MEMBER: tuple[Right, ...] = (
    (Operation.READ, GROUP, "g"),
    (Operation.DESCRIBE, GROUP, "g"),
    (Operation.DESCRIBE, TOPIC, "orders"),
    (Operation.DESCRIBE, TOPIC, "app-*"),
)


def subtopology(*sources: str, **more: Any) -> dict[str, Any]:
    return {"subtopology_id": "0", "source_topics": sources or ("orders",)} | more


def joining(*subtopologies: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the fields of a StreamsGroupHeartbeat that joins group g as member m."""
    fields: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 0, "process_id": "p"}
    fields |= {"rebalance_timeout_ms": 60_000, "endpoint_information_epoch": -1, "client_tags": []}
    fields |= {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    return fields | {"topology": {"epoch": 0, "subtopologies": subtopologies or [subtopology()]}} | more


def counting() -> dict[str, Any]:
    """Return a subtopology with a changelog, which does not exist."""
    settings = [{"key": "cleanup.policy", "value": "compact"}]
    changelog = {"name": "app-counts", "replication_factor": 2, "topic_configs": settings}
    return subtopology(state_changelog_topics=[changelog])


def missing(number: int) -> dict[str, Any]:
    """Return a subtopology with this number of sources, none of which exists."""
    return subtopology(*(f"app-{index}" for index in range(number)))


async def beat(world: GatewayFixture, epoch: int, **more: Any) -> Any:
    """Send a heartbeat without news."""
    fields = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "endpoint_information_epoch": 0}
    return await world.ask(HEARTBEAT, 1, **fields | more)


def last_asked(world: GatewayFixture) -> StreamsGroupHeartbeat:
    asked = world.core.asked[-1]
    assert isinstance(asked, StreamsGroupHeartbeat)
    return asked


def statuses(answer: Any) -> dict[int, str]:
    assert answer.error_code == 0, answer
    return {status.status_code: status.status_detail for status in answer.status}


def creates(world: GatewayFixture, *, error: int = 0, message: str | None = None) -> list[Any]:
    """Let the broker create topics, or refuse that with this error. Return the list of the requests."""
    asked: list[Any] = []

    def answer(request: Any) -> dict[str, Any]:
        asked.append(request)
        if not error:
            world.broker.topics |= {topic.name: topic.num_partitions for topic in request.topics}
        found = [{"name": t.name, "error_code": error, "error_message": message} for t in request.topics]
        return {"topics": found}

    world.broker.scripts[CREATE] = answer
    return asked


def created_by(world: GatewayFixture) -> share_groups.StreamsTopics:
    return world.gateway._shared.services.streams_topics


@contextmanager
def later(ms: int) -> Iterator[None]:
    """Let this time pass for heartbeats and failures."""
    later_s = time.monotonic() + ms / 1_000
    with (
        patch.object(share_groups, "monotonic", lambda: later_s),
        patch.object(context, "monotonic", lambda: later_s),
    ):
        yield


async def authenticated(world: GatewayFixture) -> RawClient:
    """Return a connection of a client that the broker has authenticated."""
    world.broker.answers[ApiKey.SaslHandshake] = {"error_code": 0, "mechanisms": ["PLAIN"]}
    accepted = {"error_code": 0, "error_message": None, "auth_bytes": b""}
    world.broker.answers[ApiKey.SaslAuthenticate] = accepted
    client = await world.client()
    await client.ask(ApiKey.SaslHandshake, 1, mechanism="PLAIN")
    await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=b"\0ann\0secret")
    return client


@pytest.mark.parametrize("is_on", [True, False])
@played(streams_protocol=lambda is_on: is_on)
async def test_ksh1_streams_protocol_is_offered_only_if_it_is_on(world: GatewayFixture, is_on: bool) -> None:
    keys, feature = (HEARTBEAT, DESCRIBE), "streams.version"
    world.broker.answers[ApiKey.ApiVersions] = {
        "api_keys": [{"api_key": key, "min_version": 0, "max_version": 0} for key in keys],
        "finalized_features": [{"name": feature, "min_version_level": 2, "max_version_level": 2}],
    }
    offered = await world.ask(ApiKey.ApiVersions, 4)
    versions = {api.api_key: api.max_version for api in offered.api_keys if api.api_key in keys}
    assert versions == ({HEARTBEAT: 1, DESCRIBE: 1} if is_on else {})
    levels = {one.name: one.max_version_level for one in offered.finalized_features}
    assert levels.get(feature) == (1 if is_on else None)
    for version in codec.versions(HEARTBEAT):
        assert (await world.ask(HEARTBEAT, version, **joining())).error_code == (0 if is_on else 35)
        (group,) = (await world.ask(DESCRIBE, version, group_ids=["g"])).groups
        assert (group.group_id, group.error_code) == ("g", 0 if is_on else 35)
    assert bool(world.core.asked) is is_on


@pytest.mark.parametrize(
    ("request_fields", "error", "message"),
    [
        (joining(group_id="other"), GROUP_DENIED, ""),
        (joining(subtopology(repartition_sink_topics=["secret"])), DENIED, ""),
        (joining(subtopology("secret", "__transaction_state")), INVALID_TOPOLOGY, "__transaction_state"),
        (joining(subtopology("secret", LAYOUT.requests_topic)), INVALID_TOPOLOGY, LAYOUT.requests_topic),
        (joining(subtopology("!" * 30_000, *"!#$%&()*+")), INVALID_TOPOLOGY, "and 7 more topics."),
        (joining(subtopology(*map("!{}".format, range(13_000)))), INVALID_REQUEST, "more topics than"),
    ],
    ids=["KSH2", "KSH5", "KSH3", "KSH3 own", "KSH4", "KSQ14"],
)
@played(expose_internal_topics=False, rights=MEMBER)
async def test_denied_or_invalid_streams_heartbeat_never_reaches_the_coordinator(
    world: GatewayFixture, request_fields: dict[str, Any], error: int, message: str
) -> None:
    """Names are checked before rights. Topics that the topology only writes need rights, too."""
    refused = await world.ask(HEARTBEAT, 1, **request_fields)
    assert (refused.error_code, refused.member_id, refused.status) == (error, "", [])
    assert message in (refused.error_message or "")
    assert len(refused.error_message or "") < 250
    assert world.core.asked == []


@played(topics_look_up_s=0.05)
async def test_ksq1_ksq5_no_internal_topic_is_created_without_brokers(world: GatewayFixture) -> None:
    created = creates(world)
    world.broker.silent = True
    assert MISSING_SOURCE in statuses(await world.ask(HEARTBEAT, 1, **joining(counting())))
    assert (last_asked(world).topics, created) == (None, [])


@played
async def test_ksq2_heartbeats_carry_metadata_until_all_topics_exist(world: GatewayFixture) -> None:
    joined = await world.ask(HEARTBEAT, 1, **joining(subtopology("late")))
    assert MISSING_SOURCE in statuses(joined)
    waiting = await beat(world, joined.member_epoch)
    assert last_asked(world).topics == {"late": None}
    world.broker.topics["late"] = 2
    world.cluster._by_name.clear()  # or a second later
    ready = await beat(world, waiting.member_epoch)
    assert last_asked(world).topics == {"late": TopicImage(topic_id("late"), 2)}
    assert MISSING_SOURCE not in statuses(ready)
    await beat(world, ready.member_epoch)
    assert last_asked(world).topics is None


@played
async def test_ksq10_to_ksq12_missing_internal_topics_are_created(world: GatewayFixture) -> None:
    created = creates(world)
    joined = await world.ask(HEARTBEAT, 1, **joining(counting()))
    orders = TopicImage(topic_id("orders"), TOPICS["orders"])
    assert last_asked(world).topics == {"orders": orders, "app-counts": None}
    assert "app-counts" in statuses(joined)[MISSING_INTERNAL]
    await until(lambda: len(created) == 1)
    (topic,) = created[0].topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("app-counts", TOPICS["orders"], 2)
    assert [(config.name, config.value) for config in topic.configs] == [("cleanup.policy", "compact")]
    await until(lambda: not created_by(world)._tasks)
    ready = await beat(world, joined.member_epoch)
    assert MISSING_INTERNAL not in statuses(ready)
    assert len(created) == 1


@played(rights=MEMBER)
async def test_kst18_create_right_on_the_cluster_allows_internal_topics(world: GatewayFixture) -> None:
    created = creates(world)
    joined = await world.ask(HEARTBEAT, 1, **joining(counting()))
    assert statuses(joined)[MISSING_INTERNAL].endswith("not authorized to create app-counts.")
    assert created == []
    assert last_asked(world).not_created is UNSET
    world.allow(*MEMBER, (Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME))
    assert "authorized" not in statuses(await beat(world, joined.member_epoch))[MISSING_INTERNAL]
    assert last_asked(world).not_created == "The client is not authorized to create app-counts."
    await beat(world, joined.member_epoch)
    assert last_asked(world).not_created is UNSET
    await until(lambda: len(created) == 1)


@played
async def test_kst20_failed_internal_topic_creation_is_reported_and_retried(world: GatewayFixture) -> None:
    created = creates(world, error=37, message="why")
    joined = await world.ask(HEARTBEAT, 1, **joining(counting()))
    await until(lambda: bool(created) and not created_by(world)._tasks)
    again = await beat(world, joined.member_epoch)
    assert "app-counts (why)" in statuses(again)[MISSING_INTERNAL]
    assert not created_by(world)._tasks
    with later(2 * again.heartbeat_interval_ms):
        await beat(world, again.member_epoch)
        await until(lambda: len(created) == 2)


@pytest.mark.parametrize("is_reauthenticating", [False, True])
@played(security=ListenerSecurity(brokers_authenticate=True))
async def test_ksq11_clients_of_brokers_create_topics_on_their_own_connection(
    world: GatewayFixture, is_reauthenticating: bool
) -> None:
    """While the client authenticates again, nothing else may be sent there."""
    created = creates(world)
    client = await authenticated(world)
    if is_reauthenticating:
        await client.ask(ApiKey.SaslHandshake, 1, mechanism="PLAIN")
    connections = len(world.broker.writers)
    await client.ask(HEARTBEAT, 1, **joining(counting()))
    await until(lambda: not created_by(world)._tasks)
    assert (len(created), len(world.broker.writers)) == (0 if is_reauthenticating else 1, connections)
    if not is_reauthenticating:
        assert (await client.ask(ApiKey.Metadata, 12, topics=None)).topics


@played(security=ListenerSecurity(brokers_authenticate=True))
async def test_closed_connection_cancels_its_topic_creation(world: GatewayFixture) -> None:
    world.broker.unanswered.add(CREATE)
    client = await authenticated(world)
    await client.ask(HEARTBEAT, 1, **joining(counting()))
    await until(lambda: bool(created_by(world)._tasks))
    client.writer.close()
    await until(lambda: not created_by(world)._tasks, timeout_s=15)  # the broker may take 30 s
    assert not created_by(world)._in_flight
    assert created_by(world).failures("User:ann", ["app-counts"]) == {}


@played(security=ListenerSecurity(brokers_authenticate=True), upstream_timeout_s=2.0)
async def test_reauthentication_after_an_unanswered_creation_times_out(world: GatewayFixture) -> None:
    world.broker.unanswered.add(CREATE)
    client = await authenticated(world)
    await client.ask(HEARTBEAT, 1, **joining(counting()))
    await client.send(ApiKey.SaslHandshake, 1, mechanism="PLAIN")
    assert await client.is_closed()


@played(security=ListenerSecurity(brokers_authenticate=True))
async def test_topic_creation_on_a_lost_broker_connection_closes_the_client(world: GatewayFixture) -> None:
    client = await authenticated(world)
    (connection,) = world.gateway._connections
    world.broker.writers[-1].close()
    await until(lambda: not connection.has_upstream)
    await client.send(HEARTBEAT, 1, **joining(counting()))
    await client.rest()
    created = creates(world)
    again = await authenticated(world)
    await again.ask(HEARTBEAT, 1, **joining(counting()))
    await until(lambda: len(created) == 1)


@played(rights=MEMBER)
async def test_many_topics_are_reported_at_most_once_per_heartbeat_interval(world: GatewayFixture) -> None:
    """The rights on them are decided in few steps."""
    answer = await world.ask(HEARTBEAT, 1, **joining(missing(500)))
    assert world.authorizer is not None and world.authorizer.decisions < 10
    answer = await beat(world, answer.member_epoch)
    assert len(last_asked(world).topics or ()) == 500
    answer = await beat(world, answer.member_epoch)
    assert last_asked(world).topics is None
    with later(answer.heartbeat_interval_ms):
        await beat(world, answer.member_epoch)
    assert len(last_asked(world).topics or ()) == 500


@played(large_bytes_per_s=1, large_burst_bytes=1)
async def test_heartbeat_with_much_topic_metadata_counts_as_a_large_request(world: GatewayFixture) -> None:
    answer = await world.ask(HEARTBEAT, 1, **joining(missing(500)))
    waiting = asyncio.create_task(beat(world, answer.member_epoch))
    await until(lambda: world.gateway._shared.large_requests.waiting == 1, timeout_s=15)
    waiting.cancel()
