"""What the page keeps of all groups: views, commits, entries of the last hour, all bounded."""

import msgspec
import pytest
from msgspec.structs import replace

from insight.lag.definitions import PartitionLag
from insight.page import fleet as fleet_module
from insight.page.fleet import WINDOW_MS, Fleet
from records.codec import offset_key
from tests.unit.insight.page_facts import LAYOUT, ends, played, take_commit, take_entries, take_view, view
from tests.unit.insight.why_story import BEGIN_MS, END_MS, STORY

P = ("orders", 0)


def entries_of(fleet: Fleet) -> int:
    facts = fleet.facts("g")
    assert facts is not None
    return len(facts.entries)


def test_a_group_is_there_with_its_view_and_ends_with_its_tombstone() -> None:
    fleet = Fleet(LAYOUT)
    take_view(fleet, view())
    facts = fleet.facts("g")
    assert facts is not None and facts.view == view()
    fleet.apply(LAYOUT.groups_topic, b"g", None, 0)
    facts = fleet.facts("g")
    assert facts is not None and facts.view is None


def test_a_group_of_which_nothing_is_left_is_forgotten() -> None:
    fleet = Fleet(LAYOUT)
    take_view(fleet, view())
    take_commit(fleet, "g", P, 5)
    fleet.apply(LAYOUT.groups_topic, b"g", None, 0)
    fleet.trim(0)
    assert fleet.group_ids() == ["g"]
    fleet.apply(LAYOUT.offsets_topic, offset_key("g", *P), None, 0)
    fleet.trim(0)
    assert (fleet.group_ids(), fleet.facts("g"), fleet.group_version("g")) == ([], None, None)


def test_the_lag_is_that_of_the_newest_commit() -> None:
    fleet = Fleet(LAYOUT)
    take_commit(fleet, "g", P, 5, at_ms=100)
    take_commit(fleet, "g", P, 7, at_ms=200)
    assert fleet.topics() == {"orders"}
    for at_ms, end in ((300, 7), (400, 10), (500, 11)):
        fleet.add_bounds(ends(orders=end), at_ms)
    facts = fleet.facts("g")
    assert facts is not None
    assert facts.lags == {P: PartitionLag(7, 200, 200, records=4, ms=100, grew_ms=400)}


def test_entries_are_kept_for_an_hour() -> None:
    fleet, story = Fleet(LAYOUT), played(*STORY)
    take_entries(fleet, story, END_MS)
    assert entries_of(fleet) == len(story)
    assert fleet.last_entry_ms == story[-1].at_ms
    fleet.trim(BEGIN_MS + WINDOW_MS)
    assert entries_of(fleet) == len(story)
    fleet.trim(BEGIN_MS + WINDOW_MS + 1)
    assert entries_of(fleet) == sum(entry.at_ms > BEGIN_MS for entry in story)
    fleet.trim(END_MS + WINDOW_MS + 1)
    assert fleet.group_ids() == []


def test_an_entry_older_than_an_hour_is_not_kept() -> None:
    fleet, story = Fleet(LAYOUT), played(*STORY)
    take_entries(fleet, story, story[-1].at_ms + WINDOW_MS + 1)
    assert fleet.group_ids() == []
    assert fleet.last_entry_ms == story[-1].at_ms


def test_an_entry_that_is_read_again_is_kept_once() -> None:
    fleet, story = Fleet(LAYOUT), played(*STORY)
    take_entries(fleet, story, END_MS)
    version = fleet.version
    take_entries(fleet, story, END_MS)
    assert (entries_of(fleet), fleet.version) == (len(story), version)
    fleet.trim(END_MS + WINDOW_MS + 1)
    take_entries(fleet, story, END_MS)
    assert entries_of(fleet) == len(story)


def test_entries_of_one_group_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_ENTRIES", 10)
    fleet, first = Fleet(LAYOUT), played(*STORY)[0]
    take_entries(fleet, [replace(first, seq=seq) for seq in range(1, 26)], END_MS)
    facts = fleet.facts("g")
    assert facts is not None and [entry.seq for entry in facts.entries] == list(range(16, 26))


def test_the_version_grows_with_each_change_of_a_group_and_of_the_fleet() -> None:
    fleet, story = Fleet(LAYOUT), played(*STORY)
    seen = [(fleet.version, 0, 0)]

    def has_grown(*, entries: bool) -> bool:
        facts = fleet.facts("g")
        assert facts is not None
        seen.append((fleet.version, facts.version, facts.entries_version))
        before, now = seen[-2:]
        return before[0] < now[0] and before[1] < now[1] and (before[2] < now[2]) == entries

    take_view(fleet, view())
    assert has_grown(entries=False)
    take_commit(fleet, "g", P, 5)
    assert has_grown(entries=False)
    take_entries(fleet, story, END_MS)
    assert has_grown(entries=True)
    fleet.trim(END_MS + WINDOW_MS + 1)
    assert has_grown(entries=True)


def test_a_record_that_cannot_be_read_is_refused_and_changes_nothing() -> None:
    fleet = Fleet(LAYOUT)
    for topic in (LAYOUT.groups_topic, LAYOUT.offsets_topic, LAYOUT.events_topic):
        with pytest.raises(msgspec.DecodeError):
            fleet.apply(topic, b"{", b"{", 0)
    assert fleet.version == 0
