"""Properties of every log of observed groups, also of a real broker's."""

from itertools import pairwise
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.history_reader import HistoryReader
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.view import view_of
from tests.harness.observed_epochs import NAMES, Said
from tests.harness.observed_log import Watched, compact, random_life


@given(st.integers(0, 10_000), st.lists(st.integers(0, 200), max_size=6))
def test_batch_boundaries_do_not_change_the_history(seed: int, cuts: list[int]) -> None:
    """Between two batches a group is encoded and decoded, as in the state."""
    said = _lives(seed)
    whole, cut = Watched().take(said), Watched()
    edges = sorted({0, len(said), *(min(edge, len(said)) for edge in cuts)})
    for first, end in pairwise(edges):
        cut.take(said[first:end])
        cut.groups = {name: _stored(group) for name, group in cut.groups.items()}
    assert cut.history == whole.history
    assert cut.offsets == whole.offsets
    assert {n: _stored(g) for n, g in cut.groups.items()} == {n: _stored(g) for n, g in whole.groups.items()}


@given(st.integers(0, 10_000))
def test_history_numbers_have_no_gap_and_times_never_decrease(seed: int) -> None:
    watched = Watched().take(_lives(seed))
    reader = HistoryReader(from_start=True)
    assert all(reader.is_new(entry) for entry in watched.history)
    assert reader.gaps == {}
    last: dict[tuple[str, str], HistoryEntry] = {}
    for entry in watched.history:
        before = last.get((entry.group_id, entry.incarnation))
        if before is not None:
            assert entry.at_ms >= before.at_ms
            assert entry.from_state == before.to_state
        last[entry.group_id, entry.incarnation] = entry


@given(st.integers(0, 10_000))
def test_members_of_history_and_view_agree(seed: int) -> None:
    watched = Watched().take(_lives(seed))
    for group_id, group in watched.groups.items():
        members: set[str] = set()
        for entry in watched.of(group_id):
            assert entry.member_id is not None or entry.type is not EntryType.MEMBER_ADDED
            if entry.type is EntryType.MEMBER_ADDED:
                members.add(entry.member_id or "")
            elif entry.type is EntryType.MEMBER_REMOVED:
                members.remove(entry.member_id or "")
        assert members == set(group.member_ids())


def _lives(seed: int) -> list[Said]:
    """Two groups whose records are mixed."""
    random = Random(seed)
    lives = [list(random_life(random, name)) for name in ("g1", "g2")]
    return sorted((said for life in lives for said in life), key=lambda said: said.at_ms)


def _stored(group: ObservedGroup) -> ObservedGroup:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(group), type=ObservedGroup)


@given(st.integers(0, 10_000), st.integers(0, 400))
def test_compaction_of_older_records_changes_no_view(seed: int, cleaned: int) -> None:
    """Of the records up to a place only the latest of each key is kept, as after the log's cleaner."""
    said = _lives(seed)
    whole, compacted = Watched().take(said), Watched().take(compact(said, cleaned))
    assert {n: what_is(g) for n, g in compacted.groups.items()} == {
        n: what_is(g) for n, g in whole.groups.items()
    }


def what_is(group: ObservedGroup) -> GroupSnapshot:
    """Return the view of a group without what only its history knows."""
    return replace(
        view_of(group, NAMES),
        incarnation="",
        seq=0,
        state_timestamp_ms=0,
        last_rebalance_at_ms=None,
        last_rebalance_reason="",
    )
