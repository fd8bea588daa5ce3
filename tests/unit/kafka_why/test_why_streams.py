"""The report on a streams group: where tasks found their state, who waits for whom, why nobody has tasks."""

import pytest

from kafka_why.contract.kafka.history import STREAMS, TASK_STATES_MAX, TaskState
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.groups.streams import streams_row
from kafka_why.observed.records import MemberSubscribed, TargetEpoch
from kafka_why.why.model import AwaitedPartitions, StreamsNow, TaskMoves
from kafka_why.why.reconciling import flat
from kafka_why.why.report import Report, report
from kafka_why.why.tasks import _state_lines, task_moves
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from state.kafka.protocols import view_of
from tests.harness.histories import Recorder, of_scenario
from tests.harness.observed_epochs import Said, has, streams_epoch, streams_member, target, topology
from tests.harness.observed_log import G, Watched, at

NOW_MS = 60_000
NO_DELAY = "config group.streams.initial.rebalance.delay.ms=0"


def reported(*said: Said) -> Report:
    return report(G, Watched().take(list(said)).of(G), NOW_MS)


def joined(name: str, process: str) -> MemberSubscribed:
    return MemberSubscribed(name, streams_member(name, process=process), STREAMS)


BEGUN = at(
    1_000,
    joined("a", "p1"),
    topology(),
    streams_epoch(2),
    target("a", 0, 1, kind=STREAMS),
    TargetEpoch(2, STREAMS),
    has("a", 2, 0, 1, kind=STREAMS),
)


def test_waiting_member_names_the_thread_that_has_its_task() -> None:
    """The copy in another process is no reason to wait."""
    of = reported(
        *BEGUN,
        *at(
            2_000,
            joined("b", "p2"),
            joined("c", "p2"),
            streams_epoch(3),
            target("b", 1, kind=STREAMS),
            target("c", 0, kind=STREAMS),
            TargetEpoch(3, STREAMS),
        ),
        *at(3_000, has("a", 3, kind=STREAMS, standbys=(0, 1))),
        *at(4_000, has("c", 3, 0, kind=STREAMS, standbys=(1,))),
        *at(5_000, has("b", 3, kind=STREAMS, state=2)),
    )
    waited = {one.member_id: one.waited_for for one in of.rebalances[-1].progress}
    assert waited["b"] == [AwaitedPartitions({"active 0": [1]}, "c")]


def test_all_reasons_of_one_epoch_are_shown() -> None:
    of = reported(*BEGUN, *at(2_000, joined("b", "p2"), streams_epoch(3, -1)))
    shown = report_text(of, Clock())
    assert "why      member b joined; the topics of the topology are missing, or have wrong numbers" in shown
    assert "Not ready   for 58.0 s: the topics of the topology are missing" in shown
    assert "waiting for the initial delay, the assignment interval or a heartbeat" in shown


def test_moved_task_may_find_its_state_in_another_thread_of_the_process() -> None:
    before = {
        "a": flat({"active 0": [0, 1, 2]}),
        "b": flat({"standby 0": [0]}),
        "c": flat({"warm-up 0": [1]}),
    }
    after = {
        "a": flat({"standby 0": [0, 1]}),
        "b": flat({"active 0": [1], "standby 0": [2]}),
        "d": flat({"active 0": [0, 2, 3]}),
    }
    processes = {"a": "p1", "b": "p2", "c": "p2", "d": "p2"}
    assert task_moves(before, after, processes) == TaskMoves(
        promoted={"0": [0, 1]}, without_copy={"0": [2]}, standby=3, new_standby=1
    )
    alone = task_moves(before, after, {})
    assert (alone.promoted, alone.without_copy) == ({}, {"0": [0, 1, 2]})


@pytest.mark.parametrize(
    ("scenario", "lines"),
    [
        (
            "standbys",
            [
                "missing  copies of standby tasks 0_0, 0_1, 0_2, 0_3, because there are too few processes",
                "state     no copy there of 0_2, 0_3, which restore it from the beginning",
                "state     already in the new owner's process for 0_3 (standby)",
            ],
        ),
        ("quarantine", ["L  has to give up active 0 1, or is removed 30.0 s after the request"]),
        ("topics", ["Not ready   for 2.0 s: no member has a task in epoch 7, because the topology is not"]),
        ("task_states", ["state    an earlier copy there of 0_3 (30 records behind as of 7.0 s before); no"]),
        (
            "not_created",
            [
                "Not ready   for 2.0 s: no member has a task in epoch 6, because the topology is not",
                "\n            not created after 0 ms for A: 11",
                "topics   not created after 5.0 s for A, User:ann: The client is not authorized to create s.",
            ],
        ),
        ("shutdown", ["Shutdown    requested by D at 1970-01-01 00:00:00.000"]),
    ],
)
def test_why_explains_our_streams_group_by_its_own_history(scenario: str, lines: list[str]) -> None:
    history = of_scenario(f"streams_{scenario}")
    shown = report_text(report("g", history, history[-1].at_ms + 2_000), Clock())
    assert [line for line in lines if line not in shown] == []
    others = {"Not ready": ("topics", "not_created"), "Shutdown": ("shutdown",)}
    assert [word for word, at in others.items() if word in shown and scenario not in at] == []


def test_tasks_beyond_the_limit_of_an_entry_have_an_unknown_state() -> None:
    """Positions of tasks that ran as active are no lag."""
    moved = {"0": [0, 1]}
    states = {"0_0": TaskState(role="standby", offset=-2, end_offset=9, reported_before_ms=1)}
    tasks = TaskMoves(promoted=moved, without_copy={}, standby=0, new_standby=0, states=states)
    text = "already in the new owner's process for 0_0 (standby); "
    assert list(_state_lines(tasks)) == [("state", text + "none to restore for 0_1")]
    states |= {f"1_{number}": TaskState() for number in range(TASK_STATES_MAX)}
    assert list(_state_lines(tasks)) == [("state", text + "unknown for 0_1")]


def test_failed_topic_creation_is_no_current_problem_once_the_topics_exist() -> None:
    history = [event for event in of_scenario("streams_not_created") if event.at_ms <= 20_000]
    found = report("g", history, 25_000)
    assert found.streams == StreamsNow(not_ready_since_ms=0)
    (first,) = found.rebalances
    failures = [(one.after_ms, one.member_id, one.principal) for one in first.not_created]
    assert failures == [(5_000, "A", "User:ann"), (5_000, "A", None)]


def test_end_of_the_initial_delay_is_shown_while_it_lasts() -> None:
    recorder = Recorder()
    recorder.play("topics foo=2", "stream A e0 process=p1")
    line = "Delayed     until 1970-01-01 00:00:{}.000: the first target waits for more members"
    assert line.format("03") in report_text(report("g", recorder.history, 1_000), Clock())
    assert "Delayed" not in report_text(report("g", recorder.history, 3_000), Clock())
    recorder.play("at 3s")
    assert "Delayed" not in report_text(report("g", recorder.history, 1_000), Clock())
    late = Recorder().play("topics foo=2", "stream A e0 process=p1", "outage 10s")
    assert line.format("13") in report_text(report("g", late, 11_000), Clock())


def test_view_of_a_streams_group_explains_missing_tasks() -> None:
    recorder = Recorder()
    recorder.play(NO_DELAY, 'topology "0: foo +s"', "topics foo=4", "stream A e0 process=p1")
    group = recorder.any_group()
    view = view_of(group) if group is not None else None
    assert isinstance(view, GroupSnapshot)
    assert view.consumer and view.consumer.streams
    assert view.consumer.streams.stateful == ["0"]
    row = streams_row(view)
    assert row is not None and row.not_ready == "Internal topics are missing: s."
    assert [one.process_id for one in row.processes] == ["p1"]


def test_refused_topology_is_reported_with_its_difference() -> None:
    topologies = 'topology "0: foo +s"', "stream A e0", 'topology "0: foo bar +s"', "stream B e0"
    (note,) = report("g", Recorder().play("topics foo=4 s=4", *topologies), 12_000).notes
    assert note.startswith("a join of B at  was refused once; the last reason: Topology updates are not")
    assert "subtopology 0 has other source topics" in note
