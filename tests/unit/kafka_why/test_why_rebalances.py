"""A history as rebalances: causes and phases, and reports on histories with any damage."""

from datetime import UTC
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.why.model import CauseKind, Rebalance, RebalanceOutcome
from kafka_why.why.rebalances import rebalances
from kafka_why.why.report import analyze, report
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from state.config import CoordinatorConfig
from tests.harness.examples import examples
from tests.harness.histories import SCENARIOS, Recorder, of_random_log, of_scenario
from tests.unit.kafka_why.why_story import STORY

logs = st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 200), st.sampled_from((0, 3_000)))


def histories(log: tuple[int, int, int]) -> list[list[HistoryEntry]]:
    seed, length, delay_ms = log
    config = CoordinatorConfig(group_initial_rebalance_delay_ms=delay_ms)
    return [history for history in of_random_log(seed, length, config).values() if history]


def begin(history: list[HistoryEntry]) -> list[HistoryEntry]:
    return [event for event in history if event.type is EntryType.PREPARING_REBALANCE]


@examples(60)
@given(logs)
def test_every_rebalance_is_reported_once_with_its_cause_phases_and_moves(log: tuple[int, int, int]) -> None:
    for history in histories(log):
        analysis = analyze(history)
        assert [(r.began_ms, r.cause.reason, r.generation_from) for r in analysis.rebalances] == [
            (event.at_ms, event.reason, event.generation) for event in begin(history)
        ]
        for rebalance in analysis.rebalances:
            assert rebalance.cause.kind is not CauseKind.UNKNOWN
            assert rebalance.outcome is not RebalanceOutcome.UNKNOWN
            check_phases(rebalance)
            check_moves(rebalance)
        for spans in (analysis.states, *(lane.spans for lane in analysis.lanes)):
            assert all(span.to_ms is None or span.from_ms < span.to_ms for span in spans)
            assert all(a.to_ms is not None and a.to_ms <= b.from_ms for a, b in pairwise(spans))


def check_phases(r: Rebalance) -> None:
    """The phases add up to the duration."""
    if r.ended_ms is None:
        assert (r.outcome, r.duration_ms) == (RebalanceOutcome.UNDER_WAY, None)
        return
    assert r.preparing_ms is not None
    assert r.duration_ms == r.ended_ms - r.began_ms == r.preparing_ms + (r.completing_ms or 0)
    assert (r.completing_ms is None) == (r.outcome is RebalanceOutcome.EMPTY)
    assert r.generation_to == r.generation_from + 1
    assert all(0 <= joined.after_ms <= r.preparing_ms for joined in r.joined)


def check_moves(r: Rebalance) -> None:
    """Moves conserve partitions."""
    if r.moves is None:
        return
    lost, gained = (
        sum(len(numbers) for m in r.moves.members for numbers in getattr(m, name).values())
        for name in ("lost", "gained")
    )
    assert sum(m.after - m.before for m in r.moves.members) == gained - lost
    assert r.moves.needless is not None
    assert r.moves.needless <= r.moves.moved <= r.moves.partitions
    assert r.idle is not None and r.ended_ms is not None
    assert r.idle.longest_ms <= r.ended_ms - r.began_ms
    assert r.idle.partition_ms <= r.idle.partitions * r.idle.longest_ms


@examples(60)
@given(logs, st.integers(0, 2**32 - 1))
def test_damaged_history_is_reported_without_an_error(log: tuple[int, int, int], damage: int) -> None:
    """Any entries may be missing, duplicated, or late."""
    random = Random(damage)
    for history in histories(log):
        known = history[random.randrange(len(history)) if random.random() < 0.5 else 0 :]
        damaged = [event for event in known if random.random() > 0.2] or known
        damaged += random.choices(damaged, k=3)
        found = report("g", damaged, damaged[-1].at_ms + 1_000, random.choice((None, known[0].at_ms)))
        assert report_text(found, Clock(UTC)).startswith("Group g ")
        analyze(damaged)
        first_of = {event.seq: event for event in reversed(damaged)}
        openings = begin(list(first_of.values())) if len({e.incarnation for e in damaged}) == 1 else []
        if openings and found.since_ms is None:
            whole = [r for r in found.rebalances if not r.beginning_lost]
            assert [r.began_ms for r in whole] == sorted(event.at_ms for event in openings)


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_every_scenario_has_a_report_with_known_causes_and_all_epochs(path: Path) -> None:
    if not (history := of_scenario(path.stem)):
        return
    found = report("g", history, history[-1].at_ms)
    changes = [change for r in found.rebalances for change in r.epochs]
    assert [change.epoch for change in changes] == [
        event.generation for event in history if event.type is EntryType.GROUP_EPOCH_BUMPED
    ]
    causes = [r.cause for r in found.rebalances] + [change.cause for change in changes]
    assert CauseKind.UNKNOWN not in {cause.kind for cause in causes}
    random = Random(path.stem)
    for told in (history, history[random.randrange(len(history)) :], random.choices(history, k=len(history))):
        assert report_text(report("g", told, history[-1].at_ms), Clock(UTC))
        analyze(told)


def kinds_of(name: str) -> list[CauseKind]:
    return [r.cause.kind for r in rebalances(of_scenario(name))]


@pytest.mark.parametrize(
    ("scenario", "kind"),
    [
        ("timeline_2_follower_dies", CauseKind.SESSION_TIMEOUT),
        ("timeline_3_follower_never_rejoins", CauseKind.LEADER_REJOINED),
        ("timeline_4_static_member_absent", CauseKind.SYNC_TIMEOUT),
        ("too_large", CauseKind.REQUEST_TOO_LARGE),
        ("timeline_6_everyone_leaves", CauseKind.MEMBER_LEFT),
        ("static_member_changes_protocol", CauseKind.STATIC_MEMBER_RETURNED),
        ("join_again", CauseKind.METADATA_CHANGED),
    ],
)
def test_scenario_has_a_rebalance_of_its_kind(scenario: str, kind: CauseKind) -> None:
    assert kind in kinds_of(scenario)


def test_cooperative_rebalance_stops_only_moved_partitions() -> None:
    history = Recorder().play(
        "config group.initial.rebalance.delay.ms=0",
        "join a api=3 protocols=cooperative-sticky",
        "sync a assign=@a:t-0+t-1",
        "at 5s",
        "join b api=3 protocols=cooperative-sticky",
        "at 7s",
        "join a id=@a protocols=cooperative-sticky:owned",
        "sync a assign=@a:t-0",
        "at 8s",
        "join a id=@a",
        "at 9s",
        "join b id=@b",
        "sync a assign=@a:t-0,@b:t-1",
    )
    _, revoked, given_over = rebalances(history)
    assert revoked.idle is not None and given_over.idle is not None
    assert (revoked.idle.partitions, given_over.idle.partitions, given_over.idle.longest_ms) == (0, 1, 1_000)
    assert revoked.moves is not None and given_over.moves is not None
    assert (revoked.moves.moved, revoked.moves.released) == (0, 1)
    assert (given_over.moves.moved, given_over.moves.needless) == (1, 0)


def test_a_static_member_keeps_its_partitions_under_its_new_id() -> None:
    history = Recorder().play(
        "config group.initial.rebalance.delay.ms=0",
        "join s instance=i1",
        "sync s assign=@s:t-0+t-1",
        "at 5s",
        "join s instance=i1 id=",
        "at 6s",
        "join m api=3",
        "join s id=@s.2",
        "sync s assign=@s.2:t-0,@m:t-1",
    )
    _, second = rebalances(history)
    assert second.moves is not None
    assert {name_of(m.member_id): (m.before, m.after) for m in second.moves.members} == {
        "i1": (2, 1),
        "m": (0, 1),
    }
    members = analyze(history).lanes
    assert len(members) == 2


def test_gap_in_the_history_hides_moves() -> None:
    history = Recorder().play(*STORY)
    stable = [event.seq for event in history if event.type is EntryType.STABLE]
    found = rebalances([event for event in history if event.seq != stable[1]])
    assert [r.outcome for r in found] == [
        RebalanceOutcome.STABLE,
        RebalanceOutcome.UNKNOWN,
        RebalanceOutcome.STABLE,
        RebalanceOutcome.UNDER_WAY,
    ]
    assert [r.moves is None for r in found] == [False, True, True, True]


def name_of(member_id: str | None) -> str | None:
    """Return the client id or instance id without the UUID behind it."""
    return None if member_id is None else member_id[:-37]
