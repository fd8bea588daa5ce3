# ruff: noqa: E501 - tables are as wide as on the terminal
"""The report on a group of the consumer protocol: epochs, what each member gives up, waits for and gets. That on a
share group: rows SP25 to SP28.
"""

from datetime import UTC
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.why.model import (
    AwaitedPartitions,
    CauseKind,
    Rebalance,
    RebalanceOutcome,
    SharePartitionStates,
)
from kafka_why.why.reconciling import flat
from kafka_why.why.report import Report, report
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from state.config import CoordinatorConfig
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup
from state.timeline import Timeline
from tests.harness.common import apply_rows, kafka_effects
from tests.harness.examples import examples
from tests.harness.histories import Recorder
from tests.harness.random_log import GROUPS
from tests.harness.share_log import ShareLog

MORNING = (
    "config group.consumer.assignment.interval.ms=1000",
    "topics orders=6 prices=2",
    "at 0s",
    "A e0",
    "at 4s",
    "B e0",
    "at 5s",
    "A e2",
    "at 6500ms",
    "A e2 owned[orders 0-3]",
    "at 8s",
    "B e3",
    "at 12s",
    "C(till) e0",
    "at 12200ms",
    "D e0",
    "at 14s",
    "A e3",
    "B e3",
    "at 30s",
    "C(till) -2",
    "at 40s",
    "D -1",
    "at 41s",
    "C2(till) e0 id=C2",
    "at 60s",
    "C2(till) e6 id=C2",
)

CONVERSIONS = (
    "topics orders=4",
    "config group.initial.rebalance.delay.ms=0",
    "at 0s",
    "join a api=3 topics=orders session=30s",
    "sync a assign=@a:orders-0+orders-1+orders-2+orders-3",
    "at 10s",
    "X e0",
    "at 11s",
    "heartbeat a",
    "join a id=@a topics=orders",
    "at 12s",
    "sync a",
    "X e2",
    "at 20s",
    "topics orders=6",
    "topic-metadata watcher",
    "at 21s",
    "X e2",
    "at 22s",
    "heartbeat a",
    "at 22500ms",
    "join a id=@a topics=orders",
    "sync a",
    "at 30s",
    "X -1",
    "at 31s",
    "heartbeat a",
    "join a id=@a topics=orders",
    "at 31500ms",
    "sync a assign=@a:orders-0+orders-1+orders-2+orders-3+orders-4+orders-5",
)


def played(*commands: str) -> list[HistoryEntry]:
    return Recorder().play(*commands)


def reported(history: list[HistoryEntry], after_ms: int = 3_000) -> Report:
    return report("g", history, history[-1].at_ms + after_ms)


def rebalance(history: list[HistoryEntry], number: int) -> Rebalance:
    return reported(history).rebalances[number - 1]


def block(shown: Report, number: int) -> str:
    """Return the text about one rebalance."""
    text = report_text(shown, Clock(UTC))
    return next(part for part in text.split("\n\n") if part.startswith(f"#{number} ")).rstrip()


JOINING = """\
#2  1970-01-01 00:00:04.000  member joined: B
    trigger  requests-0-1
    took     4.0 s until Stable
    epoch    2 -> 3
    target   computed at once by uniform, new for 2 members
    members  A  gave up orders 4-5, prices 0-1 in 1.5 s
             B  waited 4.0 s for orders 4-5, prices 0-1 of A
    moved    4 of 8 partitions
             A  8 -> 4  - orders 4-5, prices 0-1
             B  0 -> 4  + orders 4-5, prices 0-1
    idle     4 partitions, for up to 3.0 s
"""
OF_SEVERAL_EPOCHS = """\
#3  1970-01-01 00:00:12.000  member joined: C
    trigger  requests-0-5
    took     48.0 s until Stable
    epoch    3 -> 8
             4 after 0 ms: member joined: C; target computed at once by uniform, new for 3 members
             5 after 200 ms: member joined: D; target computed 1.8 s later by uniform, new for 3 members
             6 after 28.0 s: member left: D; target computed 1.0 s later by uniform, new for 2 members
             7 after 47.0 s: session timeout: A; target computed 1.0 s later by uniform, new for 1 member
             8 after 47.0 s: session timeout: B; target computed 1.0 s later by uniform, new for 1 member
    members  A   did not give up orders 2-3
             B   did not give up prices 0-1
             C2  waited 48.0 s for orders 3 of A and prices 0-1 of B
    removed  D after 28.0 s: left the group
    removed  A after 47.0 s: no heartbeat within the session timeout of 45000 ms
    removed  B after 47.0 s: no heartbeat within the session timeout of 45000 ms
    moved    8 of 8 partitions
             C2  0 -> 8  + orders 0-5, prices 0-1
             A   4 -> 0  - orders 0-3
             B   4 -> 0  - orders 4-5, prices 0-1
    idle     8 partitions, for up to 46.0 s
"""
VAIN = ("topics orders=6", "at 0s", "A e0", "at 6s", "B e0", "at 7s", "A e2", "at 8s", "B -1")


@pytest.mark.parametrize(
    ("commands", "number", "said"),
    [
        pytest.param(MORNING, 2, [JOINING], id="a member joins"),
        pytest.param(MORNING, 3, [OF_SEVERAL_EPOCHS], id="partitions that are not given up"),
        pytest.param(
            VAIN,
            2,
            [
                "4 after 2.0 s: member left: B; target not computed\n",
                "B  waited in vain for orders 3-5 of A\n",
            ],
            id="an epoch without a target",
        ),
        pytest.param(CONVERSIONS, 2, ["waited 2.0 s for orders 2-3 of a"], id="the group is converted"),
        pytest.param(
            CONVERSIONS, 3, ["why      in the cluster: orders has 6 partitions"], id="the topic has grown"
        ),
    ],
)
def test_report_shows_epochs_targets_and_what_members_wait_for(
    commands: tuple[str, ...], number: int, said: list[str]
) -> None:
    shown = f"{block(reported(played(*commands)), number)}\n"
    assert [words for words in said if words not in shown] == []


def test_report_shows_conversions_to_the_consumer_protocol_and_back() -> None:
    shown = reported(played(*CONVERSIONS))
    assert shown.group_type == "classic"
    joined, stable = CauseKind.MEMBER_JOINED, RebalanceOutcome.STABLE
    assert [(r.cause.kind, r.generation_from, r.generation_to, r.outcome) for r in shown.rebalances] == [
        (joined, 0, 1, stable),
        (joined, 1, 2, stable),
        (CauseKind.TOPICS_CHANGED, 2, 3, stable),
        (CauseKind.CONVERTED, 3, 4, stable),
    ]
    upgraded, converted = shown.rebalances[1], shown.rebalances[3]
    assert upgraded.converted is not None
    assert upgraded.moves is not None
    assert upgraded.moves.moved == 2, "the classic member's partitions are known from before"
    assert converted.removed == []


def test_history_without_its_beginning_still_reports_the_outcome() -> None:
    history = played(*MORNING)
    middle = next(n for n, event in enumerate(history) if event.at_ms == 5_000)
    first = rebalance(history[middle:], 1)
    assert first.beginning_lost
    assert first.moves is None
    assert first.outcome is RebalanceOutcome.STABLE
    assert "members  A  gave up orders 4-5, prices 0-1 in 1.5 s" in block(reported(history[middle:]), 1)
    assert [r.cause.kind for r in reported(history[middle:]).rebalances][1:] == [CauseKind.MEMBER_JOINED]


def test_missing_entries_make_the_outcome_unknown() -> None:
    history = played(*MORNING)
    lost = [event for event in history if not 5_000 <= event.at_ms < 8_000]
    shown = reported(lost)
    assert shown.rebalances[1].outcome is RebalanceOutcome.UNKNOWN
    assert any(note.startswith("entries are missing") for note in shown.notes)


def test_ongoing_rebalance_names_awaited_members_and_partitions() -> None:
    history = played(*MORNING[: MORNING.index("at 8s")])
    last = rebalance(history, 2)
    assert last.outcome is RebalanceOutcome.UNDER_WAY
    assert "waiting for members to reach the target assignment" in block(reported(history), 2)
    waiting = next(way for way in last.progress if way.member_id == "B")
    assert waiting.waited_for == [AwaitedPartitions({"orders": [4, 5], "prices": [0, 1]}, "A")]
    assert waiting.waiting_ms is None


def test_changed_patterns_and_changed_matches_are_distinguished() -> None:
    history = played(
        "topics orders=2",
        "at 0s",
        "A e0 names=none regex=ord.*",
        "at 5s",
        "topics orders-eu=2",
        "regex-resolved watcher",
        "at 6s",
        "A e2",
        "at 20s",
        "A e3 regex=orders",
        "A e4 owned[orders 0-1]",
        "at 30s",
    )
    kinds = [change.cause.kind for r in reported(history).rebalances for change in r.epochs]
    assert kinds == [CauseKind.MEMBER_JOINED, CauseKind.PATTERN_RESOLVED, CauseKind.SUBSCRIPTION_CHANGED]
    assert rebalance(history, 3).cause.member_ids == ["A"]


TWO_AT_ONCE = (
    "topics orders=2",
    "at 10s",
    "share A e0",
    "at 10200ms",
    "share B e0",
    "at 10300ms",
    "init watcher",
    "at 15s",
    "share A e2",
    "at 16200ms",
    "share B e2",
)
SLOW = "config coordinator.share.assign.at.once=false"


def text_of(*commands: str) -> str:
    return f"{report_text(reported(played(*commands), 0), Clock(UTC))}\n"


def test_a_newcomer_waits_for_the_assignment_interval_and_the_next_heartbeat() -> None:
    assert text_of(SLOW, *TWO_AT_ONCE) == dedent("""\
        Group g is Stable since 1970-01-01 00:00:10.000 UTC: epoch 3, 2 members
        Rebalances  2 since 1970-01-01 00:00:10.000
        Causes      2 x member joined  A, B
        Not Stable  6.0 s in total, longest 6.0 s (#2)
        Moved       0 partitions

        #1  1970-01-01 00:00:10.000  member joined: A
            trigger  requests-0-0
            took     0 ms until Stable
            epoch    1 -> 2
            target   computed at once by simple, new for 1 member

        #2  1970-01-01 00:00:10.200  member joined: B
            trigger  requests-0-1
            took     6.0 s until Stable
            epoch    2 -> 3
            target   computed 4.8 s later by simple, new for 2 members
            waits    B joined 200 ms after the last assignment, so its first target took 4.8 s
            last     B: its heartbeat came 1.2 s after the target was computed
            moved    0 of 2 partitions; 2 had no owner before
                     A  0 -> 1  + orders 0
                     B  0 -> 1  + orders 1
            idle     2 partitions, for up to 5.9 s
        """)


def test_share_group_report_blames_no_member_and_counts_no_needless_moves() -> None:
    """Rows SP26, SP28."""
    text = text_of(SLOW, *TWO_AT_ONCE, "at 19s", "share C e0", "at 20s", "share A e3", "at 21s", "share B e3")
    assert "moved    2 of 2 partitions\n" in text
    for word in ("needless", "gave up", "waited for"):
        assert word not in text


def test_report_shows_awaited_initializations_and_unassigned_partitions() -> None:
    begun = ("topics orders=2", "at 0s", "share A e0", "at 1s", "init watcher partitions[orders 0]")
    waiting = text_of(*begun, "at 3s", "init watcher error=15")
    assert (
        "Waiting     orders 1: initializing for 3.0 s, last error 15 COORDINATOR_NOT_AVAILABLE (task requests-0-0)\n"
        in waiting
    )
    assert "Idle        1 partition initialized, but without a member: orders 0\n" in waiting
    failed = text_of(*begun, "at 3s", "init watcher error=31")
    assert (
        "Waiting     orders 1: error 31 CLUSTER_AUTHORIZATION_FAILED; the next heartbeat retries\n" in failed
    )
    asked = reported(played(*begun, "at 3s", "init watcher error=31", "at 4s", "share A e2")).shares
    assert asked is not None
    assert [(one.since_ms, one.error_code, one.is_open) for one in asked.asked] == [(4_000, None, True)]


logs = st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 200))


def lives_of(log: tuple[int, int]) -> list[tuple[list[HistoryEntry], object]]:
    """Return the histories of a random log's groups, and the groups at their ends."""
    seed, moves = log
    config = CoordinatorConfig()
    world = ShareLog(seed, config)
    world.play(moves)
    found: list[tuple[list[HistoryEntry], object]] = []
    for group_id in GROUPS:
        timeline = apply_rows(Timeline(group_id, None, config), world.rows)
        history = [entry for effects in kafka_effects(timeline.drain_effects()) for entry in effects.history]
        if history:
            found.append((history, timeline.group))
    return found


@examples(60)
@given(logs)
def test_report_of_a_random_log_has_its_epochs_moves_and_partition_states(log: tuple[int, int]) -> None:
    for history, group in lives_of(log):
        found = report("g", history, history[-1].at_ms)
        check_epochs(history, found.rebalances)
        check_moves(found.rebalances, group)
        assert (found.shares is not None) == isinstance(group, ShareGroup)
        if found.shares is not None and isinstance(group, ShareGroup):
            check_partitions(found.shares, group)


def check_epochs(history: list[HistoryEntry], found: list[Rebalance]) -> None:
    """Each epoch is reported once, and each rebalance has one target."""
    bumped = [(e.at_ms, e.generation) for e in history if e.type is EntryType.GROUP_EPOCH_BUMPED]
    assert [(r.began_ms + e.after_ms, e.epoch) for r in found for e in r.epochs] == bumped
    targets = [e.at_ms for e in history if e.type is EntryType.TARGET_ASSIGNMENT_COMPUTED]
    of_each = [
        {r.began_ms + e.target_after_ms for e in r.epochs if e.target_after_ms is not None} for r in found
    ]
    assert [at_ms for times in of_each for at_ms in times] == targets
    assert all(len(times) <= 1 for times in of_each)
    assert all(e.cause.kind is not CauseKind.UNKNOWN for r in found for e in r.epochs)
    assert all(r.outcome is not RebalanceOutcome.UNKNOWN for r in found[:-1])


def check_moves(found: list[Rebalance], group: object) -> None:
    """Check each member's gains and losses in each rebalance. Its last number of partitions is the group's."""
    has: dict[str, int] = {}
    for moves in (r.moves for r in found if r.moves is not None):
        assert moves.needless is None
        for m in moves.members:
            assert m.after - m.before == sum(map(len, m.gained.values())) - sum(map(len, m.lost.values()))
            has[m.member_id] = m.after
    if isinstance(group, ShareGroup) and found and found[-1].moves is not None:
        assert {m: sum(map(len, of.assigned.values())) for m, of in group.members.items()} == {
            m: number for m, number in has.items() if m in group.members
        }


def check_partitions(shares: SharePartitionStates, group: ShareGroup) -> None:
    told = {
        (str(one.task), one.is_deletion, one.since_ms, p)
        for one in shares.asked
        if one.is_open
        for p in flat(one.partitions)
    }
    asked = {
        (task.task.partition("@")[0], task.kind == "delete", task.asked_at_ms, p)
        for task in open_tasks(group)
        for topic in task.topics
        for p in flat({topic.topic_name: topic.partitions})
    }
    assert told == asked
    assert shares.initialized == sum(len(topic.partitions) for topic in group.initialized.values())
