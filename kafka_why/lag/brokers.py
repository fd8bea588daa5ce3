"""Polls the brokers for lags: the bounds of logs, and the lag in time by the timestamps of records.

The polls send only ListOffsets and Metadata, which need only DESCRIBE on a topic. They read no records.

ListOffsets returns the first record whose timestamp is at least a given time. If this record is after the
committed offset, the search tries an earlier time next, else a later one. Timestamps may be in any order, so
the time of an offset is the greatest timestamp of the records up to it.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec

from kafka_why.lag.definitions import LogBounds, Partition, lag_ms


class TimedRecord(NamedTuple):
    """A record's offset, and its timestamp or a time at which it was in the log."""

    offset: int
    ms: int


Found: TypeAlias = TimedRecord | None
"""A record, or None if there is no such record."""
Ask: TypeAlias = Callable[[Mapping[Partition, int]], Mapping[Partition, Found]]
"""A function that returns each partition's first record with at least the given timestamp in ms or, for
NEWEST, the record with the greatest timestamp.
"""

NEWEST = -3
"""Kafka's MAX_TIMESTAMP (KIP-734)."""
PRECISION_MS = 1_000
"""The maximum error of a lag in time. A lag may be too long by less than this, but not too short."""
MAX_ROUNDS = 64
"""The maximum number of requests for one partition. Only timestamps that span millennia need this number."""


def timestamp_lags(ask: Ask, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the lags in ms of these committed offsets. Raises what `ask` raises.

    A partition without records or without usable timestamps is omitted.
    """
    search = TimestampSearch(offsets)
    while not search.step(ask):
        pass
    return search.lags_ms


class TimestampSearch:
    """A search for the times of committed offsets. Each step is one request for all partitions.

    The first step requests the newest records and the second one the oldest. These are the first bounds of
    each partition's search. All further steps narrow the bounds.
    """

    def __init__(self, offsets: Mapping[Partition, int]) -> None:
        self._offsets = dict(offsets)
        self._newest: Mapping[Partition, Found] | None = None
        self._searches: dict[Partition, _Search] | None = None  # None before the second step
        self._narrowing_rounds = 0

    def step(self, ask: Ask) -> bool:
        """Make the next step. Return True if the search is over. Raises what `ask` raises."""
        if self._newest is None:  # the first step
            self._newest = ask(dict.fromkeys(self._offsets, NEWEST))
            return False
        if self._searches is None:  # the second step
            newest = {
                partition: record
                for partition, record in self._newest.items()
                if record is not None and record.ms >= 0  # -1 without timestamps
            }
            oldest = ask(dict.fromkeys(newest, 0))
            self._searches = {
                partition: _Search(self._offsets[partition], record, newest[partition])
                for partition, record in oldest.items()
                if record is not None
            }
        else:
            probes_ms = {
                partition: search.probe_ms(self._narrowing_rounds)
                for partition, search in self._open_searches().items()
            }
            for partition, record in ask(probes_ms).items():
                self._searches[partition].narrow(record)
            self._narrowing_rounds += 1
        return not self._open_searches() or self._narrowing_rounds >= MAX_ROUNDS

    def _open_searches(self) -> "dict[Partition, _Search]":
        return {
            partition: search for partition, search in (self._searches or {}).items() if not search.is_over
        }

    @property
    def lags_ms(self) -> dict[Partition, int]:
        """The lags that the search has found so far. Those of open searches are not precise yet."""
        return {partition: search.lag_ms for partition, search in (self._searches or {}).items()}


class _Search:
    """The search for the time of one committed offset, which is at or after `_low` and before `_high`."""

    def __init__(self, offset: int, oldest: TimedRecord, newest: TimedRecord) -> None:
        self._offset = offset
        self._newest_ms = newest.ms
        self._low, self._high = oldest, newest
        self._probed_ms = 0
        if newest.offset <= offset:  # no record after the committed offset has a greater timestamp
            self._low = newest

    @property
    def is_over(self) -> bool:
        """True if the time is known with PRECISION_MS."""
        width_ms = self._high.ms - self._low.ms
        return self._low.offset >= self._offset or width_ms <= PRECISION_MS

    @property
    def lag_ms(self) -> int:
        """The lag by the earliest time that the offset can have, so it is never too short."""
        return lag_ms(self._low.ms, self._newest_ms)

    def probe_ms(self, round_number: int) -> int:
        """Return the next time to request, and keep it for `narrow`."""
        (low_offset, low_ms), (high_offset, high_ms) = self._low, self._high
        # Even rounds assume that records arrived evenly. Odd rounds take the middle, so that two rounds at
        # least halve the interval.
        is_even_round = round_number % 2 == 0
        offset_fraction = (self._offset - low_offset) / max(high_offset - low_offset, 1)
        fraction = offset_fraction if is_even_round else 0.5
        time_ms = low_ms + int((high_ms - low_ms) * fraction)
        self._probed_ms = min(max(time_ms, low_ms + 1), high_ms - 1)  # inside the interval
        return self._probed_ms

    def narrow(self, record: Found) -> None:
        """Narrow the interval to one side of the probed time.

        `record` is the first record at or after this time. If it is not after the committed offset, the time
        of the offset is at least the record's. Otherwise, the time of the offset is before the probed time.
        """
        if record is not None and record.offset <= self._offset:
            self._low = record
        else:
            after = self._high if record is None else record
            self._high = TimedRecord(after.offset, self._probed_ms)


INTERVAL_S = 5.0
"""The interval at which followers of the topics poll the bounds of logs."""


def log_bounds(admin: KafkaAdminClient, topics: Collection[str]) -> dict[Partition, LogBounds]:
    """Return the bounds of every partition of these topics. Raises KafkaError.

    Topics that do not exist, and partitions without a leader, are omitted. Sends two requests for the topics,
    and two to each leading broker.
    """
    # A consumer's end_offsets would wait for a topic that does not exist, and committed offsets may outlive
    # their topic.
    described = admin.describe_topics(sorted(topics)) if topics else []
    with_leader = [
        TopicPartition(topic["name"], partition["partition_index"])
        for topic in described
        for partition in topic["partitions"]
        if partition["leader_id"] >= 0
    ]
    # The ends are requested last, so that no end is before the beginning of its partition.
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
    queries = {TopicPartition(*partition): at_ms for partition, at_ms in times_ms.items()}
    answers = admin.list_partition_offsets(queries) if queries else {}
    return {
        (partition.topic, partition.partition): None
        if answer.offset < 0
        else TimedRecord(answer.offset, answer.timestamp)
        for partition, answer in answers.items()
    }
