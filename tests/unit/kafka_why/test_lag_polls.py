"""Polls of the brokers: what is asked and how often, also of brokers that cannot say the times of records."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import UnsupportedVersionError
from kafka.structs import OffsetAndTimestamp

from kafka_why.contract.codec import offset_key
from kafka_why.lag import brokers as looks_module
from kafka_why.lag.brokers import LagPoller
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
