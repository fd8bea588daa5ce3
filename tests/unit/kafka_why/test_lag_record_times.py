"""The lag in time by timestamps: the search, at logs with timestamps in any order."""

from bisect import bisect_right
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kafka_why.lag.definitions import Partition
from kafka_why.lag.record_times import NEWEST, PRECISION_MS, Found, timestamp_lags

P, Q = ("orders", 0), ("orders", 1)
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
    assert timestamp_lags(Brokers({P: [], Q: log_of(-1, -1)}), {P: 0, Q: 1}) == {}
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
    brokers = Brokers({P: log})
    found = timestamp_lags(brokers, {P: committed})[P]
    assert 0 <= found - true_lag(log, committed) <= PRECISION_MS
    # Each two rounds halve what is left of a week.
    assert len(brokers.asked) <= 2 + 2 * (WEEK_MS // PRECISION_MS).bit_length()
