"""All groups of `__consumer_offsets`, read backwards in any slices."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why import stored_groups
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.stored_groups import GroupNews, LogPart, StoredGroups
from kafka_why.stored_log import LogWalk, OpenTransactions
from kafka_why.topic_reader import NamesById
from streaming.query.log_order import LogRow
from tests.harness.observed_log import REAL, REAL_OF_OTHERS, converted_rows, real_rows
from tests.unit.kafka_why import test_why_offsets_topic as offsets_topic
from tests.unit.kafka_why.test_why_offsets_topic import batch, requests

ALL_MS, NOTHING_MS = 0, 2**62


def log(path: Path) -> list[LogRow]:
    """Return the rows of all groups as those of one partition."""
    return [row._replace(offset=number) for number, row in enumerate(real_rows(path))]


def part(data: Sequence[bytes], first: int, end: int) -> LogPart:
    found = LogPart(first, end, OpenTransactions())
    for one in LogWalk(first, end, b"").batches(b"".join(data)):
        found.take(one)
    return found


class Known:
    """What a reader of news has."""

    def __init__(self) -> None:
        self.groups = StoredGroups(NamesById(dict))
        self.entries: dict[str, list[HistoryEntry]] = {}
        self.views: dict[str, GroupSnapshot | None] = {}

    def take(self, news: GroupNews) -> None:
        if news.anew:
            self.entries[news.group_id] = []
        self.entries.setdefault(news.group_id, []).extend(news.entries)
        self.views[news.group_id] = news.view

    def state(self) -> dict[str, object]:
        """Return the state of the groups, without what only earlier records show."""
        return {g: v and (v.state, v.generation, v.members) for g, v in self.views.items()}


def read(path: Path, cuts: Sequence[int], window_ms: int) -> Known:
    """Read what is after the last cut, and then the slices between the cuts, the newest first."""
    data = [batch(rows) for rows in requests(log(path))]
    number, known = len(log(path)), Known()
    bounds = sorted({0, *(cut % (number + 1) for cut in cuts)})
    for news in known.groups.append(0, part(data, bounds[-1], number)):
        known.take(news)
    for first, end in reversed([*pairwise(bounds)]):
        for news in known.groups.prepend(0, part(data, first, end), window_ms):
            known.take(news)
    return known


@pytest.mark.parametrize("path", [REAL, REAL_OF_OTHERS], ids=["consumers", "share and streams"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=5))
def test_history_read_backwards_equals_that_read_forwards(path: Path, cuts: list[int]) -> None:
    forwards, backwards = read(path, [], ALL_MS), read(path, cuts, ALL_MS)
    assert {g: e for g, e in backwards.entries.items() if e} == forwards.entries
    assert backwards.views == forwards.views


@pytest.mark.parametrize("path", [REAL, REAL_OF_OTHERS], ids=["consumers", "share and streams"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=5))
def test_last_records_before_the_window_are_enough_for_the_state_now(path: Path, cuts: list[int]) -> None:
    assert read(path, cuts, NOTHING_MS).state() == read(path, [], ALL_MS).state()


def test_groups_over_the_limit_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_groups, "MAX_GROUPS", 1)
    known = read(REAL, [], ALL_MS)
    assert (len(known.views), known.groups.left_out) == (1, True)


def test_converted_group_is_not_shown_as_new_by_page_or_why() -> None:
    rows, known = converted_rows(), Known()
    data = [batch(some) for some in requests(rows)]
    for news in known.groups.append(0, part(data, 0, len(rows))):
        known.take(news)
    of_why, _ = offsets_topic.read("consumer", [b"".join(data)], len(rows))
    for entries in (known.entries["consumer"], of_why.entries):
        assert {EntryType.MEMBER_ADDED, EntryType.GROUP_EPOCH_BUMPED} <= {entry.type for entry in entries}
        added = [entry.client_id for entry in entries if entry.type is EntryType.MEMBER_ADDED]
        assert (entries[0].seq > 1, added) == (True, ["k2"]), "k1 was a member before"
