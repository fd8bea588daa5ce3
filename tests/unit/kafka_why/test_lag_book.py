"""The log bounds over time, and committed offsets beside them: lags, and the time since when offsets are
unchanged. Polls of the brokers, and the search for times of records by timestamps.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any
from unittest.mock import call

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import UnsupportedVersionError
from kafka.structs import OffsetAndTimestamp

from kafka_why.contract.codec import UNREADABLE, offset_key
from kafka_why.lag import lag_book
from kafka_why.lag import lag_poller as looks_module
from kafka_why.lag.brokers import INTERVAL_S, NEWEST, PRECISION_MS, Found, TimedRecord, timestamp_lags
from kafka_why.lag.definitions import LogBounds, Partition, PartitionLag
from kafka_why.lag.lag_book import COARSENESS, FORGET_MS, MAX_LOOK_UPS, MAX_SAMPLES, LagBook, LogHistory
from kafka_why.lag.lag_poller import LagPoller
from tests.harness.examples import examples
from tests.harness.scraped import committed

P = ("orders", 0)
STEP_MS = int(INTERVAL_S * 1000)


def commit(book: LagBook, offset: int, at_ms: int = 0, where: Partition = P, group_id: str = "g") -> None:
    book.apply_commit(offset_key(group_id, *where), committed(group_id, *where, offset, at_ms))


def looked(book: LagBook, *ends: int, begin_ms: int = 0, earliest: int = 0) -> LagBook:
    """Add polls of P with these log ends, an interval apart."""
    for number, end in enumerate(ends):
        book.add_bounds({P: LogBounds(earliest, end)}, begin_ms + number * STEP_MS)
    return book


def lag(book: LagBook, settled_ms: int = 0) -> PartitionLag:
    return book.lags("g", settled_ms)[P]


def book_at(offset: int, at_ms: int = 0) -> LagBook:
    book = LagBook()
    commit(book, offset, at_ms)
    return book


def test_unchanged_offset_is_dated_to_its_first_commit() -> None:
    book = LagBook()
    for offset, at_ms in ((5, 1), (7, 2), (7, 3), (7, 4)):
        commit(book, offset, at_ms)
    assert (lag(book).stands_since_ms, lag(book).committed_ms) == (2, 4)
    commit(book, 5, 5)
    assert lag(book).stands_since_ms == 5, "an offset that was set back"


def test_log_end_growth_counts_only_after_offset_and_group_came_to_rest() -> None:
    book = looked(book_at(5, at_ms=STEP_MS), 8, 8, 9, 9, 12)
    assert lag(book).grew_ms == 2 * STEP_MS
    assert lag(book, settled_ms=3 * STEP_MS).grew_ms == 4 * STEP_MS
    assert lag(book, settled_ms=4 * STEP_MS).grew_ms is None


def test_unreadable_record_is_refused_and_leaves_the_lag_book_unchanged() -> None:
    book = book_at(5)
    for key, value in ((b"{", None), (offset_key("g", *P), b"{}")):
        with pytest.raises(UNREADABLE):
            book.apply_commit(key, value)
    assert lag(book) == PartitionLag(5, 0, 0)
    assert issubclass(msgspec.DecodeError, UNREADABLE)


class Asking:
    """A book with a group at offset 5, and the offsets whose times were asked for last."""

    def __init__(self, *ends: int) -> None:
        self.book = looked(book_at(5), *ends)
        self._looks, self._wanted = len(ends), dict[Partition, int]()

    def ask(self) -> None:
        self._wanted = dict(self.book.wanted_times())

    def learn(self, lag_ms: int | None) -> None:
        self.book.add_times(self._wanted, {} if lag_ms is None else {P: lag_ms})

    def commit(self, offset: int) -> None:
        commit(self.book, offset)

    def look(self, end: int) -> None:
        looked(self.book, end, begin_ms=self._looks * STEP_MS)


ASKED = [call.ask(), call.learn(600_000)]


@pytest.mark.parametrize(
    ("ends", "steps", "lag_ms", "wanted"),
    [
        pytest.param((10, 20, 30), [], None, {P: 5}, id="it came before the first poll"),
        pytest.param((10, 20, 30), ASKED, 600_000, {}, id="it is asked for once"),
        pytest.param((10, 20, 30), [*ASKED, call.look(40)], 600_000 + STEP_MS, {}, id="the next poll"),
        # That may be as old as the other, so it says little of how old the next one is.
        pytest.param(
            (10,),
            [*ASKED, call.look(11), call.ask(), call.learn(4_200_000)],
            4_200_000,
            {},
            id="it is asked for again if nobody saw the newest record come",
        ),
        pytest.param(
            (10, 20, 30), [*ASKED, call.commit(7)], 600_000, {P: 7}, id="it stands until the next poll"
        ),
        pytest.param((10, 20, 30), [*ASKED, call.commit(3)], None, {P: 3}, id="an older record"),
        pytest.param(
            (10, 20, 30),
            [call.ask(), call.commit(6), call.look(40), call.learn(600_000)],
            600_000 + STEP_MS,
            {P: 6},
            id="an answer counts for the poll that requested it",
        ),
        pytest.param(
            (10, 20, 30),
            [call.ask(), call.commit(3), call.learn(600_000)],
            None,
            {P: 3},
            id="an answer about an offset that was set back is dropped",
        ),
        pytest.param((10, 20, 30), [call.ask(), call.learn(None)], None, {P: 5}, id="no usable timestamps"),
        pytest.param(
            (10, 20, 30),
            [call.ask(), call.learn(None), call.commit(20)],
            0,
            {},
            id="a record since the first poll",
        ),
    ],
)
def test_time_of_a_record_older_than_the_first_poll_is_looked_up(
    ends: tuple[int, ...], steps: list[Any], lag_ms: int | None, wanted: dict[Partition, int]
) -> None:
    asking = Asking(*ends)
    for name, arguments, _ in steps:
        getattr(asking, name)(*arguments)
    assert (lag(asking.book).ms, asking.book.wanted_times()) == (lag_ms, wanted)


def test_record_time_lookups_are_bounded_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_book, "MAX_LOOK_UPS", 2)
    book, places = LagBook(), [("orders", number) for number in range(5)]
    for where in places:
        commit(book, 5, where=where)
    asked: set[Partition] = set()
    for number in range(3):
        book.add_bounds({where: LogBounds(0, 10 + number) for where in places}, number * STEP_MS)
        wanted = book.wanted_times()
        assert len(wanted) <= 2 < MAX_LOOK_UPS
        asked |= wanted.keys()
        book.add_times(wanted, {})
    assert asked == {*places}


@given(st.lists(st.integers(1, 20_000), min_size=2, max_size=60), st.integers(1, STEP_MS - 1), st.data())
def test_error_of_lag_in_time_is_below_one_poll_interval(
    pauses_ms: list[int], first_look_ms: int, data: st.DataObject
) -> None:
    """Records that come at any times, and polls an interval apart, the first before the first record."""
    came_ms = [STEP_MS]
    for pause_ms in pauses_ms:
        came_ms.append(came_ms[-1] + pause_ms)
    committed = data.draw(st.integers(0, len(came_ms) - 1))
    now_ms = data.draw(st.integers(came_ms[committed] + STEP_MS, came_ms[-1] + 2 * STEP_MS))
    book = book_at(committed)
    for at_ms in range(first_look_ms, now_ms + 1, STEP_MS):
        book.add_bounds({P: LogBounds(0, bisect_right(came_ms, at_ms))}, at_ms)
    found, last_look_ms = lag(book), at_ms
    newest_ms = came_ms[bisect_right(came_ms, last_look_ms) - 1]
    wanted = book.wanted_times()
    if wanted:  # between polls that were thinned out
        book.add_times(wanted, {P: newest_ms - came_ms[committed]})
        found = lag(book)
    assert found.ms is not None
    assert abs(found.ms - (newest_ms - came_ms[committed])) < STEP_MS


@given(st.lists(st.integers(1, 600_000), min_size=2, max_size=40), st.data())
def test_lag_in_time_without_a_lookup_errs_by_a_third_at_most(
    pauses_ms: list[int], data: st.DataObject
) -> None:
    """Of records that come at any times, also many at once. The consumer has just committed the offset."""
    came_ms = [STEP_MS, *([STEP_MS + 1] * 50)]
    for pause_ms in pauses_ms:
        came_ms += data.draw(st.integers(1, 5)) * [came_ms[-1] + pause_ms]
    offset = data.draw(st.integers(0, len(came_ms) - 1))
    book = book_at(0)
    polled_ms = range(0, came_ms[-1] + 2 * STEP_MS, STEP_MS)
    for at_ms in polled_ms:
        book.add_bounds({P: LogBounds(0, bisect_right(came_ms, at_ms))}, at_ms)
    commit(book, offset)
    found, age_ms = lag(book).ms, polled_ms[-1] - came_ms[offset]
    assert found is not None
    assert abs(found - (came_ms[-1] - came_ms[offset])) < age_ms / COARSENESS + 2 * STEP_MS


growth = st.lists(st.sampled_from((0, 0, 1, 3, 100)), min_size=1, max_size=600)


def history_of(*ends: tuple[int, int]) -> LogHistory:
    """Return the history of polls at these times with these ends."""
    logs = LogHistory()
    for at_ms, end in ends:
        logs.add({P: LogBounds(0, end)}, at_ms)
    return logs


def test_log_end_growth_is_dated_to_the_first_surely_later_poll() -> None:
    logs = history_of((0, 10), (1_000, 10), (2_000, 12), (3_000, 12), (4_000, 13))
    since_ms = (-1, 1_000, 1_001, 3_000, 3_001)
    assert [logs.grew_ms(P, ms) for ms in since_ms] == [2_000, 2_000, 4_000, 4_000, None]
    assert logs.grew_ms(("other", 0), 0) is None


def test_recreated_topic_starts_a_new_lag_history() -> None:
    logs = history_of((0, 10), (1_000, 20), (2_000, 5))
    assert (logs.bounds(P), logs.arrival(P, 4)) == (LogBounds(0, 5), (None, (4, 2_000)))


def test_lag_history_of_a_missing_partition_is_dropped_after_a_while() -> None:
    logs = history_of((0, 10))
    logs.add({}, FORGET_MS - 1)
    assert logs.bounds(P) is not None
    logs.add({}, FORGET_MS)
    assert logs.bounds(P) is None


@examples(200)
@given(growth, st.data())
def test_record_arrival_is_known_to_within_a_third_of_its_age(grown: list[int], data: st.DataObject) -> None:
    ends = [*accumulate(grown, initial=1)]
    logs = history_of(*((number * STEP_MS, end) for number, end in enumerate(ends)))
    offset = data.draw(st.integers(0, ends[-1] + 1))
    came = bisect_right(ends, offset)  # the number of the first look with the record
    found = logs.arrival(P, offset)
    assert (found is None) == (came == len(ends))
    if found is not None:
        before, last = found
        assert last.ms >= came * STEP_MS
        assert (before is None) == (offset < ends[0])
        if before is not None:
            assert before.ms <= (came - 1) * STEP_MS
            age_ms = (len(ends) - came) * STEP_MS
            assert last.ms - before.ms - STEP_MS <= age_ms / COARSENESS


def test_lag_samples_of_a_week_are_bounded() -> None:
    samples = lag_book._Samples()
    for number in range(7 * 24 * 3600 // 5):
        samples.add(number, number * STEP_MS)
        assert len(samples.ends) <= MAX_SAMPLES
    assert samples.ends[0] == 0


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
    commit(book, 4)
    commit(book, 0, group_id="late")
    commit(book, 7, where=("gone", 0))
    return book


def test_each_poll_sends_at_most_one_lookup_request_until_the_search_ends(book: LagBook) -> None:
    admin, poller = Admin(), LagPoller(book)
    numbers = []
    for _ in range(60):
        poller.poll(admin)
        numbers.append(len(admin.asked))
    assert {later - number for number, later in pairwise(numbers)} == {0, 1}
    assert numbers[0] == 3 and numbers[-1] == numbers[-2]


def test_lag_in_time_is_unknown_until_brokers_support_time_lookups(
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
        records = [TimedRecord(offset, timestamp_ms) for offset, timestamp_ms in log]
        if at_ms == NEWEST:
            return max(records, key=lambda record: (record.ms, -record.offset), default=None)
        return next((record for record in records if record.ms >= at_ms), None)


def log_of(*timestamps: int) -> list[tuple[int, int]]:
    return [*enumerate(timestamps)]


def test_each_search_round_is_one_request_for_all_partitions() -> None:
    logs = {("t", n): log_of(*(at * (n + 1) for at in range(1_000))) for n in range(50)}
    brokers = Brokers(logs)
    timestamp_lags(brokers, dict.fromkeys(logs, 500))
    assert len(brokers.asked[0]) == len(brokers.asked[1]) == 50
    assert len(brokers.asked) < 30


def test_a_partition_without_records_or_without_usable_timestamps_is_left_out() -> None:
    assert timestamp_lags(Brokers({P: [], ("orders", 1): log_of(-1, -1)}), {P: 0, ("orders", 1): 1}) == {}
    assert timestamp_lags(Brokers({}), {}) == {}


def true_lag(log: list[tuple[int, int]], offset: int) -> int:
    """By the greatest timestamp up to the offset."""
    upto = max(bisect_right(log, (offset, 2**63)), 1)
    return max(ms for _, ms in log) - max(ms for _, ms in log[:upto])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, WEEK_MS)), min_size=1, max_size=60), st.data())
def test_timestamp_lag_is_precise_despite_unordered_timestamps(
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
