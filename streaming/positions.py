"""Where a worker goes on in a partition: its own bookkeeping, on a compacted topic.

The coordinator has no OffsetCommit yet; once it has, that takes this file's place. A worker publishes its
position after each batch it has processed, and whoever is given the partition next starts there. So nothing
is lost, and what is processed again is at most what the last owner had processed and not published
(at-least-once).
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
import structlog
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.errors import KafkaTimeoutError, TopicAlreadyExistsError
from msgspec import Struct

from assignors.kafka.api import TopicPartition

_POLL_MS = 200
_FLUSH_TIMEOUT_S = 10.0
_SETTINGS = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted, and every reader begins with the first record: keep it short.
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}

log = structlog.get_logger()


class Positions(Protocol):
    """The offset of the next record to process, by partition."""

    def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What was published for these before this call; a partition that never was is left out."""

    def publish(self, positions: Mapping[TopicPartition, int]) -> None:
        """All records before these offsets are processed. May return before that is safe; see `flush`."""

    def flush(self) -> None:
        """Wait until what was published is safe, or a bounded time: at worst records are processed again."""

    def close(self) -> None:
        """Flush, and let go of connections."""


class Position(Struct, frozen=True):
    """A record's value on the positions topic; its key is the JSON array [group, topic, partition]."""

    offset: int
    version: int = 1


class TopicPositions:
    """The positions of one group, on the topic `<prefix>-positions`: one partition, made if it is missing."""

    def __init__(self, bootstrap_servers: str, prefix: str, group_id: str) -> None:
        self._group_id = group_id
        self._log = KafkaTopicPartition(f"{prefix}-positions", 0)
        self._known: dict[TopicPartition, int] = {}
        _create_topic(bootstrap_servers, self._log.topic)
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers, acks="all", linger_ms=0, metrics_enabled=False
        )
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, metrics_enabled=False)
        self._consumer.assign([self._log])
        self._consumer.seek_to_beginning(self._log)

    def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        end = self._consumer.end_offsets([self._log])[self._log]
        while self._consumer.position(self._log) < end:
            for records in self._consumer.poll(timeout_ms=_POLL_MS).values():
                for record in records:
                    self._take(record.key, record.value)
        return {p: self._known[p] for p in partitions if p in self._known}

    def publish(self, positions: Mapping[TopicPartition, int]) -> None:
        for partition, offset in positions.items():
            key = msgspec.json.encode([self._group_id, *partition])
            value = msgspec.json.encode(Position(offset))
            self._producer.send(self._log.topic, key=key, value=value, partition=0).add_errback(
                _not_published
            )

    def flush(self) -> None:
        try:
            self._producer.flush(timeout=_FLUSH_TIMEOUT_S)
        except KafkaTimeoutError as error:
            _not_published(error)

    def close(self) -> None:
        self._producer.close(timeout=_FLUSH_TIMEOUT_S)
        self._consumer.close(autocommit=False)

    def _take(self, key: bytes, value: bytes) -> None:
        try:
            group_id, topic, partition = msgspec.json.decode(key, type=tuple[str, str, int])
            offset = msgspec.json.decode(value, type=Position).offset
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
            log.warning("a position cannot be read", key=key, error=str(error))
            return
        if group_id == self._group_id:
            self._known[TopicPartition(topic, partition)] = offset


def _create_topic(bootstrap_servers: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        if topic not in admin.list_topics():
            options = {"num_partitions": 1, "replication_factor": -1, "configs": _SETTINGS}
            admin.create_topics({topic: options}, wait_for_metadata=True)
    except TopicAlreadyExistsError:
        pass  # another worker was faster
    finally:
        admin.close()


def _not_published(error: Exception) -> None:
    log.warning("positions were not published; records may be processed again", error=repr(error))
