"""Reports of pending transactions: early, and worth no more than the topic."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.service.transactions.follower import PENDING_MAX_S, EarlyPending
from streaming.service.transactions.pending import Decision, PendingTransactions
from tests.unit.streaming.test_transactions_pending import TOPIC, entry, marker, read


def early_pending() -> EarlyPending:
    return EarlyPending(PendingTransactions(TOPIC, Counter()))


def test_reported_entry_is_decided_like_one_of_the_topic() -> None:
    early = early_pending()
    early.apply(*entry(40), now_s=0.0)
    read(early.pending, marker(40))
    assert early.pending.due(0.0) == [Decision("g", 0, 40, marker(40))]


def test_reported_entry_without_a_tombstone_is_left_to_the_topic() -> None:
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
def test_lost_and_repeated_reports_decide_nothing_that_the_topic_would_not(
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
def test_malformed_report_is_refused_and_changes_nothing(value: bytes) -> None:
    early = early_pending()
    early.apply(*entry(40), now_s=0.0)
    with pytest.raises((ValueError, UnicodeDecodeError)):
        early.apply(b"rubbish", value, now_s=0.0)
    assert early.pending.positions() == {0: 40}
    early.forget_old(PENDING_MAX_S)
    assert not early.pending
