"""Reads the logs of partitions as the brokers store them: batches with their headers, which consumers
hide.

The headers show whether compaction has removed records, and how a producer's transaction ended. The reader
joins no group, so it needs only READ on the topic. Source: DefaultRecordBatch.java (magic 2), the format in
which Kafka has written `__consumer_offsets` since 0.11.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import NamedTuple, TypeVar

from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import (
    CorruptRecordError,
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

COMPACTED = "compaction kept only the last older record of each key"
_FETCH_MAX_BYTES = 4 * 1024 * 1024
_REQUEST_TIMEOUT_MS = 30_000
_MAX_WAIT_MS = 500
# A leader moves within seconds, but a leader that hangs first costs a whole request timeout.
_RETRY_S = 2 * _REQUEST_TIMEOUT_MS / 1000
_BACKOFF_S = 0.2
# Base offset, length of what follows, leader epoch, magic, CRC, attributes, last offset delta, first and
# highest timestamp, producer id, producer epoch, first sequence, number of records.
_HEADER = Struct(">qiibIhiqqqhii")
_LENGTH_END = 12
_MAGIC = 2
_COMPRESSED, _TRANSACTIONAL, _CONTROL = 0b111, 0b1_0000, 0b10_0000
_INT64, _INT32 = Struct(">q"), Struct(">i")
_FIRST_MS_AT, _COUNT_AT = 27, 57
_MORE = 0x80  # the bit of a number's byte that says that another byte follows

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""A function that reports progress: the number of records read so far, and the total."""


class StoredRecord(NamedTuple):
    """A record of a batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Batch(NamedTuple):
    """A batch."""

    timestamp_ms: int  # its highest
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

    @property
    def record_count(self) -> int:
        """The number of records in the batch.

        Compaction may have removed others, whose offsets it still spans.
        """
        return int(_INT32.unpack_from(self.data, _COUNT_AT)[0])

    @property
    def is_commit(self) -> bool:
        """True for the marker of a committed transaction. Raises KafkaError."""
        return any(record.commit for record in DefaultRecordBatch(self.data))

    def records(self) -> list[StoredRecord]:
        """Return the records of a batch that is no marker. Raises KafkaError, or CorruptRecordError."""
        if self.is_compressed:
            records = DefaultRecordBatch(self.data)
            return [StoredRecord(r.offset, r.timestamp, r.key, r.value) for r in records]
        return _plain_records(self.data)


class OpenTransactions:
    """The batches of open transactions by producer, held back until their markers."""

    def __init__(self) -> None:
        self._batches: dict[int, list[Batch]] = {}

    def take(self, batch: Batch) -> list[Batch]:
        """Apply a batch of a transaction, or a marker.

        Return the batches that it commits. Raises KafkaError.
        """
        if not batch.is_marker:
            self._batches.setdefault(batch.producer_id, []).append(batch)
            return []
        ended = self._batches.pop(batch.producer_id, [])
        return ended if ended and batch.is_commit else []


def _plain_records(data: bytes) -> list[StoredRecord]:
    """Return the records of an uncompressed batch, without headers. Source: DefaultRecord.java.

    It takes a fifth of the time of kafka-python's reader.
    """
    (base,), (first_ms,) = _INT64.unpack_from(data), _INT64.unpack_from(data, _FIRST_MS_AT)
    (count,), at, new = _INT32.unpack_from(data, _COUNT_AT), _HEADER.size, tuple.__new__
    records: list[StoredRecord] = []
    try:
        for _ in range(count):
            size, at = _varint(data, at)
            end = at + size
            at += 1  # the attributes, which are unused
            # Most numbers have one byte, and a call takes as long as the rest.
            delta_ms, at = (0, at + 1) if not data[at] else _varint(data, at)
            delta, at = (data[at] >> 1, at + 1) if data[at] < _MORE else _varint(data, at)
            length, at = _varint(data, at)
            key = None
            if length >= 0:
                key = data[at : at + length]
                at += length
            length, at = _varint(data, at)
            value = None if length < 0 else data[at : at + length]
            records.append(new(StoredRecord, (base + delta, first_ms + delta_ms, key, value)))
            at = end
    except IndexError:
        raise CorruptRecordError(f"the batch at offset {base} ends too early") from None
    return records


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in zigzag encoding, and the position after it."""
    number, shift = data[at], 7
    if number >= _MORE:
        number &= _MORE - 1
        while (part := data[at + 1]) >= _MORE:
            number |= (part & (_MORE - 1)) << shift
            at, shift = at + 1, shift + 7
        number |= part << shift
        at += 1
    return (number >> 1) ^ -(number & 1), at + 1


class LogWalk:
    """The state of reading the batches from `first` to before `end`.

    A finished walk continues if `end` is raised. It yields batches whose bytes may contain `wanted`. If
    `wanted` is empty, it yields all.
    """

    def __init__(self, first: int, end: int, wanted: bytes) -> None:
        self.first = first
        self.next_offset = first  # to fetch next
        # From this time on no record is missing. It is the timestamp of the first batch, or of the first one
        # after the last gap that compaction left.
        self.whole_from_ms: int | None = None
        self.last_ms: int | None = None  # timestamp of the last batch
        self.is_whole = True  # there is no gap
        self.end = end
        self._wanted = wanted

    @property
    def is_over(self) -> bool:
        return self.next_offset >= self.end

    def batches(self, data: bytes) -> Iterator[Batch]:
        """Advance past the batches in a fetch response. Yield the wanted ones, and markers.

        `data` begins at `next_offset`.
        """
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
                next_offset, self.last_ms = base + delta + 1, time_ms
                if 0 <= hit < at:
                    hit = find(self._wanted, at)
                is_wanted = 0 <= hit < stop or attributes & (_COMPRESSED | _CONTROL)
                if is_wanted and magic == _MAGIC:
                    yield Batch(time_ms, producer_id, attributes, data[at:stop])
            at = stop
        # If there is no batch, compaction has removed all records before the end.
        self.next_offset = self.end if next_offset == self.next_offset else next_offset


class StoredLog(Closeable):
    """The logs of a topic's partitions. For use by one thread. All methods raise KafkaError."""

    def __init__(self, client_config: ClientConfig, topic: str) -> None:
        self._name = topic
        self._admin = kafka_clients.admin(client_config, request_timeout_ms=_REQUEST_TIMEOUT_MS)
        self._found: FoundTopic | None = None
        self._leaders_moved = False

    @property
    def partitions(self) -> int:
        """The number of the topic's partitions."""
        return len(self._retried(self._topic).leaders)

    def offset(self, partition: int, at: OffsetSpec | int) -> int:
        """Return the first offset at or after a time in ms, or -1.

        `at` may also be one of ListOffsets' special values.
        """
        place = TopicPartition(self._name, partition)
        return int(self._retried(lambda: self._admin.list_partition_offsets({place: at})[place].offset))

    def offsets(self, at: OffsetSpec | int) -> dict[int, int]:
        """Return the `offset` of every partition, with one request to each broker."""
        places = [TopicPartition(self._name, partition) for partition in range(self.partitions)]
        found = self._retried(lambda: self._admin.list_partition_offsets(dict.fromkeys(places, at)))
        return {place.partition: int(found[place].offset) for place in places}

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
                # Do not wait for a topic that never existed.
                is_absent = self._found is None and isinstance(error, UnknownTopicOrPartitionError)
                is_passing = error.retriable or isinstance(error, UnknownBrokerIdError)
                if is_absent or not is_passing or time.monotonic() >= give_up_s:
                    raise
                self._leaders_moved = True
                time.sleep(_BACKOFF_S)

    def _topic(self) -> FoundTopic:
        if self._found is None or self._leaders_moved:
            self._found, self._leaders_moved = find_topic(self._admin, self._name), False
        return self._found

    def _fetch(self, partition: int, offset: int) -> bytes:
        found = fetch(
            self._admin,
            self._topic(),
            partition,
            offset,
            by_id=False,
            max_wait_ms=_MAX_WAIT_MS,
            max_bytes=_FETCH_MAX_BYTES,
        )
        if found.error_code:
            raise for_code(found.error_code)(f"{self._name}-{partition}")
        if found.high_watermark <= offset:  # a new leader may not know the high watermark yet
            raise OffsetNotAvailableError(f"{self._name}-{partition}")
        return bytes(found.records or b"")

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()
