"""The decisions of the follower of transactions from the two topics: rows TW1 to TW7, without a broker."""

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import KafkaError

from kafka_why.contract.codec import PendingTransaction, encode, transaction_key
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader
from streaming.service.transactions import follower
from streaming.service.transactions import pending as transactions_pending
from streaming.service.transactions.follower import PENDING_MAX_S, ReportedPending, partitions_of_all
from streaming.service.transactions.pending import (
    OVERDUE_MS,
    Decision,
    Fetched,
    Marker,
    PendingTransactions,
    marker_wait_ms,
)

TOPIC = UUID(int=1)
T0 = 1_700_000_000_000
TV1, TV2 = 1, 2


def entry(
    position: int,
    *,
    request: str = "requests-0-900",
    group: str = "g",
    producer: int = 4001,
    epoch: int = 7,
    version: int = TV1,
    topic_id: UUID | None = TOPIC,
    partition: int = 0,
    partitions: int = 1,
) -> tuple[bytes, bytes]:
    pending = PendingTransaction(
        group_id=group,
        incarnation="i",
        transactional_id="t",
        producer_id=producer,
        producer_epoch=epoch,
        txn_version=version,
        txn_partition=partition,
        txn_position=position,
        txn_topic_id=topic_id,
        request=request,
        at_ms=T0,
        partitions=partitions,
    )
    return transaction_key(group, producer, request), encode(pending)


def marker(offset: int, epoch: int = 7, *, committed: bool = True, producer: int = 4001) -> Marker:
    return Marker(offset, producer, epoch, committed)


def log_of(*markers: Marker, start: int = 0, end: int | None = None) -> Fetched:
    """Return a log of markers, read to its end."""
    last = max((m.offset for m in markers), default=start - 1) + 1
    return Fetched(list(markers), max(last, start), start, last if end is None else end)


def read(pending: PendingTransactions, *markers: Marker, start: int = 0) -> None:
    """Read each partition from its position to the end of this log."""
    for number, position in pending.positions().items():
        found = [m for m in markers if m.offset >= position]
        log = log_of(*markers, start=start)
        pending.add_fetched(number, Fetched(found, max(log.next_offset, position), log.start, log.end))


def outcomes(pending: PendingTransactions, now_s: float = 0.0) -> list[tuple[int, int, bool]]:
    """(first position, marker's offset, committed) of what is due."""
    return [(d.first_position, d.marker.offset, d.marker.committed) for d in pending.due(now_s)]


def opened(*entries: tuple[bytes, bytes], decided: Counter[str] | None = None) -> PendingTransactions:
    pending = PendingTransactions(TOPIC, Counter() if decided is None else decided)
    for key, value in entries:
        pending.apply(key, value)
    return pending


@pytest.mark.parametrize(
    ("entries", "positions"),
    [
        ([entry(50, request="a"), entry(40, request="b"), entry(45, request="c")], {0: 40}),
        ([], {}),
        ([entry(40, request="a"), entry(7, request="b", partition=3)], {0: 40, 3: 7}),
    ],
    ids=["the least position", "nothing", "each partition"],
)
def test_tw1_markers_are_read_from_the_lowest_pending_position(
    entries: list[tuple[bytes, bytes]], positions: dict[int, int]
) -> None:
    pending = opened(*entries)
    assert (pending.positions(), pending.due(0.0), bool(pending)) == (positions, [], bool(entries))


@pytest.mark.parametrize(
    ("version", "markers", "decided"),
    [
        pytest.param(TV1, [marker(40)], [(40, 40, True)], id="5.2 commit"),
        pytest.param(TV2, [marker(40, 8)], [(40, 40, True)], id="5.1 commit"),
        pytest.param(TV1, [marker(40, committed=False)], [(40, 40, False)], id="abort"),
        pytest.param(TV1, [marker(40, 8, committed=False)], [(40, 40, False)], id="5.6 fenced"),
        pytest.param(
            TV2, [marker(40, 8, committed=False)], [(40, 40, False)], id="5.6 fenced, second protocol"
        ),
        pytest.param(TV1, [marker(39), marker(41)], [(40, 41, True)], id="an earlier transaction's is below"),
        pytest.param(TV2, [marker(40, 7), marker(41, 8)], [(40, 41, True)], id="5.13 an echo is ignored"),
        pytest.param(TV1, [marker(40, 6), marker(41)], [(40, 41, True)], id="an older epoch is ignored"),
        pytest.param(
            TV1, [marker(40), marker(41, committed=False)], [(40, 40, True)], id="the first one counts"
        ),
        pytest.param(TV1, [marker(40, producer=9)], [], id="another producer's"),
        pytest.param(TV1, [], [], id="none yet"),
    ],
)
def test_tw3_first_matching_marker_decides_the_transactions_outcome(
    version: int, markers: Sequence[Marker], decided: list[tuple[int, int, bool]]
) -> None:
    pending = opened(entry(40, version=version))
    read(pending, *markers)
    assert outcomes(pending) == decided


def test_tw3_transaction_outcome_is_sent_again_until_the_tombstone() -> None:
    key, value = entry(40)
    pending = opened((key, value))
    read(pending, marker(40))
    asked_at_s = [at_s for at_s in range(300) if pending.due(float(at_s))]
    assert asked_at_s == [0, 5, 15, 35, 75, 135, 195, 255]
    pending.apply(key, None)
    assert not pending
    assert pending.due(1e9) == []


def test_tw3_pending_offsets_of_one_transaction_are_settled_by_one_request() -> None:
    """5.4: a repeated TxnOffsetCommit. 5.5: the next transaction of a producer is another, with its epoch."""
    pending = opened(entry(41, request="a"), entry(40, request="b"), entry(40, request="c", group="other"))
    read(pending, marker(42))
    assert pending.due(0.0) == [Decision("g", 0, 40, marker(42)), Decision("other", 0, 40, marker(42))]
    pending = opened(entry(40, request="a"), entry(41, request="b"))
    read(pending, marker(40), marker(41, committed=False))
    assert outcomes(pending) == [(40, 40, True), (41, 41, False)]


@pytest.mark.parametrize(("first", "position"), [(30, 42), (41, 40)], ids=["kept", "not kept"])
def test_tw4_marker_for_a_late_entry_is_found_in_cache_or_log(first: int, position: int) -> None:
    """5.11: a request that was written late."""
    pending = opened(entry(first, producer=1, request="open"))
    read(pending, marker(40, committed=False), marker(41))
    pending.apply(*entry(40, request="late"))
    assert pending.positions() == {0: position}
    read(pending, marker(40, committed=False), marker(41))
    assert outcomes(pending) == [(40, 40, False)]


def test_tw5_number_of_cached_markers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions_pending, "MARKERS_MAX", 10)
    pending = opened(entry(0, producer=1, request="open"))
    markers = [marker(offset, producer=2) for offset in range(100)]
    read(pending, *markers)
    pending.apply(*entry(95, producer=2, request="kept"))
    assert (pending.positions(), outcomes(pending)) == ({0: 100}, [(95, 95, True)])
    pending.apply(*entry(50, producer=2, request="older"))
    assert pending.positions() == {0: 50}


def test_tw4_pending_entry_is_compared_only_with_markers_after_its_position() -> None:
    """Nearly all entries are new, and many markers are kept."""
    compared: list[int] = []

    class Watched(Marker):
        @property
        def producer_id(self) -> int:
            compared.append(self.offset)
            return self[1]

    pending = opened(entry(0, producer=1, request="open"))
    read(pending, *(Watched(offset, 2, 7, True) for offset in range(1_000)))
    compared.clear()
    pending.apply(*entry(997, producer=3, request="new"))
    assert compared == [997, 998, 999]
    pending.apply(*entry(998, producer=2, request="late"))
    assert outcomes(pending) == [(998, 998, True)]


def test_tw6_alarm_names_one_overdue_transaction_and_counts_all() -> None:
    pending = opened(entry(40, request="a"), entry(40, request="b"))
    assert pending.summary(T0 + OVERDUE_MS).alarm is None
    alarm = pending.summary(T0 + OVERDUE_MS + 1).alarm or ""
    assert alarm.endswith("(2 such transactions)")
    assert all(named in alarm for named in ("'t'", "4001", "'g'", "16 minutes", "abort-pending"))


def test_tw6_transaction_with_a_known_outcome_is_not_reported_for_abort() -> None:
    """Its records are committed, so without its offsets its input would be processed twice."""
    pending = opened(entry(40))
    read(pending, marker(40))
    assert pending.due(0.0)
    assert pending.summary(T0 + OVERDUE_MS + 1).alarm is None  # it was found just now
    for at_s in range(1, 100):
        pending.due(float(at_s))
    assert pending.summary(T0 + OVERDUE_MS).alarm is None
    alarm = pending.summary(T0 + OVERDUE_MS + 1).alarm or ""
    assert "'t' of producer 4001 in group 'g' ended with commit, but the group has not taken it" in alarm
    assert "abort-pending" not in alarm


def test_tw7_entry_of_a_recreated_marker_topic_is_never_settled() -> None:
    """The topic was deleted and made again: its positions mean nothing there."""
    pending = opened(entry(40, topic_id=UUID(int=2)), entry(1, request="new", producer=2))
    read(pending, marker(40), marker(41, producer=2))
    assert outcomes(pending) == [(1, 41, True)]
    assert "another topic" in (pending.summary(T0).alarm or "")


def test_tw7_entry_whose_marker_may_be_deleted_stays_pending() -> None:
    """The marker may be gone, and the next one may be a later transaction's."""
    pending = opened(entry(40), entry(60, request="later", producer=2))
    pending.add_fetched(0, log_of(marker(50), marker(61, producer=2), start=50))
    assert outcomes(pending) == [(60, 61, True)]
    assert pending.positions() == {}
    assert "was deleted" in (pending.summary(T0).alarm or "")


def test_tw7_entry_outside_the_marker_log_stays_pending() -> None:
    """OFFSET_OUT_OF_RANGE: below its start, or above its end."""
    pending = opened(entry(40))
    pending.add_fetched(0, Fetched([], 40, 0, 10, is_out_of_range=True))
    assert pending.positions() == {0: 40}
    pending.add_fetched(0, Fetched([], 40, 50, 60, is_out_of_range=True))
    assert pending.summary(T0).alarm is not None


def early_pending() -> ReportedPending:
    return ReportedPending(PendingTransactions(TOPIC, Counter()))


def test_early_entry_without_a_tombstone_is_dropped_after_its_time() -> None:
    early = early_pending()
    early.apply(*entry(40, request="a"), now_s=0.0)
    early.apply(*entry(41, request="b"), now_s=10.0)
    early.apply(*entry(40, request="a"), now_s=20.0)  # a repetition is no news
    early.forget_old(PENDING_MAX_S - 0.1)
    assert early.pending.positions() == {0: 40}
    early.forget_old(PENDING_MAX_S)
    read(early.pending, marker(41))
    assert early.pending.due(PENDING_MAX_S) == [Decision("g", 0, 41, marker(41))]
    early.forget_old(PENDING_MAX_S + 10.0)
    assert not early.pending


MARKERS = [marker(offset, committed=offset % 2 == 0) for offset in range(50, 60)]


@given(
    st.lists(
        st.tuples(st.integers(40, 59), st.sampled_from("ab")).map(
            lambda at: entry(at[0], request=f"{at[0]}", group=at[1])
        ),
        max_size=20,
    ),
    st.data(),
)
def test_early_reports_settle_only_what_the_topic_would_settle(
    entries: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    """For each group and marker the topic's request reaches at least as far back."""
    topic = PendingTransactions(TOPIC, Counter())
    for key, value in entries:
        topic.apply(key, value)
    read(topic, *MARKERS)
    early = early_pending()
    for key, value in entries:
        for _ in range(data.draw(st.integers(0, 2))):
            early.apply(key, value, now_s=0.0)
        read(early.pending, *MARKERS[: data.draw(st.integers(0, len(MARKERS)))])
    read(early.pending, *MARKERS)
    decided = {(d.group_id, d.marker): d.first_position for d in topic.due(0.0)}
    for decision in early.pending.due(0.0):
        assert decision.first_position >= decided[decision.group_id, decision.marker]


@pytest.mark.parametrize("value", [b"[]", b"", b"\xff"])
def test_malformed_early_report_is_refused_and_changes_nothing(value: bytes) -> None:
    early = early_pending()
    early.apply(*entry(40), now_s=0.0)
    with pytest.raises((ValueError, UnicodeDecodeError)):
        early.apply(b"rubbish", value, now_s=0.0)
    assert early.pending.positions() == {0: 40}
    early.forget_old(PENDING_MAX_S)
    assert not early.pending


LAYOUT = TopicLayout.named(request_partitions=3)


class OfOneBroker(TopicReader):
    """A reader whose broker knows the first partitions of each topic."""

    def __init__(self, known: int) -> None:
        self._known = known

    def partitions_of(self, *topics: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in topics for number in range(self._known)]


@pytest.mark.parametrize("known", [0, 2])
def test_tw1_incomplete_partition_list_of_a_broker_is_an_error(known: int) -> None:
    """Else the follower would take nothing to be pending, and offsets would stay pending for ever."""
    with pytest.raises(KafkaError, match=f"has {known} of 3 partitions"):
        partitions_of_all(OfOneBroker(known), LAYOUT)


def test_tw1_all_marker_partitions_are_read() -> None:
    expected = [TopicPartition(LAYOUT.transactions_topic, number) for number in range(3)]
    assert partitions_of_all(OfOneBroker(3), LAYOUT) == expected


OF_TOPIC = follower.MARKER_WAIT_MS, follower.LEAST_MARKER_WAIT_MS
OF_REPORTS = follower.REPORTED_WAIT_MS, follower.LEAST_REPORTED_WAIT_MS
"""A report that comes meanwhile waits for a fetch."""


@pytest.mark.parametrize(
    ("wait", "partitions", "wait_ms"),
    [
        *((OF_TOPIC, *case) for case in ((0, 100), (1, 100), (4, 25), (50, 10), (101, 10))),
        *((OF_REPORTS, *case) for case in ((0, 20), (1, 20), (4, 5), (21, 1))),
    ],
)
def test_tw2_marker_fetch_waits_for_new_records(wait: tuple[int, int], partitions: int, wait_ms: int) -> None:
    assert marker_wait_ms(partitions, *wait) == wait_ms
