"""The requests that tell groups how the transactions of their pending offsets ended.

Nobody reads the answers.
"""

import socket
from collections.abc import Iterable
from itertools import count
from uuid import UUID

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import TransactionMarker
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import Closeable
from kafka_why.partitioner import partition_of
from streaming.service.transactions.markers import BROKER_TIMEOUT_MS
from streaming.service.transactions.pending import Decision

_CLOSE_TIMEOUT_S = 2 * BROKER_TIMEOUT_MS / 1000
_REPLY_PARTITION = 0


class MarkerRequests(Closeable):
    """Appends TransactionMarkers to the requests topic. For one thread. Raises KafkaError."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, client_id: str) -> None:
        self._layout = layout
        self._client_id = client_id
        self._host = socket.gethostname()
        self._numbers = count(1)
        self._producer = kafka_clients.topic_metadata_producer(
            client_config,
            timeout_ms=BROKER_TIMEOUT_MS,
            max_request_bytes=layout.request_record_max_bytes,
        )

    def append(self, decisions: Iterable[Decision], topic_id: UUID) -> None:
        """Append a request for each decision, and wait for all. `topic_id` is that of the markers topic."""
        sent = [
            self._producer.send(
                self._layout.requests_topic,
                key=decision.group_id.encode(),
                value=encode(self._request(decision, topic_id)),
                partition=partition_of(decision.group_id, self._layout.request_partitions),
            )
            for decision in decisions
        ]
        for future in sent:
            future.get(timeout=_CLOSE_TIMEOUT_S)

    def _request(self, decision: Decision, topic_id: UUID) -> TransactionMarker:
        marker = decision.marker
        return TransactionMarker(
            group_id=decision.group_id,
            correlation_id=f"{self._client_id}-{next(self._numbers)}",
            reply_partition=_REPLY_PARTITION,
            api_version=0,
            client_id=self._client_id,
            client_host=self._host,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            txn_partition=decision.partition,
            txn_position=marker.offset,
            txn_topic_id=topic_id,
            first_position=decision.first_position,
            committed=marker.committed,
        )

    def close(self) -> None:
        """Close the connection."""
        self._producer.close(timeout=_CLOSE_TIMEOUT_S)
