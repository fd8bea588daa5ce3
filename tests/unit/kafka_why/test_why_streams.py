"""The report on a streams group: where tasks found their state, who waits for whom, why nobody has tasks."""

import pytest

from kafka_why.contract.kafka.history import STREAMS
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.groups.streams import streams_row
from kafka_why.observed.records import MemberSubscribed, TargetEpoch
from kafka_why.why.model import AwaitedPartitions, CauseKind, TaskMoves
from kafka_why.why.reconciling import flat, task_moves
from kafka_why.why.report import Report, report
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from state.kafka.protocols import view_of
from tests.harness.histories import Recorder
from tests.harness.observed_epochs import Said, has, streams_epoch, streams_member, target, topology
from tests.harness.observed_log import G, Watched, at

NOW_MS = 60_000


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
    TargetEpoch(2, 1, STREAMS),
    has("a", 2, 0, 1, kind=STREAMS),
)


def test_waiting_member_names_the_thread_of_its_process_that_has_a_copy() -> None:
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
            TargetEpoch(3, 1, STREAMS),
        ),
        *at(3_000, has("a", 3, kind=STREAMS, standbys=(0, 1))),
        *at(4_000, has("c", 3, 0, kind=STREAMS, standbys=(1,))),
        *at(5_000, has("b", 3, kind=STREAMS, state=2)),
    )
    waited = {one.member_id: one.waited_for for one in of.rebalances[-1].progress}
    assert waited["b"] == [AwaitedPartitions({"active 0": [1]}, "c")]


def test_reasons_of_one_epoch_are_all_shown() -> None:
    of = reported(*BEGUN, *at(2_000, joined("b", "p2"), streams_epoch(3, -1)))
    shown = report_text(of, Clock())
    assert "why      member b joined; the topics of the topology are missing, or have wrong numbers" in shown
    assert "Not ready   for 58.0 s: the topics of the topology are missing" in shown
    assert "waiting for the initial delay, the assignment interval or a heartbeat" in shown


def test_state_of_a_moved_task_may_be_in_another_thread_of_the_process() -> None:
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


STORY = (
    "config group.streams.initial.rebalance.delay.ms=0 group.streams.assignment.interval.ms=0",
    "config group.streams.num.standby.replicas=1",
    'topology "0: foo +s"',
    "topics foo=4",
    "stream A e0 process=p1",
    "at 2s",
    "topics foo=4 s=4",
    "stream A e2",
    "at 10s",
    "stream B e0 process=p2",
    "at 12s",
    "stream A e3 A[0-3]",
    "at 13s",
    "stream A e3 A[0,1] S[2,3]",
    "at 14s",
    "stream B e4",
    "at 15s",
    "stream B2 e0 process=p2",
    "at 16s",
    "stream A e4",
    "stream B e4",
    "at 17s",
    "stream A e4 A[0,1] S[2,3]",
    "stream B e4 A[2] S[0,1]",
    "at 20s",
    "stream B2 e5",
    "at 21s",
    "stream A -1",
    "at 22s",
    "stream B e5 shutdown=yes",
    "at 23s",
    "stream B -1",
    "stream B2 -1",
)


def played(*commands: str) -> Recorder:
    recorder = Recorder()
    recorder.play(*commands)
    return recorder


def test_group_of_this_coordinator_is_explained_by_its_own_history() -> None:
    found = report("g", played(*STORY[:-3]).history, 30_000)
    shown = report_text(found, Clock())
    assert "why      member A joined; the topics of the topology have changed" in shown
    assert "missing  copies of standby tasks 0_0, 0_1, 0_2, 0_3, because there are too few processes" in shown
    assert "state     no copy there of 0_2, 0_3, which restore it if they have any" in shown
    assert "state     already in the new owner's process for 0_3" in shown
    assert "B  has to give up standby 0 1, or is removed 60.0 s after the request" in shown
    assert "Not ready" not in shown
    assert "Shutdown    requested by B at 1970-01-01 00:00:22.000" in shown
    assert "Shutdown" not in report_text(report("g", played(*STORY).history, 30_000), Clock())
    kinds = [(r.cause.kind, r.cause.member_ids) for r in found.rebalances]
    joined_, left = CauseKind.MEMBER_JOINED, CauseKind.MEMBER_LEFT
    assert kinds == [(joined_, ["A"]), (joined_, ["B"]), (joined_, ["B2"]), (left, ["A"])]


def test_end_of_the_initial_delay_is_named_until_it_is_over() -> None:
    recorder = played("topics foo=2", "stream A e0 process=p1")
    line = "Delayed     until 1970-01-01 00:00:03.000: the first target waits for more members"
    assert line in report_text(report("g", recorder.history, 1_000), Clock())
    assert "Delayed" not in report_text(report("g", recorder.history, 3_000), Clock())
    recorder.play("at 3s")
    assert "Delayed" not in report_text(report("g", recorder.history, 1_000), Clock())
    late = played("topics foo=2", "stream A e0 process=p1", "outage 10s")
    line = "Delayed     until 1970-01-01 00:00:13.000: the first target waits for more members"
    assert line in report_text(report("g", late.history, 11_000), Clock())


def test_topics_that_are_missing_are_named_while_nobody_has_tasks() -> None:
    shown = report_text(report("g", played(*STORY[:5]).history, 12_000), Clock())
    assert "Not ready   for 12.0 s: no member has a task in epoch 2" in shown
    assert "the topology is not ready: Internal topics are missing: s." in shown


@pytest.mark.parametrize(
    ("commands", "kind"),
    [
        (("at 90s",), CauseKind.SESSION_TIMEOUT),
        (("config group.streams.num.standby.replicas=0", "stream A e3"), CauseKind.SETTINGS_CHANGED),
        (("topics foo=4 s=5", "topic-metadata watcher", "stream A e3"), CauseKind.TOPICS_CHANGED),
        (("stream A e0 process=p9",), CauseKind.MEMBER_CHANGED),
    ],
)
def test_kind_of_cause_follows_from_the_row(commands: tuple[str, ...], kind: CauseKind) -> None:
    found = report("g", played(*STORY[:8], "at 30s", *commands).history, 100_000)
    assert found.rebalances[-1].cause.kind is kind


def test_view_of_this_coordinator_says_why_nobody_has_tasks() -> None:
    group = played(*STORY[:5]).any_group()
    assert group is not None
    view = view_of(group)
    assert isinstance(view, GroupSnapshot)
    row = streams_row(view)
    assert row is not None
    assert row.not_ready == "Internal topics are missing: s."
    assert [one.process_id for one in row.processes] == ["p1"]
    assert view.consumer
    assert view.consumer.streams
    assert view.consumer.streams.stateful == ["0"]


def test_refused_topology_is_reported_with_its_difference() -> None:
    refused = ('topology "0: foo bar +s"', "stream B e0 process=p2")
    found = report("g", played(*STORY[:8], *refused).history, 12_000)
    (note,) = found.notes
    assert note.startswith("a join of B at  was refused once; the last reason: Topology updates are not")
    assert "subtopology 0 has other source topics" in note
