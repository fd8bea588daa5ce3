"""What the broker knows of partitions: whether they are there, where their logs begin and end, and times."""

from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from functools import partial
from uuid import UUID

import kafka

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.lag.brokers import records_at
from kafka_why.lag.definitions import LogBounds, Partition
from kafka_why.lag.record_times import timestamp_lags


class LogOffsets:
    """Asks the broker about topics. Methods raise kafka-python's KafkaError, KafkaTimeoutError when late.

    Partitions that are asked about have to be there (see `existing`). The list of topics is as old as this.
    """

    def __init__(self, client_config: ClientConfig, timeout_ms: int) -> None:
        self._client_config = client_config
        self._timeout_ms = timeout_ms
        self._consumer = kafka_clients.reading_consumer(client_config)
        self._topics: frozenset[str] | None = None

    def topics(self) -> frozenset[str]:
        """All topics except internal ones."""
        if self._topics is None:
            self._topics = frozenset(self._consumer.topics())
        return self._topics

    def existing(self, topics: Iterable[str]) -> dict[str, frozenset[int]]:
        """By topic, the partitions it has; topics that are not there are left out."""
        return {
            topic: frozenset(self._consumer.partitions_for_topic(topic))
            for topic in self.topics().intersection(topics)
        }

    def there(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those of the partitions that exist."""
        existing = self.existing({partition.topic for partition in partitions})
        return {p for p in partitions if p.partition in existing.get(p.topic, ())}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that each partition's next record will get."""
        return self._asked(self._consumer.end_offsets, partitions)

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Where each log begins and ends."""
        ends = self.ends(partitions)
        starts = self._asked(self._consumer.beginning_offsets, partitions)
        return {p: LogBounds(starts[p], ends[p]) for p in partitions}

    def at_time(self, partitions: Collection[TopicPartition], at_ms: int) -> dict[TopicPartition, int | None]:
        """The first offset whose record is stamped at or after a time; None where there is none."""
        times = {kafka.TopicPartition(*p): max(0, at_ms) for p in partitions}
        if not times:
            return {}
        found = self._consumer.offsets_for_times(times, timeout_ms=self._timeout_ms)
        return {_ours(p): None if at is None else at.offset for p, at in found.items()}

    def lags_ms(self, offsets: Collection[tuple[Partition, int]]) -> dict[tuple[Partition, int], int]:
        """The lag in time of each of these offsets, by the timestamps of records; see
        `kafka_why.lag.record_times`. Those whose timestamps are not usable are left out.
        """
        found: dict[tuple[Partition, int], int] = {}
        left = set(offsets)
        with closing(kafka_clients.admin(self._client_config, request_timeout_ms=self._timeout_ms)) as admin:
            while left:
                turn = dict(left)  # one offset of each partition
                lags = timestamp_lags(partial(records_at, admin), turn)
                found |= {(p, offset): lags[p] for p, offset in turn.items() if p in lags}
                left -= turn.items()
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, UUID]:
        """Kafka's id of each topic; topics that are not there are left out."""
        with closing(kafka_clients.admin(self._client_config)) as admin:
            described = admin.describe_topics(sorted(topics))
        return {topic["name"]: UUID(str(topic["topic_id"])) for topic in described if not topic["error_code"]}

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close(autocommit=False)

    def _asked(
        self, ask: Callable[..., dict[kafka.TopicPartition, int]], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        offsets = ask([kafka.TopicPartition(*p) for p in partitions], timeout_ms=self._timeout_ms)
        return {_ours(p): offset for p, offset in offsets.items()}


def _ours(partition: kafka.TopicPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)
