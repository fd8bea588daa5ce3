"""The cached analyses of a page: when a group's history is read, and when a report is rebuilt."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.page import fleet as fleet_module
from kafka_why.page import histories as histories_module
from kafka_why.page.fleet import WINDOW_MS, Fleet
from kafka_why.page.histories import Analyses, CachedAnalysis, Histories
from kafka_why.page.sources import HeldVersion
from kafka_why.why.client_telemetry import Telemetry
from kafka_why.why.history import History, HistoryUnavailable
from kafka_why.why.report import HistoryAnalysis, analyze
from tests.e2e.harness import wait_until
from tests.unit.kafka_why.page_facts import LAYOUT, played, take_entries
from tests.unit.kafka_why.why_story import END_MS, STORY

SINCE_MS = END_MS - WINDOW_MS


@dataclass
class Topic:
    """A history on the topic. `reads` are the times since which it was read, one after the other; each waits
    for `is_there`.
    """

    entries: list[HistoryEntry]
    reads: list[int] = field(default_factory=list)
    is_there: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def read(self, group_id: str, since_ms: int) -> History:
        assert group_id == "g"
        self.reads.append(since_ms)
        assert self.is_there.wait(60)
        if self.error is not None:
            raise self.error
        return History([*self.entries], frozenset(), from_start=True, records_read=len(self.entries))


class Room:
    """Analyses over a topic and a fleet that has read it."""

    def __init__(self) -> None:
        self.entries = played(*STORY)
        self.topic = Topic(self.entries)
        self.topic.is_there.set()
        self.fleet = Fleet(LAYOUT)
        self.analyses = Analyses(Histories(self.topic.read, self.fleet), self.fleet)

    def analysis(
        self,
        limits_ms: tuple[int, int] = (SINCE_MS, END_MS),
        now_ms: int = END_MS,
        *,
        is_patient: bool = True,
    ) -> CachedAnalysis:
        return self.analyses.analysis("g", limits_ms, now_ms, is_patient=is_patient)

    def version(self) -> int:
        return self.fleet.group_version("g") or 0

    def wait_for_more(self, version: int) -> None:
        wait_until(lambda: self.version() > version, "more of the group")


@pytest.fixture
def room() -> Iterator[Room]:
    it = Room()
    yield it
    it.topic.is_there.set()
    it.analyses.close()


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of entries of each analysis that was built."""
    seen: list[int] = []

    def counted(
        history: list[HistoryEntry],
        *,
        from_start: bool,
        unread: frozenset[tuple[str, int]],
        telemetry: Telemetry,
    ) -> HistoryAnalysis:
        seen.append(len(history))
        return analyze(history, unread=unread, from_start=from_start, telemetry=telemetry)

    monkeypatch.setattr(histories_module, "analyze", counted)
    return seen


def numbers(made: CachedAnalysis) -> int:
    assert made.analysis is not None
    return len(made.analysis.rebalances)


def test_timeline_drag_neither_reads_topics_nor_rebuilds_the_report(room: Room, followed: list[int]) -> None:
    first = room.analysis()
    for from_ms in range(SINCE_MS, END_MS, WINDOW_MS // 5):
        assert room.analysis((from_ms, END_MS - 1)) is first
    assert (len(followed), room.topic.reads) == (1, [SINCE_MS])


def test_live_page_has_the_newest_entry_and_reads_the_topic_once(room: Room) -> None:
    room.topic.entries = room.entries[:-1]
    take_entries(room.fleet, room.entries[:-1], END_MS)
    before = room.analysis()
    take_entries(room.fleet, room.entries[-1:], END_MS)
    version = room.version()
    # A request may come too soon after the one before, or not wait for the analysis until it is ready.
    while (after := room.analysis((SINCE_MS, END_MS + 5), END_MS + 5)) is before:
        room.wait_for_more(version)
        version = room.version()
    assert after.analysis is not None and after.analysis.last == room.entries[-1]
    assert room.topic.reads == [SINCE_MS]


def test_live_page_gets_a_new_version_only_once_the_entry_is_read(room: Room) -> None:
    """Nobody has to ask for a page before the entry is followed."""
    take_entries(room.fleet, room.entries, END_MS)
    first = room.analysis()
    held = HeldVersion()

    def told(now_s: float) -> int | None:
        return held.version(room.version(), lambda: room.analyses.has_newest("g", END_MS), now_s)

    before = told(0.0)
    assert before == room.version()
    newer = replace(room.entries[-1], seq=room.entries[-1].seq + 1)
    take_entries(room.fleet, [newer], END_MS)
    assert told(1.0) == before, "it is being followed"
    wait_until(lambda: told(2.0) != before, "the version with the entry")
    with_entry = room.analysis(is_patient=False)
    assert with_entry.entries_version == room.fleet.entries_version("g") > first.entries_version


def test_page_of_a_large_group_opens_with_recent_entries(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories_module, "MANY_ENTRIES", 5)
    room.topic.is_there.clear()
    take_entries(room.fleet, room.entries[-12:], END_MS)
    part = room.analysis(is_patient=False)
    assert not part.is_whole and part.since_ms == room.entries[-12].at_ms > SINCE_MS
    version = room.version()
    room.topic.is_there.set()
    room.wait_for_more(version)
    whole = room.analysis(is_patient=False)
    assert whole.is_whole and numbers(whole) == 4 > numbers(part)
    assert room.topic.reads == [SINCE_MS]


def test_page_refuses_an_unknown_group_to_every_reader(room: Room) -> None:
    room.topic.error = HistoryUnavailable("no such group")
    for is_patient in (True, False):
        with pytest.raises(HistoryUnavailable):
            room.analysis(is_patient=is_patient)


def test_page_reads_a_history_with_evicted_entries_again(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_ENTRIES", 3)
    monkeypatch.setattr(histories_module, "MAX_ENTRIES", 3)
    histories = Histories(room.topic.read, room.fleet)
    room.topic.entries = room.entries[:10]
    take_entries(room.fleet, room.entries[:10], END_MS)
    histories.read("g", SINCE_MS, END_MS)
    take_entries(room.fleet, room.entries[10:12], END_MS)
    assert histories.read("g", SINCE_MS, END_MS).history.entries == room.entries[:12]
    assert len(room.topic.reads) == 1
    room.topic.entries = room.entries
    take_entries(room.fleet, room.entries[12:], END_MS)
    assert histories.read("g", SINCE_MS, END_MS).history.entries == room.entries
    assert len(room.topic.reads) == 2


def test_cached_entries_of_all_histories_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, read = played(*STORY), list[str]()
    monkeypatch.setattr(histories_module, "MAX_CACHED_ENTRIES", 2 * len(entries))

    def reader(group_id: str, _: int) -> History:
        read.append(group_id)
        return History([*entries], frozenset(), from_start=True, records_read=len(entries))

    histories = Histories(reader, Fleet(LAYOUT))
    for group_id in ("a", "b", "a", "c", "a", "b"):
        histories.read(group_id, SINCE_MS, END_MS)
    assert read == ["a", "b", "c", "b"]
