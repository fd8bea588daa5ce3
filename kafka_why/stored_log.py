"""Reads the logs of partitions as the brokers store them: batches with their headers, which consumers
hide.

The headers show whether compaction has removed records, and how a producer's transaction ended. The reader
joins no group, so it needs only READ on the topic. Source: DefaultRecordBatch.java (magic 2), the format in
which Kafka has written `__consumer_offsets` since 0.11.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import (
    KafkaError,
    OffsetNotAvailableError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.record.default_records import DefaultRecordBatch

from kafka_why.connections import kafka_clients
from kafka_why.connections.broker_requests import FoundTopic, fetch, find_topic
from kafka_why.connections.client_config import ClientConfig
from kafka_why.lifetimes import Closeable

# A part of the notes about missing records.
COMPACTED = "compaction kept only the last older record of each key"
_FETCH_MAX_BYTES = 4 * 1024 * 1024
_REQUEST_TIMEOUT_MS = 30_000
_MAX_WAIT_MS = 500
# A leader moves within seconds, but a leader that hangs first costs a whole request timeout.
_RETRY_S = 2 * _REQUEST_TIMEOUT_MS / 1000
_BACKOFF_S = 0.2
_HEADER_BYTES = DefaultRecordBatch.HEADER_STRUCT.size
_MAGIC = 2  # the version of the batch format

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""A function that reports progress: the number of records read so far, and the total."""


class StoredRecord(NamedTuple):
    """A record of a batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Batch(DefaultRecordBatch):  # type: ignore[misc] # kafka-python ships no types
    """A batch of records, or only its header."""

    @property
    def is_commit(self) -> bool:
        """True for the marker of a committed transaction. Raises KafkaError."""
        return any(record.commit for record in self)

    def records(self) -> list[StoredRecord]:
        """Return the records of a batch that is not a transaction marker. Raises KafkaError."""
        return [StoredRecord(r.offset, r.timestamp, r.key, r.value) for r in self]


class OpenTransactions:
    """The batches of open transactions by producer, held back until their markers."""

    def __init__(self) -> None:
        self._batches: dict[int, list[Batch]] = {}  # by producer id

    def take(self, batch: Batch) -> list[Batch]:
        """Apply a batch of a transaction, or a marker.

        Return the batches that it commits. Raises KafkaError.
        """
        if not batch.is_control_batch:
            self._batches.setdefault(batch.producer_id, []).append(batch)
            return []
        batches = self._batches.pop(batch.producer_id, [])  # the batch is a marker, so they end
        return batches if batches and batch.is_commit else []


class LogWalk:
    """The state of reading the batches from `first` to before `end`.

    A finished walk continues if `end` is raised. It yields the batches whose bytes contain `wanted`, and all
    compressed batches, because their bytes cannot be searched. If `wanted` is empty, it yields all batches.
    """

    def __init__(self, first: int, end: int, wanted: bytes) -> None:
        self.first = first
        self.next_offset = first  # to fetch next
        # From this time on no record is missing. It is the timestamp of the first batch, or of the first one
        # after the last gap that compaction left.
        self.complete_from_ms: int | None = None
        self.last_ms: int | None = None  # timestamp of the last batch
        self.is_complete = True  # no record between the first and the last batch is missing
        self.end = end
        self._wanted = wanted

    @property
    def is_over(self) -> bool:
        """True if all batches before `end` are read."""
        return self.next_offset >= self.end

    def batches(self, data: bytes) -> Iterator[Batch]:
        """Advance past the batches in a fetch response. Yield the wanted ones, and markers.

        `data` begins at `next_offset`.
        """
        batch_start, next_offset = 0, self.next_offset
        match_at = data.find(self._wanted)  # position of the next wanted bytes, or -1
        while batch_start + _HEADER_BYTES <= len(data) and next_offset < self.end:
            header = Batch(data[batch_start : batch_start + _HEADER_BYTES])
            batch_end = batch_start + header.size_in_bytes
            if batch_end > len(data):
                break  # the last batch of a response may be cut off
            if header.last_offset >= self.first:
                # Compaction has removed whole batches before this one, or records in it.
                has_gap = header.base_offset > next_offset or header.records_count <= header.last_offset_delta
                self.last_ms = header.max_timestamp
                if has_gap or self.complete_from_ms is None:
                    self.complete_from_ms, self.is_complete = self.last_ms, self.is_complete and not has_gap
                next_offset = header.next_offset
                if 0 <= match_at < batch_start:
                    match_at = data.find(self._wanted, batch_start)
                has_match = 0 <= match_at < batch_end
                is_wanted = has_match or header.compression_type or header.is_control_batch
                if is_wanted and header.magic == _MAGIC:
                    yield Batch(data[batch_start:batch_end])
            batch_start = batch_end
        # If there is no batch, compaction has removed all records before the end.
        self.next_offset = self.end if next_offset == self.next_offset else next_offset


class StoredLog(Closeable):
    """The logs of a topic's partitions. For use by one thread. All methods raise KafkaError."""

    def __init__(self, client_config: ClientConfig, topic: str) -> None:
        self._name = topic
        self._admin = kafka_clients.admin(client_config, request_timeout_ms=_REQUEST_TIMEOUT_MS)
        self._found_topic: FoundTopic | None = None  # as of the last lookup
        self._must_find_again = False  # True after an error, because leaders may have moved

    @property
    def partitions(self) -> int:
        """The number of the topic's partitions."""
        return len(self._retried(self._topic).leaders)

    def offset(self, partition: int, at: OffsetSpec | int) -> int:
        """Return the offset of the first record at or after a time in ms, or -1 if there is no such record.

        `at` may also be one of ListOffsets' special values.
        """
        key = TopicPartition(self._name, partition)
        return int(self._retried(lambda: self._admin.list_partition_offsets({key: at})[key].offset))

    def offsets(self, at: OffsetSpec | int) -> dict[int, int]:
        """Return the `offset` of every partition, with one request to each broker."""
        keys = [TopicPartition(self._name, partition) for partition in range(self.partitions)]
        offsets = self._retried(lambda: self._admin.list_partition_offsets(dict.fromkeys(keys, at)))
        return {key.partition: int(offsets[key].offset) for key in keys}

    def read(self, partition: int, walk: LogWalk, progress: Progress = lambda *_: None) -> Iterator[Batch]:
        """Yield the batches that the walk wants, and markers."""
        while not walk.is_over:
            data = self._retried(partial(self._fetch, partition, walk.next_offset))
            yield from walk.batches(data)
            progress(walk.next_offset - walk.first, walk.end - walk.first)

    def _retried(self, request: Callable[[], T]) -> T:
        """Call `request`. Retry while a partition has no leader or its broker is unavailable."""
        give_up_s = time.monotonic() + _RETRY_S
        while True:
            try:
                return request()
            except KafkaError as error:
                # Do not wait for a topic that was never found.
                is_absent = self._found_topic is None and isinstance(error, UnknownTopicOrPartitionError)
                is_temporary = error.retriable or isinstance(error, UnknownBrokerIdError)
                if is_absent or not is_temporary or time.monotonic() >= give_up_s:
                    raise
                self._must_find_again = True
                time.sleep(_BACKOFF_S)

    def _topic(self) -> FoundTopic:
        """Return the topic's id and leaders, looked up again after an error."""
        if self._found_topic is None or self._must_find_again:
            self._found_topic, self._must_find_again = find_topic(self._admin, self._name), False
        return self._found_topic

    def _fetch(self, partition: int, offset: int) -> bytes:
        """Fetch batches from `offset` on."""
        answer = fetch(
            self._admin,
            self._topic(),
            partition,
            offset,
            by_id=False,
            max_wait_ms=_MAX_WAIT_MS,
            max_bytes=_FETCH_MAX_BYTES,
        )
        if answer.error_code:
            raise for_code(answer.error_code)(f"{self._name}-{partition}")
        if answer.high_watermark <= offset:  # a new leader may not know the high watermark yet
            raise OffsetNotAvailableError(f"{self._name}-{partition}")
        return bytes(answer.records or b"")

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()
