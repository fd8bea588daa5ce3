"""What the page keeps of all groups: views, commits, entries of the last hour, all bounded."""

from collections.abc import Callable

import msgspec
import pytest

from kafka_why.contract.codec import offset_key
from kafka_why.page.fleet import WINDOW_MS, Fleet
from tests.unit.kafka_why.page_facts import (
    LAYOUT,
    facts_of,
    fleet_of,
    played,
    take_commit,
    take_entries,
    take_view,
    view,
)
from tests.unit.kafka_why.why_story import BEGIN_MS, END_MS, STORY

P = ("orders", 0)


def entries_of(fleet: Fleet) -> int:
    return len(facts_of(fleet).entries)


def test_group_ends_with_its_tombstone_and_is_dropped_when_nothing_is_left() -> None:
    fleet = fleet_of(view())
    take_commit(fleet, "g", P, 5)
    assert facts_of(fleet).view == view()
    fleet.apply(LAYOUT.groups_topic, b"g", None, 0)
    fleet.trim(0)
    assert facts_of(fleet).view is None
    fleet.apply(LAYOUT.offsets_topic, offset_key("g", *P), None, 0)
    fleet.trim(0)
    assert (fleet.group_ids(), fleet.facts("g"), fleet.group_version("g")) == ([], None, None)


def test_fleet_keeps_history_entries_for_an_hour() -> None:
    fleet, story = Fleet(LAYOUT), played(*STORY)
    take_entries(fleet, story, END_MS)
    assert fleet.last_entry_ms == story[-1].at_ms
    fleet.trim(BEGIN_MS + WINDOW_MS)
    assert entries_of(fleet) == len(story)
    fleet.trim(BEGIN_MS + WINDOW_MS + 1)
    assert entries_of(fleet) == sum(entry.at_ms > BEGIN_MS for entry in story)
    fleet.trim(END_MS + WINDOW_MS + 1)
    assert fleet.group_ids() == []
    take_entries(fleet, story, END_MS + WINDOW_MS + 1)
    assert fleet.group_ids() == [], "they are too old"


def test_the_version_grows_with_each_change_of_a_group_and_of_the_fleet() -> None:
    fleet = Fleet(LAYOUT)
    changes: list[tuple[Callable[[], None], bool]] = [
        (lambda: take_view(fleet, view()), False),
        (lambda: take_commit(fleet, "g", P, 5), False),
        (lambda: take_entries(fleet, played(*STORY), END_MS), True),
        (lambda: fleet.trim(END_MS + WINDOW_MS + 1), True),
    ]
    seen = [(fleet.version, 0, 0)]
    for change, has_entries in changes:
        change()
        facts = facts_of(fleet)
        seen.append((fleet.version, facts.version, facts.entries_version))
        grown = [now > before for before, now in zip(*seen[-2:], strict=True)]
        assert grown == [True, True, has_entries]


def test_unreadable_record_is_refused_and_leaves_the_fleet_unchanged() -> None:
    fleet = Fleet(LAYOUT)
    for topic in (LAYOUT.groups_topic, LAYOUT.offsets_topic, LAYOUT.events_topic):
        with pytest.raises(msgspec.DecodeError):
            fleet.apply(topic, b"{", b"{", 0)
    assert fleet.version == 0
