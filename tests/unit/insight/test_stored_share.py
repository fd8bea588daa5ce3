# ruff: noqa: E501 - tables are as wide as on the terminal
"""What readers show of a share group: the stored state, the moment, the list of groups."""

import copy
from datetime import UTC
from textwrap import dedent

from gateway.coordinator.groups import known_of
from insight.admin.list_groups import listed
from insight.replay.moment import moment_text
from insight.replay.replay import Replayed
from insight.stored.changes import change_text, compare_groups
from insight.stored.rows import rows_of
from insight.stored.text import group_text
from insight.why.clock import Clock
from state.config import CoordinatorConfig
from state.kafka.protocols import view_of
from state.kafka.share_group import ShareGroup
from tests.harness.histories import Recorder

CONFIG = CoordinatorConfig()


def group_after(*commands: str) -> ShareGroup:
    recorder = Recorder()
    recorder.play("at 10s", "topics foo=2", "share A e0", "init watcher", "share A e2", *commands)
    group = recorder.any_group()
    assert isinstance(group, ShareGroup)
    return copy.deepcopy(group)


def test_the_rows() -> None:
    rows = rows_of(group_after("at 12s", "share B e0"), 2, CONFIG)
    group = rows.group
    assert (group.group_type, group.state, group.protocol_name) == ("share", "Stable", "simple")
    assert (group.generation, group.assignment_epoch, group.subscribed_topics) == (4, 4, ["foo"])
    first, second = rows.members
    assert (first.assignment, first.target, first.partitions) == ({"foo": [0, 1]}, {"foo": [0]}, 2)
    assert (second.member_id, second.assignment, second.member_epoch) == ("B", {"foo": [1]}, 4)
    assert [timer.member_id for timer in rows.timers] == ["A", "B"]
    assert [(row.partition, row.state, row.task) for row in rows.shares] == [
        (0, "initialized", None),
        (1, "initialized", None),
    ]


def test_the_rows_of_partitions() -> None:
    group = group_after(
        "topics foo=4", "topic-metadata watcher", "share A e3", "init watcher error=15 partitions[foo 3]"
    )
    (*_, two, three) = rows_of(group, 2, CONFIG).shares
    assert (two.state, two.start_offset, two.state_epoch, two.error_code) == ("initializing", 0, 4, None)
    assert (three.partition, three.error_code, three.task) == (3, 15, two.task)
    assert two.asked_at_ms == 10_000
    text = group_text(rows_of(group, 2, CONFIG))
    assert (
        "  TOPIC PARTITION STATE        TASK         ASKED                   STATE-EPOCH START-OFFSET ERROR"
        in text
    )
    assert (
        "  foo   3         initializing requests-0-4 1970-01-01 00:00:10.000 4           0            15"
        in text
    )
    deleting = rows_of(group_after("share A -1", "delete admin"), 2, CONFIG).shares
    assert [(row.partition, row.state) for row in deleting] == [(0, "deleting"), (1, "deleting")]


def test_a_moment() -> None:
    group = group_after("topics foo=3", "topic-metadata watcher", "share A e3")
    text = f"{moment_text(Replayed('g', group=group), group.clock_ms, CONFIG, Clock(UTC))}\n"
    assert text == dedent("""\
        Group g at 1970-01-01 00:00:10.000 UTC: Stable for 0 ms, epoch 4, target assignment of epoch 3, 1 member
        Last rebalance: began 1970-01-01 00:00:10.000, because the topics that members subscribe to have changed

        MEMBER          HOST       EPOCH HAS             TARGET
        A               -          3     foo 0-1         foo 0-1

        Initialized: foo 0-1
        Initializing: foo 2
        Task: foo 2: initializing for 0 ms (task requests-0-4)

        Timers:
            1970-01-01 00:00:55.000  in 45.0 s  the session of A ends
            1970-01-01 00:01:10.000  in 60.0 s  tasks that the share coordinator has not done get an entry
        """)


def test_a_moment_of_a_group_that_is_being_deleted() -> None:
    group = group_after("share A -1", "delete admin")
    text = f"{moment_text(Replayed('g', group=group), group.clock_ms, CONFIG, Clock(UTC))}\n"
    assert "Empty for 0 ms" in text and "Deleting: foo 0-1" in text
    assert "Task: foo 0-1: deleting the state for 0 ms (task requests-0-4)" in text
    assert "in 60.0 s  an administrator is answered, whatever the share coordinator has done" in text


def test_what_differs() -> None:
    before, after = group_after("at 12s", "share B e0"), group_after("at 12s", "share B e0", "share A e3")
    change = compare_groups("g", before, after, ignore_times=True)
    assert change is not None
    assert "  member A: assigned foo:0,1 -> foo:0" in change_text(change).splitlines()
    assert "initialized" not in change_text(change)
    deleted = compare_groups("g", after, group_after("share A -1", "delete admin"), ignore_times=True)
    assert deleted is not None
    assert "  removed: initialized partitions of foo (foo:0,1)" in change_text(deleted).splitlines()


def test_the_lists_of_groups() -> None:
    """Row SD5."""
    view = view_of(group_after())
    in_list = known_of(view)
    assert (in_list.state, in_list.protocol_type, in_list.group_type) == ("Stable", "share", "share")
    assert listed(view).type == "Share"
