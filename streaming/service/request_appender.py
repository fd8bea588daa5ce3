"""A producer of the service's own requests. They report to groups what happened to topics, to transactions,
and at share coordinators. So the log stays the only input of a group, and the query itself sends no requests
to brokers about these.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import RegexResolved, TopicMetadata, TransactionMarker
from kafka_why.contract.kafka.share_requests import ShareStateResult
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import Closeable
from kafka_why.partitioner import partition_of

# The maximum time of a request to the brokers, and so about the longest time that `stop` takes.
BROKER_TIMEOUT_MS = 5_000
ACKNOWLEDGED_TIMEOUT_S = 2 * BROKER_TIMEOUT_MS / 1000

_RECORDS_TIMEOUT_S = 30.0

ServiceRequest: TypeAlias = RegexResolved | ShareStateResult | TopicMetadata | TransactionMarker


def append_records(
    client_config: ClientConfig, topic: str, records: Iterable[Mapping[str, Any]]
) -> list[Any]:
    """Append records over a new connection, and wait until all are acknowledged. Raises KafkaError.

    Each record has the arguments of KafkaProducer.send. Return kafka-python's metadata of each.
    """
    producer = kafka_clients.producer(client_config)
    try:
        futures = [producer.send(topic, **record) for record in records]
        return [future.get(timeout=_RECORDS_TIMEOUT_S) for future in futures]
    finally:
        producer.close(timeout=1)


class RequestAppender(Closeable):
    """A producer for the requests topic. For one thread. All methods raise KafkaError."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        self._layout = layout
        self._producer = kafka_clients.best_effort_producer(
            client_config, timeout_ms=BROKER_TIMEOUT_MS, max_request_size=layout.request_record_max_bytes
        )

    def send(self, requests: Sequence[ServiceRequest]) -> list[Any]:
        """Send each request to its group's partition. Return kafka-python's futures, in the same order."""
        return [
            self._producer.send(
                self._layout.requests_topic,
                key=request.group_id.encode(),
                value=encode(request),
                partition=partition_of(request.group_id, self._layout.request_partitions),
            )
            for request in requests
        ]

    def append(self, requests: Iterable[ServiceRequest]) -> None:
        """Send the requests, and wait until all are acknowledged."""
        for future in self.send(list(requests)):
            future.get(timeout=ACKNOWLEDGED_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self._producer.close(timeout=ACKNOWLEDGED_TIMEOUT_S)
