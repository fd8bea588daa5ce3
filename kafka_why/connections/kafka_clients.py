"""The Kafka clients of this project. No other module configures a client.

How a client reaches the cluster is in `kafka_why.connections.client_config`.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaTimeoutError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.refusals import NoBroker, Refusals

# kafka-python's time limit of the first connection.
BOOTSTRAP_TIMEOUT_MS = 30_000
# kafka-python picks a random server, and waits for its answer for the whole timeout. A server that hangs
# would use up the timeout, so the first attempts are short, and each attempt avoids the servers that did not
# answer. Short attempts help in two more cases. kafka-python would retry a refused login until its timeout.
# And its own pauses grow: if a name cannot be resolved for 8 s, its next attempt would come after 32 s.
FIRST_ATTEMPT_MS = 2_000
ATTEMPT_FACTOR = 1.5

C = TypeVar("C")


def reading_consumer(
    client_config: ClientConfig,
    *,
    max_record_bytes: int | None = None,
    timeout_ms: int | None = None,
    fetch_min_bytes: int | None = None,
    fetch_max_wait_ms: int | None = None,
    reconnect_max_ms: int | None = None,
) -> KafkaConsumer:
    """Return a consumer without a group, for manually assigned partitions. Raises KafkaError.

    `max_record_bytes` is the largest record of its topics. `timeout_ms` limits the first connection and each
    request. None means kafka-python's default.
    """
    return _connect(
        KafkaConsumer,
        client_config,
        max_partition_fetch_bytes=max_record_bytes,
        bootstrap_timeout_ms=timeout_ms,
        request_timeout_ms=timeout_ms,
        fetch_min_bytes=fetch_min_bytes,
        fetch_max_wait_ms=fetch_max_wait_ms,
        reconnect_backoff_max_ms=reconnect_max_ms,
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        metrics_enabled=False,
    )


def group_consumer(client_config: ClientConfig, group_id: str) -> KafkaConsumer:
    """Return a consumer in a group of the cluster's own coordinator.

    It commits nothing. Raises KafkaError.
    """
    return _connect(
        KafkaConsumer,
        client_config,
        group_id=group_id,
        enable_auto_commit=False,
        metrics_enabled=False,
    )


def request_producer(client_config: ClientConfig, *, timeout_ms: int, max_request_bytes: int) -> Producer:
    """Return librdkafka's producer for the coordinator's requests. Its calls never wait for a broker.

    `max_request_bytes` is the largest record of its topic. A record fails after `timeout_ms`. librdkafka's
    log lines on stderr are off, because outages show as failed requests.
    """
    return Producer(
        {
            **_librdkafka_connection(client_config),
            # Implies acks=all. Without it, a retry could append a JoinGroup twice, which adds a second
            # member.
            "enable.idempotence": True,
            # Any other value, even 0.1, delays a lone request by a millisecond: decision 15.
            "linger.ms": 0,
            "message.max.bytes": max_request_bytes,
            # A request must not be delivered after its caller has given up.
            "delivery.timeout.ms": timeout_ms,
            "allow.auto.create.topics": False,
        }
    )


def answers_consumer(
    client_config: ClientConfig,
    *,
    max_record_bytes: int,
    on_error: Callable[[KafkaError], None],
    fetch_min_bytes: int = 1,
    offset_reset: str = "latest",
) -> Consumer:
    """Return librdkafka's consumer without a group, for manually assigned partitions. It commits no offsets.

    `max_record_bytes` is the largest record of its topic. `offset_reset` is Kafka's auto.offset.reset.
    Brokers wait at most half a second for `fetch_min_bytes`. `on_error` is called in `poll`, possibly for
    each attempt to connect.

    Other values of `fetch.wait.max.ms`, `fetch.queue.backoff.ms`, `queued.min.messages`, `check.crcs` and
    `socket.nagle.disable` were measured, here and in the producer. They changed neither processor time nor
    latency. A single request is answered after 1.5 ms, and its reader has it after 0.9 ms.
    """
    return Consumer(
        {
            **_librdkafka_connection(client_config),
            # librdkafka requires a group id. Its lookup of the group makes brokers create __consumer_offsets.
            "group.id": "group-coordinator-answers",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": offset_reset,
            "isolation.level": "read_uncommitted",
            "max.partition.fetch.bytes": max_record_bytes,
            "fetch.min.bytes": fetch_min_bytes,
            "fetch.error.backoff.ms": 100,
            "allow.auto.create.topics": False,
            "error_cb": on_error,
        }
    )


def early_answers_producer(client_config: ClientConfig, *, max_record_bytes: int) -> Producer:
    """Return librdkafka's producer for the responses of a replica, which answers before the Spark query.

    Its calls never wait for a broker. A lost or duplicate response does no harm, because the query sends it,
    too.
    """
    return Producer(
        {
            **_librdkafka_connection(client_config),
            "acks": "all",
            "enable.idempotence": False,
            "linger.ms": 0,
            "message.max.bytes": max_record_bytes,
            # After this time the query has sent the response.
            "delivery.timeout.ms": 5_000,
            "allow.auto.create.topics": False,
        }
    )


def telemetry_producer(client_config: ClientConfig) -> Producer:
    """Return librdkafka's producer for clients' telemetry. Its calls never wait for a broker.

    It may lose or duplicate a record. Its queue is bounded.
    """
    return Producer(
        {
            **_librdkafka_connection(client_config),
            "acks": "all",
            "enable.idempotence": False,
            "linger.ms": 100,
            "queue.buffering.max.messages": 10_000,
            "queue.buffering.max.kbytes": 16 * 1024,
            "delivery.timeout.ms": 30_000,
            "allow.auto.create.topics": False,
        }
    )


def best_effort_producer(client_config: ClientConfig, *, timeout_ms: int, **settings: Any) -> KafkaProducer:
    """Return a producer of clock, TopicMetadata and sighting records. Each fails after `timeout_ms`.

    A record may be written twice, because a copy changes nothing. `settings` are kafka-python's. Raises
    KafkaError.
    """
    return _connect(
        KafkaProducer,
        client_config,
        acks="all",
        enable_idempotence=False,
        linger_ms=0,
        bootstrap_timeout_ms=timeout_ms,
        max_block_ms=timeout_ms,
        request_timeout_ms=timeout_ms,
        delivery_timeout_ms=timeout_ms,  # a late record may no longer be true
        allow_auto_create_topics=False,
        metrics_enabled=False,
        **settings,
    )


def producer(client_config: ClientConfig) -> KafkaProducer:
    """Return a producer that sends records at once. All replicas acknowledge them. Raises KafkaError."""
    return _connect(KafkaProducer, client_config, acks="all", linger_ms=0, metrics_enabled=False)


def admin(
    client_config: ClientConfig,
    *,
    bootstrap_timeout_ms: int | None = None,
    request_timeout_ms: int | None = None,
) -> KafkaAdminClient:
    """Return kafka-python's admin client. Raises KafkaError, or ValueError for invalid servers.

    `bootstrap_timeout_ms` limits the first connection, `request_timeout_ms` each request. None means
    kafka-python's default.
    """
    return _connect(
        KafkaAdminClient,
        client_config,
        bootstrap_timeout_ms=bootstrap_timeout_ms,
        request_timeout_ms=request_timeout_ms,
    )


def librdkafka_admin(client_config: ClientConfig) -> AdminClient:
    """Return librdkafka's admin client. It connects at its first request."""
    return AdminClient(_librdkafka_connection(client_config))


def _connect(client_class: Callable[..., C], client_config: ClientConfig, **options: Any) -> C:
    """Connect a new client of kafka-python. An option of None has kafka-python's default.

    Each attempt is longer than the one before, and avoids servers that did not answer (FIRST_ATTEMPT_MS).
    Raises ClusterRefused if a broker refuses the login or its certificate is not trusted, NoBroker if no
    broker answers in time, or another KafkaError.
    """
    settings = {name: value for name, value in options.items() if value is not None}
    settings |= client_config.kafka_python_settings()
    remaining_ms = settings.pop("bootstrap_timeout_ms", BOOTSTRAP_TIMEOUT_MS)
    attempt_ms = FIRST_ATTEMPT_MS
    give_up_s = time.monotonic() + remaining_ms / 1000
    servers = [server.strip() for server in client_config.bootstrap_servers.split(",")]
    silent: set[str | None] = set()  # servers that did not answer
    failure: str | None = None
    while True:
        settings["bootstrap_servers"] = [server for server in servers if server not in silent] or servers
        refusals = Refusals()
        is_last = attempt_ms >= remaining_ms
        timeout_ms = max(remaining_ms, 1) if is_last else attempt_ms
        try:
            return client_class(**settings, bootstrap_timeout_ms=timeout_ms, kafka_client=refusals.client)
        except KafkaTimeoutError as error:
            refusals.raise_first(error, is_last=is_last)
            failure = refusals.failure or failure
            if is_last:
                raise NoBroker(client_config, failure) from error
            silent.add(refusals.latest)
            attempt_ms = int(attempt_ms * ATTEMPT_FACTOR)
            remaining_ms = int((give_up_s - time.monotonic()) * 1000)


def _librdkafka_connection(client_config: ClientConfig) -> dict[str, Any]:
    return {
        **client_config.librdkafka_settings(),
        "reconnect.backoff.max.ms": 1_000,  # librdkafka's 10 s is too long for a member
        "log_level": 0,
    }
