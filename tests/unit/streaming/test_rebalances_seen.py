"""Rebalances that are known, looked at once a second: what is said of them is true, or nothing is said."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.history import HistoryReader
from state.kafka.history import EntryType, HistoryEntry
from tests.harness.observed_log import G
from tests.harness.polled_group import INTERVAL_MS, PolledGroup, Truth, random_truth

# What a look, its record and the reading of two clocks take here.
DELAYS_MS = 100


@pytest.mark.parametrize("fails", [0.0, 0.2])
@given(seed=st.integers(0, 100_000), lag_ms=st.sampled_from((0, 300, 5_000, 60_000)))
def test_nothing_false_is_said(seed: int, lag_ms: int, fails: float) -> None:
    """The beginning lies where it is said to lie, also where looks fail and the log is read late."""
    random = Random(seed)
    truth = random_truth(random, 8)
    watched = PolledGroup(random, truth, lag_ms, fails=fails).play()
    found = by_generation(watched.history)
    for now in truth:
        assert_true(now, found[now.number])
    assert set(watched.groups[G].member_ids()) == {f"{m}-1" for m in truth[-1].members(truth[-1].formed_ms)}
    reader = HistoryReader(from_start=True)
    assert all(reader.is_new(entry) for entry in watched.history)
    assert reader.gaps == {}
    for before, after in pairwise(watched.history):
        assert (before.to_state, before.at_ms <= after.at_ms) == (after.from_state, True)


@given(seed=st.integers(0, 100_000), skew_ms=st.sampled_from((-400, -50, 50, 400)))
def test_clocks_that_differ_move_a_beginning_by_no_more(seed: int, skew_ms: int) -> None:
    random = Random(seed)
    truth = random_truth(random, 8)
    found = by_generation(PolledGroup(random, truth, skew_ms=skew_ms).play().history)
    for now in truth:
        assert_true(now, found[now.number], abs(skew_ms))


def assert_true(now: Truth, entries: list[HistoryEntry], skew_ms: int = 0) -> None:
    (opening,) = [entry for entry in entries if entry.type is EntryType.PREPARING_REBALANCE]
    if opening.within_ms is None:
        assert opening.at_ms == now.formed_ms
    else:
        latest_ms, slack_ms = opening.at_ms, DELAYS_MS + skew_ms
        assert latest_ms - opening.within_ms - slack_ms <= now.began_ms <= latest_ms + slack_ms
    came = {name for _, name, is_new in now.changes if is_new}
    went = {name for _, name, is_new in now.changes if not is_new}
    said_came = {e.client_id for e in entries if e.type is EntryType.MEMBER_ADDED}
    said_went = {e.client_id for e in entries if e.type is EntryType.MEMBER_REMOVED}
    assert (said_came, said_went) == (came, went)
    for entry in entries:
        if entry.rule == "OB32":
            (left_ms,) = [at for at, name, is_new in now.changes if name == entry.client_id and not is_new]
            assert left_ms > now.began_ms, "a member that began the rebalance by leaving was not there later"


def by_generation(history: list[HistoryEntry]) -> dict[int, list[HistoryEntry]]:
    """The entries of the rebalance that made each generation."""
    found: dict[int, list[HistoryEntry]] = {}
    entries: list[HistoryEntry] = []
    for entry in history[1:]:
        entries.append(entry)
        if entry.type is EntryType.STABLE:
            found[entry.generation], entries = entries, []
    return found


def test_long_rebalances_are_found_and_short_ones_may_be_missed() -> None:
    random = Random(1)
    long = seen = 0
    for _ in range(40):
        truth = random_truth(random, 8)
        found = by_generation(PolledGroup(random, truth).play().history)
        for before, now in pairwise(truth):
            (opening,) = [e for e in found[now.number] if e.type is EntryType.PREPARING_REBALANCE]
            # One that follows another between two looks is found at the second look after it, at the latest.
            if now.formed_ms - before.stored_ms > 2 * INTERVAL_MS and now.formed_ms - now.began_ms > 2_500:
                long += 1
                seen += opening.within_ms is not None
    assert long > 50
    assert seen == long
