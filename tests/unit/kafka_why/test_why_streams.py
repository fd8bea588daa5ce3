"""The report on a streams group: where tasks found their state, who waits for whom, why nobody has tasks."""

from kafka_why.contract.kafka.history import STREAMS, EntryType, HistoryEntry
from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.observed.records import MemberSubscribed, TargetEpoch
from kafka_why.why.model import HandedOver, TaskMoves
from kafka_why.why.reconciling import flat
from kafka_why.why.report import Report, report
from kafka_why.why.tasks import task_moves
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from tests.harness.observed_epochs import Said, has, settles, streams_epoch, streams_member, target, topology
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
    assert waited["b"] == [HandedOver({"active 0": [1]}, "c")]


def test_reasons_of_one_epoch_are_all_shown() -> None:
    of = reported(*BEGUN, *at(2_000, joined("b", "p2"), streams_epoch(3, -1)))
    shown = report_text(of, Clock())
    assert "why      member b joined; the topics of the topology are missing, or have wrong numbers" in shown
    assert "Not ready   for 58.0 s: the topics of the topology are missing" in shown
    assert "waiting for the initial delay, the assignment interval or a heartbeat" in shown


def test_group_that_is_ready_again_has_no_reason_any_more() -> None:
    of = reported(
        *BEGUN,
        *at(2_000, streams_epoch(3, -1)),
        *at(3_000, streams_epoch(4), *settles(STREAMS, 4, a=(0, 1))),
    )
    assert of.streams is not None
    assert of.streams.not_ready is None


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


def entry(seq: int, type_: EntryType, **fields: object) -> HistoryEntry:
    given: dict[str, object] = {"from_state": "Stable", "to_state": "Stable", "reason": "", "member_id": None}
    given |= fields
    return HistoryEntry(
        version=RECORD_VERSION,
        type=type_,
        group_id=G,
        incarnation="r-0-0",
        seq=seq,
        at_ms=seq * 1_000,
        generation=seq,
        rule="",
        cause=f"r-0-{seq}",
        group_type=STREAMS,
        **given,  # type: ignore[arg-type]
    )


def test_requested_shutdown_is_reported_until_the_group_is_empty() -> None:
    asked = entry(1, EntryType.SHUTDOWN_REQUESTED, member_id="a")
    assert "Shutdown    requested by a at 1970-01-01 00:00:01" in report_text(
        report(G, [asked], NOW_MS), Clock()
    )
    emptied = entry(2, EntryType.EMPTY, to_state="Empty")
    assert "Shutdown" not in report_text(report(G, [asked, emptied], NOW_MS), Clock())


def test_missing_standby_tasks_are_named() -> None:
    history = [
        entry(1, EntryType.GROUP_EPOCH_BUMPED, member_id="a", to_state="Assigning", from_state="Empty"),
        entry(2, EntryType.TARGET_ASSIGNMENT_COMPUTED, targets={}, partitions={"standby 0": [0, 3]}),
    ]
    shown = report_text(report(G, history, NOW_MS), Clock())
    assert "missing  copies of standby tasks 0_0, 0_3, because there are too few processes" in shown
