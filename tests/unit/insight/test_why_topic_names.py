"""The names of deleted topics in a report, where the history has their ids."""

import pytest

from insight.why.report import report
from state.kafka.history import HistoryEntry
from tests.harness.histories import Recorder

BEFORE = ("topics foo=4 bar=1 qux=1", "at 0s", "A e0 names[foo,bar,qux]", "at 5s")
DELETED = ("topics foo=none", "topic-metadata watcher", "at 10s", "A e2", "at 11s")
REVOKED = ("A e2 owned[bar 0; qux 0]",)


def revoked(history: list[HistoryEntry]) -> dict[str, list[int]]:
    """What the member gave up in the last rebalance."""
    found = report("g", history, history[-1].at_ms).rebalances[-1]
    return {topic: list(numbers) for way in found.progress for topic, numbers in way.revoked.items()}


@pytest.mark.parametrize("again", [(), ("topics foo=2",)], ids=["deleted", "created again"])
def test_a_deleted_topic_has_the_name_that_earlier_entries_show(again: tuple[str, ...]) -> None:
    first, *others = DELETED
    history = Recorder().play(*BEFORE, first, *again, *others, *REVOKED)
    assert revoked(history) == {"foo (deleted)": [0, 1, 2, 3]}


def test_a_static_member_that_came_back_has_the_names_of_its_former_self() -> None:
    first, *rest = (command.replace("A e", "A(ia) e") for command in BEFORE)
    back = ("A(ia) -2", "A2(ia) e0 names[foo,bar,qux]")
    deleted = (command.replace("A e", "A2(ia) e") for command in (*DELETED, "A2(ia) e2 owned[bar 0; qux 0]"))
    history = Recorder().play(first, *rest, *back, *deleted)
    assert revoked(history).keys() == {"foo (deleted)"}


def test_where_several_names_fit_the_id_stays() -> None:
    deleted = ("topics bar=none qux=none", *DELETED[1:])
    topics = revoked(Recorder().play(*BEFORE, *deleted, "A e2 owned[foo 0-3]"))
    assert len(topics) == 2
    assert not any("deleted" in topic for topic in topics)


def test_a_history_that_begins_after_the_deletion_has_the_id() -> None:
    recorder = Recorder()
    seen = len(recorder.play(*BEFORE, *DELETED[:2]))
    history = recorder.play(*DELETED[2:], *REVOKED)[seen:]
    (topic,) = revoked(history)
    assert topic.count("-") == 4
