# ruff: noqa: E501 - the report is as wide as on the terminal
"""`why` of a share group. Rows SP25 to SP28."""

from datetime import UTC
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.why.model import CauseKind, Rebalance, RebalanceOutcome, SharePartitionStates
from kafka_why.why.reconciling import flat
from kafka_why.why.report import Report, report
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from state.config import CoordinatorConfig
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup
from state.timeline import Timeline
from tests.harness.common import kafka_effects
from tests.harness.examples import examples
from tests.harness.histories import Recorder
from tests.harness.random_log import GROUPS
from tests.harness.share_log import ShareLog

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


def reported(*commands: str, now_ms: int | None = None) -> Report:
    history = Recorder().play(*commands)
    return report("g", history, history[-1].at_ms if now_ms is None else now_ms)


def text_of(*commands: str) -> str:
    return f"{report_text(reported(*commands), Clock(UTC))}\n"


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


def rebalances_of(*commands: str) -> list[Rebalance]:
    return reported("topics orders=4", "at 0s", "share A e0", "at 20ms", "init watcher", *commands).rebalances


@pytest.mark.parametrize(
    ("commands", "kind", "reason", "client"),
    [
        (
            ("at 1s", "share A e2"),
            CauseKind.PARTITIONS_INITIALIZED,
            "4 partitions ready 20 ms after the request: orders 0-3",
            None,
        ),
        (
            ("at 1s", "share A e2", "at 2s", "share A e3 names[]"),
            CauseKind.SUBSCRIPTION_CHANGED,
            "member A no longer subscribes to orders",
            "A",
        ),
        (
            ("at 1s", "share A e2", "share B e0", "share B -1"),
            CauseKind.MEMBER_LEFT,
            "member B was removed: left the group",
            "B",
        ),
        (
            ("at 1s", "share A e2", "share B e0", "at 40s", "share A e3", "at 50s"),
            CauseKind.SESSION_TIMEOUT,
            "member B was removed: no heartbeat within the session timeout of 45000 ms",
            "B",
        ),
        (
            ("at 1s", "share A e2", "topics orders=6", "topic-metadata watcher", "at 5s", "share A e3"),
            CauseKind.TOPICS_CHANGED,
            "in the cluster: orders has 6 partitions instead of 4",
            None,
        ),
        (
            ("at 1s", "share A e2", "topics orders=none", "topic-metadata watcher", "at 5s", "share A e3"),
            CauseKind.TOPICS_CHANGED,
            "in the cluster: orders was deleted",
            None,
        ),
    ],
)
def test_epoch_cause_of_each_share_group_change_is_reported(
    commands: tuple[str, ...], kind: CauseKind, reason: str, client: str | None
) -> None:
    change = rebalances_of(*commands)[-1].epochs[-1].cause
    assert (change.kind, change.reason, change.member_ids) == (kind, reason, [client] if client else [])


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
    asked = reported(*begun, "at 3s", "init watcher error=31", "at 4s", "share A e2").shares
    assert asked is not None
    assert [(one.since_ms, one.error_code, one.is_open) for one in asked.asked] == [(4_000, None, True)]


logs = st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 200))


def played(log: tuple[int, int]) -> list[tuple[list[HistoryEntry], object]]:
    """Return the histories of a random log's groups, and the groups at their ends."""
    seed, moves = log
    config = CoordinatorConfig()
    world = ShareLog(seed, config)
    world.play(moves)
    found: list[tuple[list[HistoryEntry], object]] = []
    for group_id in GROUPS:
        timeline = Timeline(group_id, None, config)
        for row in world.rows:
            if row.request.group_id == group_id:
                timeline.apply(row)
        history = [entry for effects in kafka_effects(timeline.drain_effects()) for entry in effects.history]
        if history:
            found.append((history, timeline.group))
    return found


@examples(60)
@given(logs)
def test_epochs_moves_and_states_of_partitions_are_reported_as_they_were(log: tuple[int, int]) -> None:
    for history, group in played(log):
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
