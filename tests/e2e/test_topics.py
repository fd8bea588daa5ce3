"""The coordinator's topics: created with the required settings, and refused with others."""

import socket

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from structlog.testing import capture_logs

from embedded.broker import EmbeddedBroker
from embedded.java import HOST
from gateway.telemetry.service import expect_topic
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import (
    CREATED_TOPIC_BYTES,
    LEAST_REQUESTS_TOPIC_BYTES,
    TopicLayout,
    size_limits,
)
from kafka_why.topic_reader import TopicsMissing
from records.topic_sizes import with_topic_sizes
from streaming.service import topics
from streaming.service.retention import DAY_MS
from streaming.service.topics import TopicsError, prepare_topics, wanted_settings
from tests.e2e.harness import create_topic, new_layout

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def settings_of(admin: KafkaAdminClient, topic: str) -> dict[str, str]:
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return {name: setting["value"] for name, setting in next(iter(described.values()))[topic].items()}


def test_missing_topics_get_the_required_settings(broker: EmbeddedBroker, admin: KafkaAdminClient) -> None:
    layout = new_layout(request_partitions=3, reply_partitions=5)
    prepare_topics(broker.client_config, layout)
    described = {t["name"]: t for t in admin.describe_topics(list(wanted_settings(layout)))}
    assert {name: len(topic["partitions"]) for name, topic in described.items()} == {
        layout.requests_topic: 3,
        layout.responses_topic: 5,
        layout.groups_topic: 3,
        layout.offsets_topic: 3,
        layout.events_topic: 3,
        layout.dead_letters_topic: 1,
        layout.owner_topic: 1,
        layout.txn_markers_topic: 1,
        layout.transactions_topic: 3,
        layout.telemetry_topic: 3,
    }
    for topic, (_, wanted) in wanted_settings(layout).items():
        assert wanted.items() <= settings_of(admin, topic).items()
    requests = settings_of(admin, layout.requests_topic)
    assert requests["message.timestamp.type"] == "LogAppendTime"
    assert requests["cleanup.policy"] == "delete"
    assert settings_of(admin, layout.groups_topic)["cleanup.policy"] == "compact"


def refusal(broker: EmbeddedBroker, layout: TopicLayout, replication_factor: int = 1) -> list[str]:
    """Return the lines of the error."""
    with pytest.raises(TopicsError) as refused:
        prepare_topics(broker.client_config, layout, replication_factor)
    return [line.strip() for line in str(refused.value).splitlines()]


def test_all_problems_of_topics_are_reported_at_once(broker: EmbeddedBroker) -> None:
    layout = new_layout()
    topic = layout.requests_topic
    wrong = {
        "message.timestamp.type": "CreateTime",
        "cleanup.policy": "compact",
        "retention.ms": str(DAY_MS),
        "max.message.bytes": "1000000",
    }
    create_topic(broker.client_config, topic, 7, wrong)
    create_topic(broker.client_config, layout.groups_topic, 1, {"cleanup.policy": "delete"})
    assert refusal(broker, layout)[1:] == [
        f"{topic} has 7 partitions, 1 are expected",
        f"{topic} has message.timestamp.type=CreateTime, LogAppendTime is needed",
        f"{topic} has cleanup.policy=compact, delete is needed",
        f"{topic} has max.message.bytes=1000000, at least {LEAST_REQUESTS_TOPIC_BYTES} is needed",
        f"{topic} has retention.ms={DAY_MS}, at least {3 * DAY_MS} is needed: "
        "a coordinator that was down would find requests gone",
        f"{layout.groups_topic} has cleanup.policy=delete, compact is needed",
    ]


def test_size_retention_is_refused_for_requests_and_reported_for_other_topics(
    broker: EmbeddedBroker, admin: KafkaAdminClient
) -> None:
    layout = new_layout()
    by_size = {"retention.bytes": str(2**40)}
    requests = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "8388608", **by_size}
    create_topic(broker.client_config, layout.requests_topic, 1, requests)
    create_topic(broker.client_config, layout.events_topic, 1, {"max.message.bytes": "8388608", **by_size})
    with capture_logs() as logs:
        (problem,) = refusal(broker, layout)[1:]
    assert problem.startswith(f"{layout.requests_topic} has retention.bytes={2**40}, -1 is needed: ")
    assert "--add-config retention.bytes=-1" in problem
    named = [log["topic"] for log in logs if log["event"] == "a topic may delete records too early"]
    assert named == [layout.events_topic]


@pytest.mark.parametrize("max_bytes", [LEAST_REQUESTS_TOPIC_BYTES, CREATED_TOPIC_BYTES + 1])
def test_record_size_limits_are_those_of_the_existing_topics(broker: EmbeddedBroker, max_bytes: int) -> None:
    layout = new_layout()
    settings = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    create_topic(
        broker.client_config, layout.requests_topic, 1, {**settings, "max.message.bytes": str(max_bytes)}
    )
    assert prepare_topics(broker.client_config, layout).requests_topic == layout.requests_topic
    with capture_logs() as logs:
        sizes = with_topic_sizes(broker.client_config, layout).sizes
    assert sizes == size_limits(max_bytes, CREATED_TOPIC_BYTES)
    smaller = [log["topic"] for log in logs if log["log_level"] == "warning"]
    assert smaller == ([layout.requests_topic] if max_bytes < CREATED_TOPIC_BYTES else [])


def test_existing_topics_with_too_few_replicas_are_reported(broker: EmbeddedBroker) -> None:
    layout = new_layout()
    prepare_topics(broker.client_config, layout)
    with capture_logs() as logs:
        prepare_topics(broker.client_config, layout)
    assert logs == []
    with capture_logs() as logs:
        prepare_topics(broker.client_config, layout, replication_factor=3)
    assert [log.pop("topic") for log in logs] == sorted(wanted_settings(layout))
    numbers = {
        "replication_factor": 1,
        "wanted_replication_factor": 3,
        "min_insync_replicas": 1,
        "wanted_min_insync_replicas": 2,
    }
    assert all(numbers.items() <= log.items() for log in logs)


def test_refusal_of_the_broker_is_reported_verbatim(broker: EmbeddedBroker) -> None:
    reasons = refusal(broker, new_layout(), replication_factor=3)
    assert len(reasons) == 11  # one line, and one for each topic
    assert all("replication factor of 3 cannot be reached" in reason for reason in reasons[1:])
    bad_name = refusal(broker, TopicLayout.named("no spaces"))
    assert "'no spaces-dead-letters' contains one or more characters other than" in bad_name[1]


def test_address_without_a_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "BROKER_TIMEOUT_MS", 1_000)
    with socket.socket() as bound:
        bound.bind((HOST, 0))  # and nobody listens
        address = f"{HOST}:{bound.getsockname()[1]}"
        with pytest.raises(TopicsError, match=rf"no Kafka broker answers \({address}: Connection refused\)"):
            prepare_topics(ClientConfig(address), new_layout())


def test_gateway_with_client_telemetry_needs_the_telemetry_topic(broker: EmbeddedBroker) -> None:
    layout = new_layout()
    with pytest.raises(
        TopicsMissing, match=f"topic {layout.telemetry_topic} has 0 partitions, 1 are expected"
    ):
        expect_topic(broker.client_config, layout)
