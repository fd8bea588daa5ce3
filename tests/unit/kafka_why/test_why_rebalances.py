"""A history as rebalances: causes and phases, and reports on histories with any damage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.why.history import STAMP_MARGIN_MS, History, entries_since
from kafka_why.why.model import CauseKind, Rebalance, RebalanceOutcome
from kafka_why.why.report import Report, analyze, report
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from state.config import CoordinatorConfig
from tests.harness.examples import examples
from tests.harness.histories import SCENARIOS, Recorder, of_random_log, of_scenario
from tests.unit.kafka_why.page_facts import view
from tests.unit.kafka_why.why_story import MINUTE_MS, STORY, quiet_for, with_others
from tests.unit.state.rocketmq_story import night

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
        ("share_timeline_01_start_growth_end", CauseKind.PARTITIONS_INITIALIZED),
        ("share_timeline_01_start_growth_end", CauseKind.SESSION_TIMEOUT),
        ("share_timeline_02_lost_answers", CauseKind.MEMBER_LEFT),
        ("share_timeline_06_subscriptions", CauseKind.SUBSCRIPTION_CHANGED),
        ("share_timeline_11_deleted_topic", CauseKind.TOPICS_CHANGED),
        ("streams_topics", CauseKind.TOPICS_CHANGED),
        ("streams_settings", CauseKind.SETTINGS_CHANGED),
        ("streams_cooperative", CauseKind.SESSION_TIMEOUT),
        ("streams_endpoints", CauseKind.MEMBER_CHANGED),
    ],
)
def test_scenario_has_a_rebalance_with_its_expected_cause(scenario: str, kind: CauseKind) -> None:
    assert kind in [r.cause.kind for r in analyze(of_scenario(scenario)).rebalances]


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
    _, revoked, given_over = analyze(history).rebalances
    assert revoked.idle is not None and given_over.idle is not None
    assert (revoked.idle.partitions, given_over.idle.partitions, given_over.idle.longest_ms) == (0, 1, 1_000)
    assert revoked.moves is not None and given_over.moves is not None
    assert (revoked.moves.moved, revoked.moves.released) == (0, 1)
    assert (given_over.moves.moved, given_over.moves.needless) == (1, 0)


def test_static_member_under_a_new_id_is_shown_as_the_same_member() -> None:
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
    _, second = analyze(history).rebalances
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
    found = analyze([event for event in history if event.seq != stable[1]]).rebalances
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


@dataclass
class Partition:
    """A partition of the events topic; `read` counts the records that were read."""

    group_id: str
    records: Sequence[AnyHistoryEntry]
    stamps_ms: Sequence[int]
    read: int = 0
    begin: int = 0
    views: int = 0

    @property
    def end(self) -> int:
        return len(self.records)

    def offset_at(self, at_ms: int) -> int:
        # As in Kafka: the first record with a timestamp at or after the time, even if not in order.
        found = (offset for offset, stamp_ms in enumerate(self.stamps_ms) if stamp_ms >= at_ms)
        return next(found, self.end)

    def entries(self, first: int, end: int) -> Iterator[AnyHistoryEntry]:
        for record in self.records[first:end]:
            self.read += 1
            if record.group_id == self.group_id:
                yield record

    def view(self) -> GroupSnapshot | None:
        self.views += 1
        ours = [r for r in self.records if r.group_id == self.group_id and isinstance(r, HistoryEntry)]
        if not ours or ours[-1].type is EntryType.GROUP_DELETED:
            return None
        last = ours[-1]
        began = [
            e.at_ms
            for e in ours
            if (e.type, e.incarnation) == (EntryType.PREPARING_REBALANCE, last.incarnation)
        ]
        return view(
            self.group_id,
            incarnation=last.incarnation,
            seq=last.seq,
            at_ms=last.at_ms,
            state=last.to_state,
            state_timestamp_ms=last.at_ms,
            generation=last.generation,
            last_rebalance_at_ms=began[-1] if began else None,
        )


def comparable(part: History | list[HistoryEntry], now_ms: int, since_ms: int) -> Report:
    """Return a report without the parts that depend on how much was read: its beginning, and its notes."""
    whole = part if isinstance(part, History) else History([*part], frozenset(), from_start=True)
    ours = [entry for entry in whole.entries if isinstance(entry, HistoryEntry)]
    found = report("g", ours, now_ms, since_ms, unread=whole.unread)
    assert not any("missing" in note for note in found.notes)
    return replace(found, from_ms=0, notes=[], members=sorted(found.members))


@examples(40)
@given(st.integers(0, 2**32 - 1), st.integers(20, 200), st.randoms(use_true_random=False))
def test_recent_history_gives_the_report_of_the_whole_history(seed: int, length: int, random: Random) -> None:
    histories = of_random_log(seed, length, CoordinatorConfig())
    everything = sorted((e for h in histories.values() for e in h), key=lambda e: e.at_ms)
    stamps_ms = [e.at_ms + random.randrange(STAMP_MARGIN_MS) for e in everything]
    for group_id, history in histories.items():
        if not history:
            continue
        partition = Partition(group_id, everything, stamps_ms)
        first_ms, last_ms = history[0].at_ms, history[-1].at_ms
        since_ms = random.randint(first_ms, last_ms + STAMP_MARGIN_MS * 3)
        found = entries_since(partition, since_ms)
        now_ms = max(last_ms, since_ms) + 1_000
        assert comparable(found, now_ms, since_ms) == comparable(history, now_ms, since_ms)
        assert not found.from_start or found.unread or found.entries == history


def test_quiet_group_is_reported_from_its_view() -> None:
    history = quiet_for(2)
    records = with_others(history, before_days=20)
    partition = Partition("g", records, [record.at_ms for record in records])
    now_ms = history[-1].at_ms + 10 * MINUTE_MS
    since_ms = now_ms - 5 * MINUTE_MS
    found = entries_since(partition, since_ms)
    assert comparable(found, now_ms, since_ms) == comparable(history, now_ms, since_ms)
    assert found.entries[-1] == history[-1]
    assert partition.views == 1
    assert partition.read < 50


def test_rocketmq_group_history_is_read_in_full() -> None:
    history = night()
    records: list[AnyHistoryEntry] = [*quiet_for(1), *(replace(entry, group_id="rmq") for entry in history)]
    partition = Partition("rmq", records, [record.at_ms for record in records])
    found = entries_since(partition, history[-1].at_ms)
    assert (len(found.entries), found.from_start) == (len(history), True)
