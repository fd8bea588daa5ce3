"""Polls of the brokers: what is asked and how often, and the search for times of records by timestamps."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import UnsupportedVersionError
from kafka.structs import OffsetAndTimestamp

from kafka_why.contract.codec import offset_key
from kafka_why.lag import brokers as looks_module
from kafka_why.lag.brokers import NEWEST, PRECISION_MS, Found, LagPoller, timestamp_lags
from kafka_why.lag.definitions import Partition
from kafka_why.lag.lag_book import LagBook
from tests.harness.scraped import committed

P = ("orders", 0)


class Admin:
    """Answers as kafka-python's admin client does: `orders` has two partitions, the second without a leader,
    and a record a minute. `old` brokers know no NEWEST.
    """

    def __init__(self, *, old: bool = False) -> None:
        self.old = old
        self.asked: list[set[int]] = []

    def describe_topics(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        places = [{"partition_index": 0, "leader_id": 1}, {"partition_index": 1, "leader_id": -1}]
        return [{"name": topic, "partitions": places} for topic in topics if topic == "orders"]

    def list_partition_offsets(
        self, specs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self.asked.append({*specs.values()})
        return {where: OffsetAndTimestamp(*self._found(spec), -1) for where, spec in specs.items()}

    def _found(self, spec: int) -> tuple[int, int]:
        if spec == OffsetSpec.MAX_TIMESTAMP:
            if self.old:
                raise UnsupportedVersionError("ListOffsets v6")
            return 9, 9 * 60_000
        if spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
            return (2 if spec == OffsetSpec.EARLIEST else 10), -1
        minute = max(-(-spec // 60_000), 2)
        return (minute, minute * 60_000) if minute < 10 else (-1, -1)


@pytest.fixture
def book() -> LagBook:
    """Return a group at offset 4, and one whose records are gone."""
    book = LagBook()
    for group_id, offset in (("g", 4), ("late", 0)):
        book.apply_commit(offset_key(group_id, *P), committed(group_id, *P, offset, 0))
    book.apply_commit(offset_key("g", "gone", 0), committed("g", "gone", 0, 7, 0))
    return book


def test_each_poll_sends_at_most_one_lookup_request_until_the_search_ends(book: LagBook) -> None:
    admin, poller = Admin(), LagPoller(book)
    numbers = []
    for _ in range(60):
        poller.poll(admin)
        numbers.append(len(admin.asked))
    assert {later - number for number, later in pairwise(numbers)} == {0, 1}
    assert numbers[0] == 3 and numbers[-1] == numbers[-2]


def test_polls_find_bounds_and_times_of_records_and_of_brokers_without_lookup_only_bounds(
    book: LagBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks_module, "INTERVAL_S", 0)
    poller = LagPoller(book)
    for _ in range(10):
        poller.poll(Admin(old=True))
    lag = book.lags("g")[P]
    assert (lag.records, lag.ms) == (6, None)
    for _ in range(60):
        poller.poll(Admin())
    assert book.lags("g")[P].ms == 5 * 60_000
    assert book.lags("g")["gone", 0].records is None
    late = book.lags("late")[P]
    assert (late.records, late.ms) == (8, 7 * 60_000), "from the beginning of the log"


LOG, OTHER_LOG = ("orders", 0), ("orders", 1)
WEEK_MS = 7 * 24 * 3_600_000


class Brokers:
    """Answers ListOffsets as Kafka does, for logs given as (offset, timestamp) of each record."""

    def __init__(self, logs: Mapping[Partition, list[tuple[int, int]]]) -> None:
        self._logs = logs
        self.asked: list[Mapping[Partition, int]] = []

    def __call__(self, times_ms: Mapping[Partition, int]) -> dict[Partition, Found]:
        self.asked.append(times_ms)
        return {where: self._found(self._logs[where], at_ms) for where, at_ms in times_ms.items()}

    @staticmethod
    def _found(log: list[tuple[int, int]], at_ms: int) -> Found:
        if at_ms == NEWEST:
            return max(log, key=lambda record: (record[1], -record[0]), default=None)
        return next((record for record in log if record[1] >= at_ms), None)


def log_of(*timestamps: int) -> list[tuple[int, int]]:
    return [*enumerate(timestamps)]


def test_each_search_round_is_one_request_for_all_partitions() -> None:
    logs = {("t", n): log_of(*(at * (n + 1) for at in range(1_000))) for n in range(50)}
    brokers = Brokers(logs)
    timestamp_lags(brokers, dict.fromkeys(logs, 500))
    assert len(brokers.asked[0]) == len(brokers.asked[1]) == 50
    assert len(brokers.asked) < 30


def test_a_partition_without_records_or_without_usable_timestamps_is_left_out() -> None:
    assert timestamp_lags(Brokers({LOG: [], OTHER_LOG: log_of(-1, -1)}), {LOG: 0, OTHER_LOG: 1}) == {}
    assert timestamp_lags(Brokers({}), {}) == {}


def true_lag(log: list[tuple[int, int]], offset: int) -> int:
    """By the greatest timestamp up to the offset."""
    upto = max(bisect_right(log, (offset, 2**63)), 1)
    return max(ms for _, ms in log) - max(ms for _, ms in log[:upto])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, WEEK_MS)), min_size=1, max_size=60), st.data())
def test_timestamp_lag_is_exact_to_the_precision_despite_unordered_timestamps(
    records: list[tuple[int, int]], data: st.DataObject
) -> None:
    log, offset = [], -1
    for step, at_ms in records:
        offset += step
        log.append((offset, at_ms))
    committed = data.draw(st.integers(0, offset))
    brokers = Brokers({LOG: log})
    found = timestamp_lags(brokers, {LOG: committed})[LOG]
    assert 0 <= found - true_lag(log, committed) <= PRECISION_MS
    # Each two rounds halve what is left of a week.
    assert len(brokers.asked) <= 2 + 2 * (WEEK_MS // PRECISION_MS).bit_length()
