"""The project's reader of topics, and threads that follow topics: they read new records until stopped.

The reader begins at the topics' beginnings, at their ends, or at given offsets.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from enum import Enum
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

import structlog
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.errors import UserFacingError
from kafka_why.lifetimes import BackgroundThread, Closeable, OutageWarning

# kafka-python's ConsumerRecord, which has no types: topic, partition, offset, timestamp (ms), key, value.
Record: TypeAlias = Any
Offsets: TypeAlias = Mapping[TopicPartition, int]

# A topic that is not read to its end counts as unreachable when no record comes for this long.
IDLE_TIMEOUT_MS = 30_000
_POLL_MS = 200


class TopicReader(Closeable):
    """A reader of the partitions given to `start`. Not thread-safe. All methods raise KafkaError.

    `max_record_bytes` is the size of the largest record of the topics. `timeout_ms` limits each request to
    the brokers, or is None for kafka-python's default. `fetch_min_bytes` and `fetch_max_wait_ms` are Kafka's
    settings. `reconnect_max_ms` is the longest pause between two attempts to connect.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        *,
        max_record_bytes: int | None = None,
        timeout_ms: int | None = None,
        fetch_min_bytes: int | None = None,
        fetch_max_wait_ms: int | None = None,
        reconnect_max_ms: int | None = None,
    ) -> None:
        self.records_read = 0  # number of records that the brokers returned
        self._timeout_ms = timeout_ms
        self._consumer = kafka_clients.reading_consumer(
            client_config,
            max_record_bytes=max_record_bytes,
            timeout_ms=timeout_ms,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            reconnect_max_ms=reconnect_max_ms,
        )

    def partitions_of(self, *topics: str) -> list[TopicPartition]:
        """Return the partitions of these topics, none for a topic that does not exist."""
        return [
            TopicPartition(topic, number)
            for topic in topics
            for number in sorted(self._consumer.partitions_for_topic(topic))
        ]

    def is_internal(self, topic: str) -> bool:
        """Return True if this existing topic is internal for the brokers or a gateway."""
        # kafka-python omits internal topics here.
        return topic not in self._consumer.topics()

    def start(
        self,
        *,
        beginning: Collection[TopicPartition] = (),
        end: Collection[TopicPartition] = (),
        at: Offsets | None = None,
    ) -> None:
        """Read only these partitions from now on: from their beginnings, from their ends, or from `at`."""
        at = at or {}
        self._consumer.assign([*beginning, *end, *at])
        if beginning:
            self._consumer.seek_to_beginning(*beginning)
        if end:
            self._consumer.seek_to_end(*end)
        for partition in end:
            self._position(partition)  # so that the end is that of now, not that of the first poll
        for partition, offset in at.items():
            self._consumer.seek(partition, offset)

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition."""
        return dict(self._consumer.end_offsets(list(partitions), timeout_ms=self._timeout_ms))

    def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first available offset of each partition."""
        return dict(self._consumer.beginning_offsets(list(partitions), timeout_ms=self._timeout_ms))

    def offsets_at(
        self, partitions: Collection[TopicPartition], at_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of each partition's first record at or after `at_ms`, or None without one."""
        times = dict.fromkeys(partitions, max(0, at_ms))
        positions = self._consumer.offsets_for_times(times, timeout_ms=self._timeout_ms) if times else {}
        return {partition: None if at is None else at.offset for partition, at in positions.items()}

    def poll(self, timeout_ms: int = _POLL_MS) -> list[Record]:
        """Return new records, in order within each partition. Wait at most `timeout_ms` for the first."""
        polled = self._consumer.poll(timeout_ms=timeout_ms)
        records = [record for partition_records in polled.values() for record in partition_records]
        self.records_read += len(records)
        return records

    def positions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition's next record, or -1 if no broker answers in time."""
        return {partition: self._position(partition) for partition in partitions}

    def has_read(self, ends: Offsets) -> bool:
        """Return True if all records before `ends` are read."""
        return not self._partitions_behind(ends)

    def read_to(self, ends: Offsets, *, timeout_ms: int | None = None) -> Iterator[Record]:
        """Yield the started partitions' records before `ends`. Later records are left for the next call.

        Raises KafkaTimeoutError if this takes longer than `timeout_ms`, or if no record comes for
        IDLE_TIMEOUT_MS.
        """
        give_up_s = float("inf") if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        last_record_s = time.monotonic()
        first_after_end: dict[TopicPartition, int] = {}  # offsets
        while behind := self._partitions_behind(ends):
            now_s = time.monotonic()
            if now_s > give_up_s or now_s - last_record_s > IDLE_TIMEOUT_MS / 1000:
                topics = ", ".join(sorted({partition.topic for partition in behind}))
                raise KafkaTimeoutError(f"topic {topics} was not read to its end in time")
            records = self.poll()
            if records:
                last_record_s = time.monotonic()
            for record in records:
                partition = TopicPartition(record.topic, record.partition)
                if record.offset < ends.get(partition, 0):
                    yield record
                else:
                    first_after_end.setdefault(partition, record.offset)
        # A poll may return records after `ends`. The next call begins with the first of them.
        for partition, offset in first_after_end.items():
            self._consumer.seek(partition, offset)

    def read_all(self, *topics: str, timeout_ms: int | None = None) -> Iterator[Record]:
        """Yield these topics' records from their beginnings to their current ends.

        Errors are as in `read_to`.
        """
        partitions = self.partitions_of(*topics)
        ends = self.ends(partitions)
        self.start(beginning=partitions)
        return self.read_to(ends, timeout_ms=timeout_ms)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close(autocommit=False)

    def _partitions_behind(self, ends: Offsets) -> list[TopicPartition]:
        """Return the partitions that are not read up to `ends`."""
        return [partition for partition, end in ends.items() if self._position(partition) < end]

    def _position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record, or -1 if the brokers do not answer in time."""
        position: int | None = self._consumer.position(partition, timeout_ms=self._timeout_ms)
        return -1 if position is None else position


class ClientError(UserFacingError):
    """The base class of errors that leave a request without a useful response. Each subclass is a reason."""


class TopicsMissing(ClientError):
    """The error when the coordinator's topics do not exist, or have an unexpected layout."""


class GatewayAddress(ClientError):
    """The error when the address is a gateway's, but the brokers' is needed.

    A gateway hides the history. The groups of the brokers behind it are not the coordinator's groups, so
    they cannot be shown instead.
    """


class BrokersOwn(Enum):
    """A source of the groups of the brokers' own coordinator, if this project's coordinator has no topics."""

    OFFSETS_TOPIC = 1  # `__consumer_offsets`
    POLLS = 2  # polls of the groups, if the principal may not read `__consumer_offsets`


def layout_on(client_config: ClientConfig, prefix: str) -> TopicLayout:
    """Return the layout of the coordinator's or observer's topics, with their actual partitions.

    Raises TopicsMissing if no topics have this prefix, or GatewayAddress if `client_config` has a gateway's
    address.
    """
    names = TopicLayout.named(prefix)
    with TopicReader(client_config) as reader:
        # Numbers of partitions; 0 if the topic does not exist.
        requests = len(reader.partitions_of(names.requests_topic))
        groups = 0 if requests else len(reader.partitions_of(names.groups_topic))
        responses = len(reader.partitions_of(names.responses_topic))
        # A gateway shows the requests topic as internal.
        is_internal = bool(requests) and reader.is_internal(names.requests_topic)
    if groups:  # only an observer has no requests topic
        return TopicLayout.observed(prefix, groups)
    if not requests or not responses:
        missing = names.responses_topic if requests else names.requests_topic
        raise TopicsMissing(f"no topic {missing} on {client_config}: has the coordinator been started?")
    if is_internal:
        raise GatewayAddress(
            f"{client_config} is a gateway, whose clients may not write to {names.requests_topic}: "
            "give the brokers' address"
        )
    return TopicLayout.named(prefix, request_partitions=requests, reply_partitions=responses)


_RETRY_PAUSE_S = 1.0
# The maximum time of a request of a follower to the brokers, and so about the longest time that `stop` takes.
_FOLLOWER_TIMEOUT_MS = 5_000
# If nobody waits for a follower's records, the brokers answer its fetches after half a second or with this
# many bytes, whichever is first. That costs them and the follower less than a fetch for each batch.
_BULK_MIN_BYTES = 64 * 1024
_BULK_MAX_WAIT_MS = 500


@contextmanager
def reader_and_admin(
    client_config: ClientConfig, layout: TopicLayout, *, in_bulk: bool = False
) -> Iterator[tuple[TopicReader, KafkaAdminClient]]:
    """Yield the connections of a follower that also sends requests to the brokers. Raises KafkaError.

    With `in_bulk`, records come later and more at once, because nobody waits for them.
    """
    with (
        TopicReader(
            client_config,
            max_record_bytes=layout.response_record_max_bytes,
            timeout_ms=_FOLLOWER_TIMEOUT_MS,
            fetch_min_bytes=_BULK_MIN_BYTES if in_bulk else None,
            fetch_max_wait_ms=_BULK_MAX_WAIT_MS if in_bulk else None,
        ) as reader,
        closing(
            kafka_clients.admin(
                client_config,
                bootstrap_timeout_ms=_FOLLOWER_TIMEOUT_MS,
                request_timeout_ms=_FOLLOWER_TIMEOUT_MS,
            )
        ) as admin,
    ):
        yield reader, admin


class FollowerThread(BackgroundThread):
    """A thread that calls `_connect_and_follow` until stopped. It calls it again after `_retried_errors`.

    `purpose` is for its warnings, such as `reading for the page`. Subclasses call `_worked` after each
    successful read.
    """

    _retried_errors: type[Exception] = KafkaError

    def __init__(self, name: str, purpose: str) -> None:
        self._warning = OutageWarning(purpose)
        self._last_read_s = time.monotonic()
        super().__init__(name)

    def read_age_s(self) -> float:
        """Return the seconds since the last successful read, or since the construction."""
        return time.monotonic() - self._last_read_s

    def _worked(self) -> None:
        self._warning.worked()
        self._last_read_s = time.monotonic()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._connect_and_follow()
            except self._retried_errors as error:
                self._retry_later(error)

    def _retry_later(self, error: Exception) -> None:
        """Record a failed attempt, and wait before the next one."""
        self._warning.failed(error)
        self._stopped.wait(_RETRY_PAUSE_S)

    @abstractmethod
    def _connect_and_follow(self) -> None:
        """Follow the topics until stopped. May raise `_retried_errors`."""


class TopicsFollower(FollowerThread):
    """A thread that follows the topics of one coordinator."""

    def __init__(self, name: str, purpose: str, client_config: ClientConfig, layout: TopicLayout) -> None:
        super().__init__(name, purpose)
        self._client_config = client_config
        self._layout = layout


# Names of topics by id. Records of groups of the consumer protocol have only the ids.
#
# The name of an id never changes. So the result of a batch does not depend on when a name is looked up, as
# long as the topic exists: a batch that runs again writes the same entries, at most with more names.

# The time after which an id that no topic had is looked up again.
_LOOK_UP_AGAIN_S = 60.0
# The pause after a lookup that found nothing new, because a long log has ids of many deleted topics.
_PAUSE_S = 1.0
# Of a lookup's requests.
_TIMEOUT_MS = 10_000

log = structlog.get_logger()

LookUpNames = Callable[[], dict[bytes, str]]


class NamesById:
    """A cache of topic names by id. `look_up` returns the names of all topics, or raises KafkaError."""

    def __init__(self, look_up: LookUpNames, now_s: Callable[[], float] = time.monotonic) -> None:
        self.known: dict[bytes, str] = {}
        self._look_up = look_up
        self._now_s = now_s
        self._last_miss_s: dict[bytes, float] = {}  # by id, the last lookup in which no topic had it
        self._next_lookup_s = float("-inf")

    def find(self, ids: Iterable[bytes]) -> None:
        """Look up these ids, unless they are known or were missing recently."""
        now_s = self._now_s()
        wanted = [
            topic_id
            for topic_id in ids
            if topic_id not in self.known
            and now_s - self._last_miss_s.get(topic_id, -_LOOK_UP_AGAIN_S) >= _LOOK_UP_AGAIN_S
        ]
        if not wanted or now_s < self._next_lookup_s:
            return
        try:
            self.known.update(self._look_up())
        except KafkaError as error:
            log.warning("names of topics cannot be read, so their ids are shown", error=str(error))
        missing = [topic_id for topic_id in wanted if topic_id not in self.known]
        self._last_miss_s.update(dict.fromkeys(missing, now_s))
        if len(missing) == len(wanted):
            self._next_lookup_s = now_s + _PAUSE_S


@cache
def names_on(client_config: ClientConfig) -> NamesById:
    """Return this process's cache of the cluster's topic names. All Spark tasks of the process share it."""
    return NamesById(lambda: _read_topic_names(client_config))


def _read_topic_names(client_config: ClientConfig) -> dict[bytes, str]:
    """Return the names of all topics by id. Raises KafkaError."""
    with closing(
        kafka_clients.admin(client_config, bootstrap_timeout_ms=_TIMEOUT_MS, request_timeout_ms=_TIMEOUT_MS)
    ) as admin:
        topics: list[dict[str, Any]] = admin.describe_topics()
    return {UUID(str(topic["topic_id"])).bytes: topic["name"] for topic in topics}
