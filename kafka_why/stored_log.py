"""The log of one partition as the brokers store it: batches with their headers, which consumers hide.

The headers show what a consumer cannot tell: whether compaction has removed records, and how a producer's
transaction ended. No group is used, so READ on the topic is the only right that is needed.
Source: DefaultRecordBatch.java (magic 2). Kafka has written no older format by itself since 0.11.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError, for_code
from kafka.protocol.consumer import FetchRequest
from kafka.record.default_records import DefaultRecordBatch

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig

_FETCH_MAX_BYTES = 4 * 1024 * 1024
_REQUEST_TIMEOUT_MS = 30_000
_MAX_WAIT_MS = 500
# The first version with this format of batches, and the last one that names topics.
_FETCH_VERSIONS = {"min_version": 4, "max_version": 12}
_READ_UNCOMMITTED = 0
_CONSUMER = -1
# Base offset, length of what follows, leader epoch, magic, CRC, attributes, last offset delta, first and
# highest timestamp, producer id, producer epoch, first sequence, number of records.
_HEADER = Struct(">qiibIhiqqqhii")
_LENGTH_END = 12
_MAGIC = 2
_COMPRESSED, _TRANSACTIONAL, _CONTROL = 0b111, 0b1_0000, 0b10_0000


Progress = Callable[[int, int], None]
"""Is told again and again how many records of how many were read."""


class Batch(NamedTuple):
    """One batch: `timestamp_ms` is its highest timestamp, `data` its bytes."""

    timestamp_ms: int
    producer_id: int
    attributes: int
    data: bytes

    @property
    def is_marker(self) -> bool:
        """True for the end of a transaction."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_compressed(self) -> bool:
        return bool(self.attributes & _COMPRESSED)

    def records(self) -> Iterator[Any]:
        """Yield kafka-python's records, of a marker its control record. Raises KafkaError."""
        return iter(DefaultRecordBatch(self.data))


class LogWalk:
    """A walk over the batches from `first` to before `end`, for those that may have `wanted` in a record.

    `next_offset` is the offset to fetch next. `whole_from_ms` is the time from which no record is missing
    among those that were passed: the timestamp of the first batch after the last gap that compaction left, or
    of the first batch. `is_whole`: there is no gap.
    """

    def __init__(self, first: int, end: int, wanted: bytes) -> None:
        self.first = first
        self.next_offset = first
        self.whole_from_ms: int | None = None
        self.is_whole = True
        self.end = end
        self._wanted = wanted

    @property
    def is_over(self) -> bool:
        return self.next_offset >= self.end

    def batches(self, data: bytes) -> Iterator[Batch]:
        """Pass the batches that a broker has sent from `next_offset` on. Yield wanted ones, and markers."""
        at, next_offset, find = 0, self.next_offset, data.find
        hit = find(self._wanted)
        while at + _HEADER.size <= len(data) and next_offset < self.end:
            header = _HEADER.unpack_from(data, at)
            base, length, _, magic, _, attributes, delta, _, time_ms, producer_id, _, _, count = header
            stop = at + _LENGTH_END + length
            if stop > len(data):
                break  # the last batch of a response may be cut off
            if base + delta >= self.first:
                has_gap = base > next_offset or count <= delta
                if has_gap or self.whole_from_ms is None:
                    self.whole_from_ms, self.is_whole = time_ms, self.is_whole and not has_gap
                next_offset = base + delta + 1
                while 0 <= hit < at:
                    hit = find(self._wanted, at)
                is_wanted = 0 <= hit < stop or attributes & (_COMPRESSED | _CONTROL)
                if is_wanted and magic == _MAGIC:
                    yield Batch(time_ms, producer_id, attributes, data[at:stop])
            at = stop
        # Without a batch, compaction has removed all that was left before the end.
        self.next_offset = self.end if next_offset == self.next_offset else next_offset


class StoredLog:
    """The log of one partition. For one thread. All methods raise KafkaError."""

    def __init__(self, client_config: ClientConfig, partition: TopicPartition) -> None:
        self._partition = partition
        self._admin = kafka_clients.admin(client_config, request_timeout_ms=_REQUEST_TIMEOUT_MS)
        self._leader = -1

    def offset(self, at: OffsetSpec | int) -> int:
        """Return the first offset at or after a time in ms, or one of Kafka's places. -1: there is none."""
        found = self._admin.list_partition_offsets({self._partition: at})
        return int(found[self._partition].offset)

    def read(self, walk: LogWalk, progress: Progress = lambda *_: None) -> Iterator[Batch]:
        """Yield the batches that the walk wants, and markers."""
        while not walk.is_over:
            yield from walk.batches(self._fetch(walk.next_offset))
            progress(walk.next_offset - walk.first, walk.end - walk.first)

    def _fetch(self, offset: int) -> bytes:
        topic = FetchRequest.FetchTopic
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_MAX_BYTES,
            isolation_level=_READ_UNCOMMITTED,
            topics=[
                topic(
                    topic=self._partition.topic,
                    partitions=[
                        topic.FetchPartition(
                            partition=self._partition.partition,
                            fetch_offset=offset,
                            partition_max_bytes=_FETCH_MAX_BYTES,
                        )
                    ],
                )
            ],
            **_FETCH_VERSIONS,
        )
        # The admin client has no request for records. Its manager has the connections, with TLS and SASL.
        manager = self._admin._manager
        answer = manager.run(manager.send, request, self._find_leader())
        found = answer.responses[0].partitions[0] if answer.responses else None
        error_code = answer.error_code if found is None else found.error_code
        if found is None or error_code:
            raise for_code(error_code)(f"{self._partition.topic}-{self._partition.partition}")
        return bytes(found.records or b"")

    def _find_leader(self) -> int:
        if self._leader < 0:
            (topic,) = self._admin.describe_topics([self._partition.topic])
            if topic["error_code"]:
                raise for_code(topic["error_code"])(self._partition.topic)
            leaders = {p["partition_index"]: p["leader_id"] for p in topic["partitions"]}
            if self._partition.partition not in leaders:
                raise UnknownTopicOrPartitionError(str(self._partition))
            self._leader = leaders[self._partition.partition]
            if self._leader < 0:
                raise NotLeaderForPartitionError(f"{self._partition} has no leader")
        return self._leader

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
