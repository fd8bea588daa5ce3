"""The topics on the broker: created with the required settings, or refused if their settings differ."""

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, NoError, TopicAlreadyExistsError, for_code

from checkpoints.checkpoint import new_namespace
from checkpoints.metadata import Identity
from records import kafka_clients
from records.client_config import ClientConfig
from records.layout import TopicLayout
from records.sharding import DEFAULT_SHARDS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# After a longer downtime the coordinator may find that requests were deleted, and then refuses to continue.
LONGEST_DOWNTIME_MS = 3 * DAY_MS

# How long to wait for a broker that is just starting.
BROKER_TIMEOUT_MS = 10_000
_ERROR_MAX_CHARS = 300

Settings = Mapping[str, str]


class TopicsError(RuntimeError):
    """The topics cannot be used or created. The message names each topic and its problem."""


def prepare_topics(client_config: ClientConfig, layout: TopicLayout, replication_factor: int = 1) -> Identity:
    """Create missing topics, check existing ones, and return the identity that the state would belong to.

    Raises TopicsError with every problem. The identity's namespace is a new one.
    """
    try:
        admin = kafka_clients.admin(client_config, bootstrap_timeout_ms=BROKER_TIMEOUT_MS)
    except ValueError as error:
        raise TopicsError(f"{client_config!r} is not a list of HOST:PORT: {error}") from error
    except KafkaError as error:
        raise TopicsError(f"no Kafka broker answers at {client_config}") from error
    try:
        return _prepare(admin, layout, replication_factor)
    except KafkaError as error:
        # kafka-python's errors show the whole request and the whole response.
        reason = str(error)[:_ERROR_MAX_CHARS]
        raise TopicsError(f"preparing the topics on {client_config} failed: {reason}") from error
    finally:
        admin.close()


def wanted_settings(layout: TopicLayout) -> dict[str, tuple[int, Settings]]:
    """The number of partitions and the settings of each topic."""
    output_bytes = str(layout.response_record_max_bytes)
    return {
        layout.requests_topic: (
            layout.request_partitions,
            {
                "message.timestamp.type": "LogAppendTime",
                "cleanup.policy": "delete",
                "retention.ms": str(7 * DAY_MS),
                "max.message.bytes": str(layout.request_record_max_bytes),
            },
        ),
        layout.responses_topic: (
            layout.reply_partitions,
            {"cleanup.policy": "delete", "retention.ms": str(HOUR_MS), "max.message.bytes": output_bytes},
        ),
        layout.groups_topic: (
            layout.request_partitions,
            {"cleanup.policy": "compact", "max.message.bytes": output_bytes},
        ),
        layout.offsets_topic: (
            layout.request_partitions,
            {"cleanup.policy": "compact", "max.message.bytes": output_bytes},
        ),
        layout.events_topic: (
            layout.request_partitions,
            {"cleanup.policy": "delete", "retention.ms": str(30 * DAY_MS), "max.message.bytes": output_bytes},
        ),
        layout.dead_letters_topic: (
            1,
            {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS), "max.message.bytes": output_bytes},
        ),
        layout.owner_topic: (1, {"cleanup.policy": "compact"}),
    }


def _prepare(admin: KafkaAdminClient, layout: TopicLayout, replication_factor: int) -> Identity:
    wanted = wanted_settings(layout)
    missing = wanted.keys() - set(admin.list_topics())
    if missing:
        _create(admin, {topic: wanted[topic] for topic in sorted(missing)}, replication_factor)
    described = {t["name"]: t for t in admin.describe_topics(list(wanted))}
    found = _configs(admin, list(wanted))
    problems = [
        problem
        for topic, (partitions, settings) in wanted.items()
        for problem in _problems(
            topic, len(described[topic]["partitions"]), partitions, found[topic], settings
        )
    ]
    if problems:
        raise TopicsError("the topics are not fit for the coordinator:\n  " + "\n  ".join(problems))
    return Identity(
        cluster_id=str(admin.describe_cluster()["cluster_id"]),
        requests_topic=layout.requests_topic,
        requests_topic_id=str(described[layout.requests_topic]["topic_id"]),
        request_partitions=layout.request_partitions,
        member_id_namespace=new_namespace(),
        shards=DEFAULT_SHARDS,
    )


def _create(
    admin: KafkaAdminClient, topics: Mapping[str, tuple[int, Settings]], replication_factor: int
) -> None:
    options = {
        topic: {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": dict(settings),
        }
        for topic, (partitions, settings) in topics.items()
    }
    answers: list[dict[str, Any]] = admin.create_topics(options, raise_errors=False)["topics"]
    # Another process may have created a topic by now. The checks that follow are the same.
    refused = [a for a in answers if a["error_code"] not in (NoError.errno, TopicAlreadyExistsError.errno)]
    if refused:
        reasons = [f"{a['name']}: {a['error_message'] or for_code(a['error_code'])}" for a in refused]
        raise TopicsError("the broker does not create these topics:\n  " + "\n  ".join(reasons))
    admin.wait_for_topics(list(topics))


def _configs(admin: KafkaAdminClient, topics: list[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    answer: dict[str, Any] = admin.describe_configs(resources, config_filter="all")
    by_topic = next(iter(answer.values()))
    return {topic: {name: str(c["value"]) for name, c in by_topic[topic].items()} for topic in topics}


def _problems(
    topic: str, found_partitions: int, wanted_partitions: int, found: Settings, wanted: Settings
) -> list[str]:
    """The problems of an existing topic that the coordinator cannot work with."""
    problems = [
        f"{topic} has {name}={found[name]}, {wanted[name]} is needed"
        for name in ("message.timestamp.type", "cleanup.policy")
        if name in wanted and found[name] != wanted[name]
    ]
    if found_partitions != wanted_partitions:
        problems.insert(0, f"{topic} has {found_partitions} partitions, {wanted_partitions} are expected")
    max_bytes, wanted_bytes = found["max.message.bytes"], wanted.get("max.message.bytes", "0")
    if int(max_bytes) < int(wanted_bytes):
        problems.append(f"{topic} has max.message.bytes={max_bytes}, at least {wanted_bytes} is needed")
    retention_ms = int(found["retention.ms"])
    if "message.timestamp.type" in wanted and 0 <= retention_ms < LONGEST_DOWNTIME_MS:
        problems.append(
            f"{topic} has retention.ms={retention_ms}, at least {LONGEST_DOWNTIME_MS} is needed: "
            "a coordinator that was down would find requests gone"
        )
    return problems
