"""Polls the brokers for lags: the bounds of logs, and the lag in time by the timestamps of records.

The polls send only ListOffsets and Metadata, which need only DESCRIBE on a topic. They read no records.

ListOffsets returns the first record whose timestamp is at least a given time. The search finds the greatest
time for which this record is not after the committed offset. Timestamps may be in any order, so the time of
an offset is the greatest timestamp of the records up to it.
"""

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol, TypeAlias

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError

from kafka_why.lag.definitions import LogBounds, Partition, lag_ms
from kafka_why.lifetimes import OutageWarning
from kafka_why.now import now_ms

Found: TypeAlias = tuple[int, int] | None
"""The offset and the timestamp in ms of a record, or None if there is no such record."""
Ask: TypeAlias = Callable[[Mapping[Partition, int]], Mapping[Partition, Found]]
"""A function that returns each partition's first record with at least the given timestamp in ms or, for
NEWEST, the record with the greatest timestamp.
"""

NEWEST = -3
"""Kafka's MAX_TIMESTAMP (KIP-734)."""
PRECISION_MS = 1_000
"""The maximum error of a lag in time. A lag may be too long by less than this, but not too short."""
MAX_ROUNDS = 64
"""The maximum number of requests for one partition. Only timestamps that span millennia need so many."""


def timestamp_lags(ask: Ask, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the lags in ms of these committed offsets. Raises what `ask` raises.

    A partition without records or without usable timestamps is omitted.
    """
    search = TimestampSearch(offsets)
    while not search.step(ask):
        pass
    return search.lags_ms


class TimestampSearch:
    """A search for the times of committed offsets. Each step is one request for all partitions."""

    def __init__(self, offsets: Mapping[Partition, int]) -> None:
        self._offsets = dict(offsets)
        self._newest: Mapping[Partition, Found] | None = None
        self._searches: dict[Partition, _Search] | None = None
        self._rounds = 0

    def step(self, ask: Ask) -> bool:
        """Make the next step. Return True if the search is over. Raises what `ask` raises."""
        if self._newest is None:
            self._newest = ask(dict.fromkeys(self._offsets, NEWEST))
            return False
        if self._searches is None:
            newest = self._newest
            first = ask(
                {partition: 0 for partition, found in newest.items() if found is not None and found[1] >= 0}
            )
            self._searches = {
                partition: _Search(self._offsets[partition], found, last)
                for partition, found in first.items()
                if found is not None and (last := newest[partition]) is not None
            }
        else:
            probes = {partition: search.probe_ms(self._rounds) for partition, search in self._open().items()}
            for partition, found in ask(probes).items():
                self._searches[partition].narrow(found)
            self._rounds += 1
        return not self._open() or self._rounds >= MAX_ROUNDS

    def _open(self) -> "dict[Partition, _Search]":
        return {
            partition: search for partition, search in (self._searches or {}).items() if not search.is_over
        }

    @property
    def lags_ms(self) -> dict[Partition, int]:
        """The lags that the search has found so far."""
        return {partition: search.lag_ms for partition, search in (self._searches or {}).items()}


class _Search:
    """The search for the time of one committed offset, which is at or after `_low` and before `_high`."""

    def __init__(self, offset: int, first: tuple[int, int], newest: tuple[int, int]) -> None:
        self._offset = offset
        self._newest_ms = newest[1]
        self._low, self._high = first, newest
        self._probed_ms = 0
        if newest[0] <= offset:  # no record after the committed offset has a greater timestamp
            self._low = newest

    @property
    def is_over(self) -> bool:
        return self._low[0] >= self._offset or self._high[1] - self._low[1] <= PRECISION_MS

    @property
    def lag_ms(self) -> int:
        return lag_ms(self._low[1], self._newest_ms)

    def probe_ms(self, number: int) -> int:
        """Return the next time to request, in round `number`."""
        (low, low_ms), (high, high_ms) = self._low, self._high
        # In even rounds as if records arrived evenly, else the middle: two rounds at least halve the
        # interval.
        between = (self._offset - low) / max(high - low, 1) if number % 2 == 0 else 0.5
        self._probed_ms = min(max(low_ms + int((high_ms - low_ms) * between), low_ms + 1), high_ms - 1)
        return self._probed_ms

    def narrow(self, found: Found) -> None:
        """Narrow the interval to one side of the probed time.

        `found` is the first record at or after this time.
        """
        if found is not None and found[0] <= self._offset:
            self._low = found
        else:
            self._high = (self._high[0] if found is None else found[0], self._probed_ms)


INTERVAL_S = 5.0
"""The interval at which followers of the topics poll the bounds of logs."""


def log_bounds(admin: KafkaAdminClient, topics: Collection[str]) -> dict[Partition, LogBounds]:
    """Return the bounds of every partition of these topics. Raises KafkaError.

    Topics that do not exist, and partitions without a leader, are omitted. Sends two requests for the topics,
    and two to each leading broker.
    """
    # A consumer's own end_offsets would wait for topics that do not exist, and offsets may outlive a topic.
    described = admin.describe_topics(sorted(topics)) if topics else []
    with_leader = [
        TopicPartition(topic["name"], partition["partition_index"])
        for topic in described
        for partition in topic["partitions"]
        if partition["leader_id"] >= 0
    ]
    # Request the ends last, so that each end is at or after its partition's beginning.
    earliest = (
        admin.list_partition_offsets(dict.fromkeys(with_leader, OffsetSpec.EARLIEST)) if with_leader else {}
    )
    latest = (
        admin.list_partition_offsets(dict.fromkeys(with_leader, OffsetSpec.LATEST)) if with_leader else {}
    )
    return {
        (partition.topic, partition.partition): LogBounds(earliest[partition].offset, answer.offset)
        for partition, answer in latest.items()
        if partition in earliest
    }


def records_at(admin: KafkaAdminClient, times_ms: Mapping[Partition, int]) -> dict[Partition, Found]:
    """Return each partition's first record at or after the given time, or None. Raises KafkaError.

    For `NEWEST` it is the record with the greatest timestamp. Sends a request to each leading broker.
    """
    wanted = {TopicPartition(*partition): at_ms for partition, at_ms in times_ms.items()}
    found = admin.list_partition_offsets(wanted) if wanted else {}
    return {
        (partition.topic, partition.partition): None if at.offset < 0 else (at.offset, at.timestamp)
        for partition, at in found.items()
    }


class LagReader(Protocol):
    """The receiver of a poller's results, such as `LagBook`."""

    def topics(self) -> set[str]: ...
    def add_bounds(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None: ...
    def wanted_times(self) -> dict[Partition, int]: ...
    def add_times(self, wanted: Mapping[Partition, int], lags_ms: Mapping[Partition, int]) -> None: ...


class LagPoller:
    """A poller of the brokers for one reader, at most once in INTERVAL_S. For use by one thread."""

    def __init__(self, reader: LagReader) -> None:
        self._reader = reader
        self._at_s = float("-inf")
        self._wanted: dict[Partition, int] = {}
        self._search: TimestampSearch | None = None
        self._warning = OutageWarning("looking for the times of records")
        self._bounds_warning = OutageWarning("reading the ends of topics")

    def poll(self, admin: KafkaAdminClient) -> None:
        """Poll if INTERVAL_S has passed, and make one step of the search for times of records.

        Raises KafkaError. The caller can read topics between the steps. Brokers before Kafka 3.0 do not
        return the times of records. A warning is then logged, and lags in time are known only for records
        that arrived after the first poll.
        """
        if time.monotonic() - self._at_s >= INTERVAL_S:
            bounds = log_bounds(admin, self._reader.topics())
            # Use the time after the response, because a record's wait counts from the poll that saw it.
            self._reader.add_bounds(bounds, now_ms())
            self._at_s = time.monotonic()
            if self._search is None and (wanted := self._reader.wanted_times()):
                self._wanted, self._search = wanted, TimestampSearch(wanted)
        if self._search is not None:
            self._step(admin, self._search)

    def poll_if_allowed(self, admin: KafkaAdminClient) -> None:
        """Poll, but log errors as warnings: only lags need the right to describe topics."""
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
            self._reader.add_times(self._wanted, {})
            self._search = None
            return
        self._warning.worked()
        if is_over:
            self._reader.add_times(self._wanted, search.lags_ms)
            self._search = None
