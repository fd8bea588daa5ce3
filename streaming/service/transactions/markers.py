"""A reader of the outcomes of transactions, from the markers topic.

The outcome of a transaction is a control record. Client libraries' consumers skip control records, so the
reader sends its own Fetch requests, over the connections of kafka-python's admin client. It reads up to the
high watermark, past transactions of other topics' partitions that are still open.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from kafka.errors import for_code
from kafka.record import MemoryRecords

from kafka_why.connections import kafka_clients
from kafka_why.connections.broker_requests import FoundTopic, fetch, find_topic
from kafka_why.connections.client_config import ClientConfig
from kafka_why.lifetimes import Closeable
from streaming.service.request_appender import BROKER_TIMEOUT_MS

_FETCH_MAX_BYTES = 512 * 1024
OFFSET_OUT_OF_RANGE = 1
_MAGIC = 2


class Marker(NamedTuple):
    """The outcome of a producer's transaction, at an offset of the markers partition."""

    offset: int
    producer_id: int
    producer_epoch: int
    committed: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a Fetch."""

    markers: list[Marker]
    next_offset: int  # the offset to read from next
    start: int  # the first offset of the log
    end: int  # the high watermark
    is_out_of_range: bool = False  # the requested offset is not in the log


class MarkersReader(Closeable):
    """A reader of the markers topic. For one thread. All methods raise KafkaError.

    It reads the topic that `find_topic` last found, not a recreated one of the same name. After an error, for
    example if a leader has moved, a new reader is needed.
    """

    def __init__(self, client_config: ClientConfig, topic: str) -> None:
        self._topic = topic
        self._admin = kafka_clients.admin(
            client_config,
            bootstrap_timeout_ms=BROKER_TIMEOUT_MS,
            request_timeout_ms=BROKER_TIMEOUT_MS,
        )
        self._found: FoundTopic | None = None

    def find_topic(self) -> UUID:
        """Return the topic's id. Raises UnknownTopicOrPartitionError if there is no such topic."""
        self._found = found = find_topic(self._admin, self._topic)
        return found.topic_id

    def fetch(self, partition: int, offset: int, max_wait_ms: int) -> Fetched:
        """Read from this offset on. Waits up to `max_wait_ms` for a first record."""
        if self._found is None:
            self._found = find_topic(self._admin, self._topic)
        found = fetch(
            self._admin,
            self._found,
            partition,
            offset,
            by_id=True,
            max_wait_ms=max_wait_ms,
            max_bytes=_FETCH_MAX_BYTES,
        )
        if found.error_code == OFFSET_OUT_OF_RANGE:
            return Fetched([], offset, found.log_start_offset, found.high_watermark, is_out_of_range=True)
        if found.error_code:
            raise for_code(found.error_code)(f"{self._topic}-{partition}")
        markers, next_offset = read_markers(found.records or b"", offset)
        return Fetched(markers, next_offset, found.log_start_offset, found.high_watermark)

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()


def marker_wait_ms(partitions: int, all_ms: int, least_ms: int) -> int:
    """Return the maximum duration of one Fetch.

    The partitions are fetched one after the other and share `all_ms`, but each Fetch gets at least
    `least_ms`, so that brokers are never queried without a pause.
    """
    return max(least_ms, all_ms // max(1, partitions))


def read_markers(records: bytes, offset: int) -> tuple[list[Marker], int]:
    """Return the markers in the bytes of a Fetch response from `offset` on, and the offset to read from
    next.
    """
    markers: list[Marker] = []
    next_offset = offset
    for batch in _batches(records):
        next_offset = max(next_offset, batch.next_offset)
        if not batch.is_control_batch:
            continue
        markers += [
            Marker(record.offset, batch.producer_id, batch.producer_epoch, bool(record.commit))
            for record in batch
            if record.offset >= offset and (record.commit or record.abort)
        ]
    return markers, next_offset


def _batches(records: bytes) -> Iterator[Any]:
    memory = MemoryRecords(records)
    while memory.has_next():
        batch = memory.next_batch()
        if batch is not None and batch.magic == _MAGIC:
            yield batch
