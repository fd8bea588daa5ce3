"""Polls the brokers for lags: the bounds of logs, and records by their timestamps.

It sends only ListOffsets and Metadata, which need only DESCRIBE on a topic. No record is read.
"""

import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Protocol

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError

from kafka_why.connections.outage_warning import OutageWarning
from kafka_why.lag.definitions import LogBounds, Partition
from kafka_why.lag.record_times import Found, TimestampSearch
from kafka_why.now import now_ms

INTERVAL_S = 5.0
"""The interval at which followers of the topics poll the bounds of logs."""


def log_bounds(admin: KafkaAdminClient, topics: Collection[str]) -> dict[Partition, LogBounds]:
    """Return the bounds of every partition of these topics. Topics that do not exist, and partitions without
    a leader, are omitted. Sends two requests for the topics, and two to each leading broker. Raises
    KafkaError.
    """
    # A consumer's own end_offsets would wait for topics that do not exist, and offsets may outlive a topic.
    described = admin.describe_topics(sorted(topics)) if topics else []
    led = [
        TopicPartition(topic["name"], partition["partition_index"])
        for topic in described
        for partition in topic["partitions"]
        if partition["leader_id"] >= 0
    ]
    # The ends last: no record before an end is younger than the request for the beginnings.
    earliest = admin.list_partition_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST)) if led else {}
    latest = admin.list_partition_offsets(dict.fromkeys(led, OffsetSpec.LATEST)) if led else {}
    return {
        (where.topic, where.partition): LogBounds(earliest[where].offset, answer.offset)
        for where, answer in latest.items()
        if where in earliest
    }


def records_at(admin: KafkaAdminClient, times_ms: Mapping[Partition, int]) -> dict[Partition, Found]:
    """Return the first record of each partition with this timestamp or a greater one, None where there is
    none; for `NEWEST` the record with the greatest timestamp. Sends a request to each leading broker. Raises
    KafkaError.
    """
    asked = {TopicPartition(*where): at_ms for where, at_ms in times_ms.items()}
    found = admin.list_partition_offsets(asked) if asked else {}
    return {
        (where.topic, where.partition): None if at.offset < 0 else (at.offset, at.timestamp)
        for where, at in found.items()
    }


class LagReader(Protocol):
    """The receiver of a poller's results, such as `LagBook`. `topics` are those to poll."""

    def topics(self) -> set[str]: ...
    def add_bounds(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None: ...
    def wanted_times(self) -> dict[Partition, int]: ...
    def learn_times(self, wanted: Mapping[Partition, int], lags_ms: Mapping[Partition, int]) -> None: ...


class LagPoller:
    """Polls the brokers for one reader, at most each INTERVAL_S. For one thread."""

    def __init__(self, reader: LagReader) -> None:
        self._reader = reader
        self._at_s = float("-inf")
        self._wanted: dict[Partition, int] = {}
        self._search: TimestampSearch | None = None
        self._warning = OutageWarning("looking for the times of records")
        self._bounds_warning = OutageWarning("reading the ends of topics")

    def poll(self, admin: KafkaAdminClient) -> None:
        """Poll if INTERVAL_S has passed, and take one step of the search for times of records. The search has
        several steps so that the caller can read topics in between. Raises KafkaError if the bounds of the
        logs are unavailable. Brokers before Kafka 3.0 do not return times of records. That is logged, and
        lags in time are then known only for records that arrived after the first poll.
        """
        if time.monotonic() - self._at_s >= INTERVAL_S:
            bounds = log_bounds(admin, self._reader.topics())
            # The time after the response, because a record's wait counts from when it was seen.
            self._reader.add_bounds(bounds, now_ms())
            self._at_s = time.monotonic()
            if self._search is None and (wanted := self._reader.wanted_times()):
                self._wanted, self._search = wanted, TimestampSearch(wanted)
        if self._search is not None:
            self._step(admin, self._search)

    def poll_if_allowed(self, admin: KafkaAdminClient) -> None:
        """Poll, and log a warning instead of raising: nothing else needs the right to describe topics."""
        try:
            self.poll(admin)
            self._bounds_warning.worked()
        except KafkaError as error:
            self._bounds_warning.failed(error)

    def _step(self, admin: KafkaAdminClient, search: TimestampSearch) -> None:
        try:
            is_over = search.step(partial(records_at, admin))
        except KafkaError as error:
            self._warning.failed(error)
            # One partition without a leader fails the whole search, so the next search takes other
            # partitions.
            self._reader.learn_times(self._wanted, {})
            self._search = None
            return
        self._warning.worked()
        if is_over:
            self._reader.learn_times(self._wanted, search.lags_ms)
            self._search = None
