"""The page of a share group of this coordinator: its partitions, its members, its rebalances."""

import pytest

from insight.page.findings import Kind
from insight.page.fleet import Fleet
from insight.page.group import GroupPage, group_page
from insight.page.members import of_view
from insight.page.overview import Overview
from insight.page.rebalance import rebalance_page
from insight.why.course import course_of
from state.kafka.protocols import view_of
from state.kafka.snapshot import GroupSnapshot
from tests.harness.histories import Recorder
from tests.unit.insight.page_facts import LAYOUT, facts, take_view

BEGUN = ("topics orders=3", "at 10s", "share A e0", "at 11s", "init watcher partitions[orders 0]")
JOINED = ("at 12s", "share A e2", "at 15s", "share B e0")


def world(*commands: str) -> tuple[Recorder, GroupSnapshot]:
    recorder = Recorder()
    recorder.play(*BEGUN, *commands)
    group = recorder.any_group()
    assert group is not None
    view = view_of(group)
    assert isinstance(view, GroupSnapshot)
    return recorder, view


def page(now_ms: int, *commands: str, with_history: bool = True) -> GroupPage:
    recorder, view = world(*commands)
    course = course_of(recorder.history) if with_history else None
    return group_page(facts(view), course, (0, now_ms), now_ms)


def test_a_group_is_listed_with_its_type_and_its_members() -> None:
    _, view = world(*JOINED)
    fleet = Fleet(LAYOUT)
    take_view(fleet, view)
    (line,) = Overview(fleet).lines(15_000)
    assert (line.protocol, line.state, line.members) == ("share", "Stable", 2)
    assert [member.partitions for member in of_view(view).members] == [1, 1], "both have orders-0"


@pytest.mark.parametrize("with_history", [True, False])
def test_it_says_how_far_the_partitions_are(with_history: bool) -> None:
    assert page(12_000, with_history=with_history).shares == [
        "3 partitions: 1 initialized, 2 initializing",
        "orders 1-2: initializing for 2.0 s (task requests-0-0)",
        "no member has orders 0",
    ]
    failing = page(13_000, *JOINED, "init watcher partitions[orders 1] error=15", with_history=with_history)
    assert failing.shares == [
        "3 partitions: 1 initialized, 2 initializing",
        "orders 1: initializing for 3.0 s, last error 15 COORDINATOR_NOT_AVAILABLE (task requests-0-0)",
        "orders 2: initializing for 3.0 s (task requests-0-0)",
    ]
    deleting = page(20_000, "share A -1", "at 14s", "delete admin", with_history=with_history)
    assert deleting.shares == [
        "3 partitions: 3 deleting",
        "orders 0-2: deleting the state for 6.0 s (task requests-0-3)",
    ]


def test_a_task_that_is_open_for_long_is_a_finding() -> None:
    assert page(69_999).findings == []
    (found,) = page(70_000).findings
    assert (found.kind, found.since_ms) == (Kind.NOT_INITIALIZED, 10_000)
    assert found.sentence == "The share coordinator has not initialized 2 partitions for 60.0 s: orders 1-2"
    (found,) = page(70_000, "init watcher error=16").findings
    assert ", with error 16 NOT_COORDINATOR: " in found.sentence


def test_members_and_rebalances() -> None:
    now_ms = 16_000
    it = page(now_ms, *JOINED)
    assert [(member.name, member.holds, member.partitions) for member in it.members] == [
        ("A", "orders 0", 1),
        ("B", "orders 0", 1),
    ]
    assert [(r.sentence, r.waited, r.needless) for r in it.rebalances] == [
        ("member joined: B", "", None),
        ("share partitions were initialized", "", None),
        ("member joined: A", "", None),
    ]
    assert it.picture.lanes
    recorder, _ = world(*JOINED)
    of_second = rebalance_page("g", course_of(recorder.history), 12_000, now_ms)
    assert of_second is not None
    assert ("why", "1 partition ready 1.0 s after the asking: orders 0") in of_second.lines
    assert [(move.name, move.gained) for move in of_second.moves] == [("A", "orders 0")]
