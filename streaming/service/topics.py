"""The topics on the broker: created with the required settings, or refused if their settings differ."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import structlog
from kafka import KafkaAdminClient
from kafka.errors import KafkaError, NoError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from checkpoints.checkpoint import Checkpoint, new_namespace
from checkpoints.metadata import Identity
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.refusals import ClusterRefused, NoBroker
from kafka_why.contract.layout import (
    LEAST_REQUESTS_TOPIC_BYTES,
    LEAST_RESPONSES_TOPIC_BYTES,
    RECORD_OVERHEAD_BYTES,
    TopicLayout,
)
from kafka_why.errors import MultilineError
from records.topic_sizes import MAX_MESSAGE_BYTES, topic_settings, with_topic_sizes
from streaming.query.admission import DEFAULT_SHARDS
from streaming.service.retention import DAY_MS, HOUR_MS, LeastRetention, Settings, least_retentions

# The maximum wait for a broker that is just starting.
BROKER_TIMEOUT_MS = 10_000
_ERROR_MAX_CHARS = 300
# The time within which every broker has to know a topic that was just created.
_KNOWN_TIMEOUT_S = 10.0
_RETRY_S = 0.1

# On a cluster of three brokers or more, so that the loss of any one broker loses and stops nothing.
REPLICAS, REPLICAS_IN_SYNC = 3, 2
_MIN_IN_SYNC = "min.insync.replicas"

Wanted = Mapping[str, tuple[int, Settings]]
"""The number of partitions and the settings of each topic."""

# No deletion by size, whatever log.retention.bytes the brokers have. See `streaming.service.retention`.
_DELETED_BY_TIME: Settings = MappingProxyType({"cleanup.policy": "delete", "retention.bytes": "-1"})

# Each transaction is a record and its tombstone, so nearly all records of the topic are obsolete. Small
# segments are compacted soon, and the follower of transactions reads little at its start.
_TRANSACTIONS: Settings = MappingProxyType(
    {
        "cleanup.policy": "compact",
        "segment.bytes": str(16 * 1024 * 1024),
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": str(HOUR_MS),
    }
)

# The last record of each member, for a week. Small segments are compacted soon, and a reader reads little.
# The brokers' clock stamps a record, as it stamps requests.
_TELEMETRY: Settings = MappingProxyType(
    {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "compact,delete",
        "retention.ms": str(7 * DAY_MS),
        "retention.bytes": "-1",
        "segment.bytes": str(16 * 1024 * 1024),
        "segment.ms": str(HOUR_MS),
        "min.cleanable.dirty.ratio": "0.1",
    }
)

# An older sighting is of a rebalance that is already in the log.
SIGHTINGS_TOPIC: tuple[int, Settings] = (
    1,
    {"message.timestamp.type": "LogAppendTime", **_DELETED_BY_TIME, "retention.ms": str(3 * DAY_MS)},
)

log = structlog.get_logger()


class TopicsError(MultilineError):
    """The topics cannot be used or created. The message names each topic and its problem."""


@contextmanager
def as_topics_error(problem: str) -> Iterator[None]:
    """Raise TopicsError with the problem and its reason if the block raises KafkaError."""
    try:
        yield
    except KafkaError as error:
        raise TopicsError(f"{problem}: {error}") from error


@dataclass(frozen=True, slots=True)
class Replication:
    """The number of replicas of each partition, and of those that must have a record before it is
    acknowledged.
    """

    factor: int
    min_in_sync: int

    @classmethod
    def on(cls, brokers: int, factor: int | None, min_in_sync: int | None) -> "Replication":
        """Return the given numbers, or where they are None the defaults for this number of live brokers.

        Raises TopicsError if no record could ever be written.
        """
        if factor is None:
            factor = min(REPLICAS, brokers)
        if min_in_sync is None:
            min_in_sync = REPLICAS_IN_SYNC if factor >= REPLICAS else 1
        if min_in_sync > factor:
            raise TopicsError(f"{_MIN_IN_SYNC}={min_in_sync} is more than the replication factor, {factor}")
        return cls(factor, min_in_sync)


@dataclass(frozen=True, slots=True)
class FoundTopics:
    """Topics of a cluster."""

    cluster_id: str
    ids: Mapping[str, str]  # by name
    partitions: Mapping[str, int]  # the number of partitions, by name


def prepare_topics(
    client_config: ClientConfig,
    layout: TopicLayout,
    replication_factor: int | None = None,
    min_insync_replicas: int | None = None,
) -> Identity:
    """Create missing topics, check existing ones, and return the identity of a new state on these topics.

    Numbers that are None get the default of `Replication`. A log line names each existing topic with less
    replication than a new one would have. Raises TopicsError with every problem. The identity's
    `member_id_namespace` is new.
    """
    found = prepare(
        client_config,
        wanted_settings(layout),
        least_retentions(layout),
        replication_factor,
        min_insync_replicas,
        # Existing topics may have less than new ones. The coordinator adapts its own limits to them
        # (`records.topic_sizes`).
        least_bytes={
            layout.requests_topic: min(layout.request_record_max_bytes, LEAST_REQUESTS_TOPIC_BYTES),
            layout.responses_topic: min(layout.response_record_max_bytes, LEAST_RESPONSES_TOPIC_BYTES),
        },
    )
    return Identity(
        cluster_id=found.cluster_id,
        requests_topic=layout.requests_topic,
        requests_topic_id=found.ids[layout.requests_topic],
        request_partitions=layout.request_partitions,
        member_id_namespace=new_namespace(),
        shards=DEFAULT_SHARDS,
    )


def prepare(
    client_config: ClientConfig,
    wanted: Wanted,
    least: Mapping[str, LeastRetention],
    replication_factor: int | None = None,
    min_insync_replicas: int | None = None,
    least_bytes: Mapping[str, int] = MappingProxyType({}),
) -> FoundTopics:
    """Create and check the topics `wanted`, as `prepare_topics` does. Raises TopicsError.

    `least` has the minimum retention of topics. `least_bytes` has the `max.message.bytes` that suffices for
    an existing topic, if that is less than for a new one.
    """
    with _admin_client(client_config) as admin:
        cluster = admin.describe_cluster()
        live = [broker for broker in cluster["brokers"] if not broker.get("is_fenced")]
        replication = Replication.on(len(live), replication_factor, min_insync_replicas)
        missing = wanted.keys() - set(admin.list_topics())
        if missing:
            _create(admin, {topic: wanted[topic] for topic in sorted(missing)}, replication)
        described, found_settings = _describe_topics(admin, list(wanted))
    problems = [
        problem
        for topic, (partitions, settings) in wanted.items()
        for problem in (
            *_partition_problems(topic, len(described[topic]["partitions"]), partitions),
            *_setting_problems(topic, found_settings[topic], settings),
            *_size_problems(topic, found_settings[topic], settings, least_bytes.get(topic)),
            *_retention_problems(topic, found_settings[topic], least.get(topic)),
        )
    ]
    if problems:
        raise TopicsError("the topics are not fit for the coordinator:\n  " + "\n  ".join(problems))
    for topic in sorted(wanted.keys() - missing):
        _warn_of_less_replication(topic, described[topic], found_settings[topic], replication)
    return FoundTopics(
        str(cluster["cluster_id"]),
        {topic: str(described[topic]["topic_id"]) for topic in wanted},
        {topic: partitions for topic, (partitions, _) in wanted.items()},
    )


def find_topic(client_config: ClientConfig, topic: str) -> FoundTopics:
    """Return the cluster's entry of a topic, without ids if the topic does not exist. Raises TopicsError."""
    with _admin_client(client_config) as admin:
        described = {t["name"]: t for t in admin.describe_topics([topic])}.get(topic)
        cluster_id = str(admin.describe_cluster()["cluster_id"])
        if described is None or not described["partitions"]:
            return FoundTopics(cluster_id, {}, {})
        return FoundTopics(
            cluster_id, {topic: str(described["topic_id"])}, {topic: len(described["partitions"])}
        )


@contextmanager
def _admin_client(client_config: ClientConfig) -> Iterator[KafkaAdminClient]:
    """Yield an admin client until the block ends. Its errors become TopicsErrors."""
    try:
        admin = kafka_clients.admin(client_config, bootstrap_timeout_ms=BROKER_TIMEOUT_MS)
    except ValueError as error:
        servers = client_config.bootstrap_servers
        raise TopicsError(f"{servers!r} is not a list of HOST:PORT: {error}") from error
    except (ClusterRefused, NoBroker) as error:
        raise TopicsError(str(error)) from error
    except KafkaError as error:
        raise TopicsError(f"no Kafka broker answers ({client_config}): {error}") from error
    try:
        yield admin
    except KafkaError as error:
        # kafka-python's errors show the whole request and the whole response.
        reason = str(error)[:_ERROR_MAX_CHARS]
        raise TopicsError(f"preparing the topics on {client_config} failed: {reason}") from error
    finally:
        admin.close()


def wanted_settings(layout: TopicLayout) -> Wanted:
    """Return the number of partitions and the settings of each topic."""
    output_bytes = str(layout.view_max_bytes + RECORD_OVERHEAD_BYTES)
    return {
        layout.requests_topic: (
            layout.request_partitions,
            {
                "message.timestamp.type": "LogAppendTime",
                **_DELETED_BY_TIME,
                "retention.ms": str(7 * DAY_MS),
                MAX_MESSAGE_BYTES: str(layout.request_record_max_bytes),
            },
        ),
        layout.responses_topic: (
            layout.reply_partitions,
            {
                **_DELETED_BY_TIME,
                "retention.ms": str(HOUR_MS),
                MAX_MESSAGE_BYTES: str(layout.response_record_max_bytes),
            },
        ),
        layout.groups_topic: (
            layout.request_partitions,
            {"cleanup.policy": "compact", MAX_MESSAGE_BYTES: output_bytes},
        ),
        layout.offsets_topic: (
            layout.request_partitions,
            {"cleanup.policy": "compact", MAX_MESSAGE_BYTES: output_bytes},
        ),
        layout.events_topic: (
            layout.request_partitions,
            {**_DELETED_BY_TIME, "retention.ms": str(30 * DAY_MS), MAX_MESSAGE_BYTES: output_bytes},
        ),
        layout.dead_letters_topic: (
            1,
            {**_DELETED_BY_TIME, "retention.ms": str(7 * DAY_MS), MAX_MESSAGE_BYTES: output_bytes},
        ),
        layout.owner_topic: (1, {"cleanup.policy": "compact"}),
        layout.txn_markers_topic: (
            layout.txn_marker_partitions,
            {**_DELETED_BY_TIME, "retention.ms": str(7 * DAY_MS)},
        ),
        layout.transactions_topic: (layout.request_partitions, _TRANSACTIONS),
        layout.telemetry_topic: (layout.request_partitions, _TELEMETRY),
    }


def _describe_topics(
    admin: KafkaAdminClient, topics: list[str]
) -> tuple[dict[str, Any], Mapping[str, Settings]]:
    """Return the description and the settings of each topic. Wait until a broker knows topics that were just
    created.
    """
    give_up_s = time.monotonic() + _KNOWN_TIMEOUT_S
    while True:
        is_last_attempt = time.monotonic() > give_up_s
        described = {t["name"]: t for t in admin.describe_topics(topics)}
        try:
            if is_last_attempt or all(described[topic]["partitions"] for topic in topics):
                return described, topic_settings(admin, topics)
        except UnknownTopicOrPartitionError:
            if is_last_attempt:
                raise
        time.sleep(_RETRY_S)


def _warn_of_less_replication(
    topic: str, described: Mapping[str, Any], found: Settings, wanted: Replication
) -> None:
    """Log a warning if an existing topic has less replication than a new one would have."""
    factor = min(len(partition["replica_nodes"]) for partition in described["partitions"])
    min_in_sync = int(found[_MIN_IN_SYNC])
    if factor < wanted.factor or min_in_sync < wanted.min_in_sync:
        log.warning(
            "a topic has fewer replicas than a new one would have on this cluster",
            topic=topic,
            replication_factor=factor,
            wanted_replication_factor=wanted.factor,
            min_insync_replicas=min_in_sync,
            wanted_min_insync_replicas=wanted.min_in_sync,
        )


def _create(
    admin: KafkaAdminClient, topics: Mapping[str, tuple[int, Settings]], replication: Replication
) -> None:
    """Create the topics, and wait until a broker knows them. Raises TopicsError if one is refused."""
    options = {
        topic: {
            "num_partitions": partitions,
            "replication_factor": replication.factor,
            # Always given, because the brokers' default may exceed the number of replicas.
            "configs": {**settings, _MIN_IN_SYNC: str(replication.min_in_sync)},
        }
        for topic, (partitions, settings) in topics.items()
    }
    answers: list[dict[str, Any]] = admin.create_topics(options, raise_errors=False)["topics"]
    # Another process may have created a topic meanwhile. It is checked like any existing topic.
    refused = [a for a in answers if a["error_code"] not in (NoError.errno, TopicAlreadyExistsError.errno)]
    if refused:
        reasons = [f"{a['name']}: {a['error_message'] or for_code(a['error_code'])}" for a in refused]
        raise TopicsError("the broker does not create these topics:\n  " + "\n  ".join(reasons))
    admin.wait_for_topics(list(topics))


def _partition_problems(topic: str, found: int, wanted: int) -> Iterator[str]:
    if found != wanted:
        yield f"{topic} has {found} partitions, {wanted} are expected"


def _setting_problems(topic: str, found: Settings, wanted: Settings) -> Iterator[str]:
    """Yield the settings of an existing topic that must be as wanted and are not."""
    for name in ("message.timestamp.type", "cleanup.policy"):
        if name in wanted and set(found[name].split(",")) != set(wanted[name].split(",")):
            yield f"{topic} has {name}={found[name]}, {wanted[name]} is needed"


def _size_problems(topic: str, found: Settings, wanted: Settings, least_bytes: int | None) -> Iterator[str]:
    """Yield a problem if the topic does not accept records of `least_bytes`, by default the wanted size."""
    if least_bytes is None:
        least_bytes = int(wanted.get(MAX_MESSAGE_BYTES, "0"))
    if int(found[MAX_MESSAGE_BYTES]) < least_bytes:
        yield (
            f"{topic} has {MAX_MESSAGE_BYTES}={found[MAX_MESSAGE_BYTES]}, at least {least_bytes} is needed"
        )


def _retention_problems(topic: str, found: Settings, least: LeastRetention | None) -> list[str]:
    """Return the problems of settings that may delete required records too early. Log those that may delete
    other records too early.
    """
    problems = [] if least is None else list(least.problems(topic, found))
    if least is None or least.is_required:
        return problems
    for problem in problems:
        log.warning("a topic may delete records too early", topic=topic, problem=problem)
    return []


@dataclass(frozen=True, slots=True)
class LogAndState:
    """The topics of `layout` on a cluster, and the checkpoint of their state."""

    client_config: ClientConfig
    layout: TopicLayout
    checkpoint: Checkpoint

    def with_topic_sizes(self) -> Self:
        """Return a copy with the size limits of the existing topics. Raises KafkaError."""
        return replace(self, layout=with_topic_sizes(self.client_config, self.layout))
