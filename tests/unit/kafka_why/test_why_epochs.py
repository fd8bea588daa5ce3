"""The report on a group of the consumer protocol: epochs, what each member gives up, waits for and gets."""

from datetime import UTC

import pytest

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.why.model import AwaitedPartitions, CauseKind, Rebalance, RebalanceOutcome
from kafka_why.why.report import Report, report
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from tests.harness.histories import Recorder

SECOND = "config group.consumer.assignment.interval.ms=1000"

MORNING = (
    SECOND,
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


def test_report_covers_conversions_both_ways() -> None:
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


def test_changed_patterns_and_changed_matches_are_told_apart() -> None:
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
