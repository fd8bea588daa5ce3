"""What clients said waits for the brokers up to a bound, and is dropped beyond."""

import asyncio

from structlog.testing import capture_logs

from gateway.telemetry.service import TelemetryWriter
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.telemetry import LAST_POLL, MemberTelemetry

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


def test_unsent_telemetry_is_dropped_beyond_the_queue_limit() -> None:
    producer = kafka_clients.telemetry_producer(ClientConfig("127.0.0.1:1"))
    writer = TelemetryWriter(lambda: producer, TopicLayout.named())

    async def write() -> None:
        for _ in range(BOUND + 2):
            writer.write(SAID)

    with capture_logs() as logs:
        asyncio.run(write())
        assert len(producer) == BOUND
        assert [line["records"] for line in logs] == [1], "and the second one in the line a second later"
        producer.purge()
        writer.close()
    assert len(producer) == 0
