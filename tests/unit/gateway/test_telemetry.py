"""Clients push their metrics (KIP-714): the rules of org.apache.kafka.server.ClientMetricsManager, and what
becomes of a push.
"""

from typing import Any
from uuid import UUID, uuid4

import pytest
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from gateway.authorization.acls import Operation, ResourceType
from gateway.telemetry.service import MAX_BYTES, METRICS, TelemetryWriter
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.telemetry import LAST_POLL, MemberTelemetry
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.otlp import pushed
from tests.harness.waiting import asynchronous

GET, PUSH = ApiKey.GetTelemetrySubscriptions, ApiKey.PushTelemetry
LONG_MS = 3_600_000
ME = {"group_id": "g", "group_member_id": "m-1", "group_instance_id": "m"}
PAYLOAD = pushed(ME, {LAST_POLL: 302.0})
NONE, INVALID_REQUEST, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD = 0, 42, 76, 87
THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID, TELEMETRY_TOO_LARGE = 89, 117, 118


async def subscribed(client: RawClient, client_instance_id: UUID | None = None) -> dict[str, Any]:
    """Ask for the subscription. Return the fields of a push."""
    answer = await client.ask(GET, 0, client_instance_id=client_instance_id)
    assert answer.error_code == NONE
    return {
        "client_instance_id": answer.client_instance_id,
        "subscription_id": answer.subscription_id,
        "metrics": PAYLOAD,
    }


async def push(client: RawClient, fields: dict[str, Any], **more: Any) -> int:
    return int((await client.ask(PUSH, 0, **{**fields, **more})).error_code)


@pytest.mark.parametrize("interval_ms", [None, LONG_MS])
@played(telemetry_interval_ms=lambda interval_ms: interval_ms)
async def test_without_the_option_telemetry_requests_are_answered_by_brokers(
    world: GatewayFixture, interval_ms: int | None
) -> None:
    client = await world.client()
    has = {"api_key": GET, "min_version": 0, "max_version": 9}
    world.broker.answers |= {
        ApiKey.ApiVersions: {"api_keys": [has]},
        GET: {"push_interval_ms": 7},
        PUSH: {"error_code": 5},
    }
    announced = {api.api_key for api in (await client.ask(ApiKey.ApiVersions, 0)).api_keys}
    assert {GET, PUSH} & announced == ({GET} if interval_ms is None else {GET, PUSH})
    world.broker.passed.clear()
    assert (await client.ask(GET, 0)).push_interval_ms == (interval_ms or 7)
    await push(client, {"metrics": b"anything"})
    assert [header.api_key for header in world.broker.passed] == ([GET, PUSH] if interval_ms is None else [])


@played(telemetry_interval_ms=LONG_MS)
async def test_telemetry_client_gets_an_id_and_a_subscription(world: GatewayFixture) -> None:
    answer = await (await world.client()).ask(GET, 0)
    assert answer.client_instance_id.version == 4
    assert answer.requested_metrics == [f"org.apache.kafka.{name}" for name in METRICS]
    assert answer.accepted_compression_types == [4, 3, 1, 2]
    assert (answer.push_interval_ms, answer.telemetry_max_bytes) == (LONG_MS, MAX_BYTES)
    assert answer.delta_temporality
    other = await (await world.client()).ask(GET, 0)
    assert other.client_instance_id != answer.client_instance_id
    assert not world.broker.passed


@played(telemetry_interval_ms=LONG_MS)
async def test_telemetry_push_is_written_as_a_record_of_its_member(world: GatewayFixture) -> None:
    client = await world.client()
    fields = await subscribed(client, UUID(int=7))
    assert await push(client, fields) == NONE
    assert world.evidence.records == [
        MemberTelemetry(
            version=1,
            group_id="g",
            member_id="m-1",
            group_instance_id="m",
            client_instance_id="AAAAAAAAAAAAAAAAAAAABw",
            client_id="me",
            client_host="/127.0.0.1",
            principal="User:ANONYMOUS",
            push_interval_ms=LONG_MS,
            metrics={LAST_POLL: 302.0},
        )
    ]


@played(telemetry_interval_ms=LONG_MS)
async def test_telemetry_request_before_the_interval_is_throttled(world: GatewayFixture) -> None:
    client = await world.client()
    fields = await subscribed(client)
    again = await client.ask(GET, 0, client_instance_id=fields["client_instance_id"])
    assert again.error_code == THROTTLING_QUOTA_EXCEEDED
    assert await push(client, fields) == NONE, "the first push may come at any time"
    assert await push(client, fields) == THROTTLING_QUOTA_EXCEEDED
    other = await client.ask(GET, 0, client_instance_id=uuid4())
    assert other.error_code == THROTTLING_QUOTA_EXCEEDED, "another id makes no other client"
    assert len(world.evidence.records) == 1


@played(telemetry_interval_ms=LONG_MS)
async def test_terminating_push_is_accepted_at_once_and_later_pushes_refused(world: GatewayFixture) -> None:
    client = await world.client()
    fields = await subscribed(client)
    assert await push(client, fields) == NONE
    assert await push(client, fields, terminating=True) == NONE
    for terminating in (True, False, True):
        assert await push(client, fields, terminating=terminating) == INVALID_REQUEST
    assert [record.terminating for record in world.evidence.records] == [False, True]


@played(telemetry_interval_ms=LONG_MS)
async def test_client_may_resubscribe_at_once_after_a_refused_push(world: GatewayFixture) -> None:
    for wrong, error in (
        ({"subscription_id": 1}, UNKNOWN_SUBSCRIPTION_ID),
        *(({"compression_type": kind}, UNSUPPORTED_COMPRESSION_TYPE) for kind in (5, -1, 127)),
    ):
        client = await world.client()
        fields = await subscribed(client)
        assert await push(client, fields, **wrong) == error
        await subscribed(client, fields["client_instance_id"])
    assert not world.evidence.records


@played(telemetry_interval_ms=LONG_MS)
async def test_malformed_telemetry_push_is_refused(world: GatewayFixture) -> None:
    async def refusal(**wrong: Any) -> int:
        client = await world.client()
        return await push(client, await subscribed(client), **wrong)

    assert await refusal(client_instance_id=None) == INVALID_REQUEST
    assert await refusal(client_instance_id=UUID(int=1)) == INVALID_REQUEST
    assert await refusal(metrics=bytes(MAX_BYTES + 1)) == TELEMETRY_TOO_LARGE
    assert await refusal(metrics=b"\0") == INVALID_RECORD
    for kind in range(1, 5):
        assert await refusal(metrics=b"no such stream", compression_type=kind) == INVALID_RECORD
    assert not world.evidence.records


@played(telemetry_interval_ms=LONG_MS)
async def test_telemetry_push_without_a_member_is_accepted_but_not_recorded(world: GatewayFixture) -> None:
    for payload in (
        b"",
        pushed({}, {LAST_POLL: 1.0}),  # a producer's
        pushed({"group_id": "g"}, {LAST_POLL: 1.0}),  # it has not joined
        pushed({**ME, "group_id": "g" * 1_025}, {LAST_POLL: 1.0}),
        pushed(ME, {"consumer.fetch.manager.fetch.rate": 1.0}),  # nobody asked for it
        pushed(ME, {LAST_POLL: -1.0}),  # it has not polled
    ):
        client = await world.client()
        assert await push(client, await subscribed(client), metrics=payload) == NONE
    assert not world.evidence.records


@played(telemetry_interval_ms=LONG_MS, rights=[(Operation.READ, ResourceType.GROUP, "mine")])
async def test_push_about_a_group_without_read_permission_is_not_recorded(world: GatewayFixture) -> None:
    for group_id in ("mine", "yours"):
        client = await world.client()
        payload = pushed({**ME, "group_id": group_id}, {LAST_POLL: 1.0})
        assert await push(client, await subscribed(client), metrics=payload) == NONE
    assert [record.group_id for record in world.evidence.records] == ["mine"]


BOUND = 10_000
SAID = MemberTelemetry(
    version=1,
    group_id="g",
    member_id="m",
    client_instance_id="i",
    client_id="me",
    client_host="/127.0.0.1",
    principal="User:ANONYMOUS",
    push_interval_ms=60_000,
    metrics={LAST_POLL: 1.0},
)


@asynchronous
async def test_unsent_telemetry_over_the_queue_limit_is_dropped() -> None:
    producer = kafka_clients.telemetry_producer(ClientConfig("127.0.0.1:1"))
    writer = TelemetryWriter(lambda: producer, TopicLayout.named())
    with capture_logs() as logs:
        for _ in range(BOUND + 2):
            writer.write(SAID)
        assert len(producer) == BOUND
        assert [line["records"] for line in logs] == [1], "and the second one in the line a second later"
        producer.purge()
        writer.close()
    assert len(producer) == 0
