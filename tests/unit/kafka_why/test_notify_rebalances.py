"""Which rebalances have ended: each is found once, however the entries come, and whatever is forgotten."""

from collections.abc import Iterable, Sequence
from functools import cache
from random import Random

import pytest

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.notify import events as module
from kafka_why.notify.events import Ended, EndedRebalances, Rebalances
from kafka_why.notify.messages import Filter, Outbox, Position
from kafka_why.stored_groups import LogPart, StoredGroups
from kafka_why.stored_log import LogWalk, OpenTransactions
from kafka_why.topic_reader import NamesById
from kafka_why.why.model import CauseKind, Rebalance
from kafka_why.why.report import analyze
from state.config import CoordinatorConfig
from tests.harness.histories import SCENARIOS, Recorder, of_random_log, of_scenario
from tests.harness.observed_log import real_rows
from tests.unit.kafka_why.test_why_offsets_topic import batch
from tests.unit.kafka_why.why_story import STORY

NAMES = [path.stem for path in sorted(SCENARIOS.glob("*.txt"))]
Name = tuple[str, int | None, int | None]


def name(r: Rebalance) -> Name:
    return r.incarnation, r.ended_ms, r.generation_to


def all_ended(history: Sequence[HistoryEntry]) -> list[Name]:
    """Return what `why` says of the whole history."""
    return [name(r) for r in analyze(history).rebalances if r.ended_ms is not None] if history else []


def found(rebalances: Rebalances, history: Iterable[HistoryEntry], *, is_sent: bool = False) -> list[Ended]:
    """Take these entries at once, and look."""
    for entry in history:
        rebalances.add(entry, is_sent=is_sent)
    return rebalances.take_ended()


def found_one_by_one(history: Iterable[HistoryEntry]) -> list[Ended]:
    rebalances = Rebalances()
    return [one for entry in history for one in found(rebalances, [entry])]


def in_pieces(history: Sequence[HistoryEntry], random: Random) -> list[list[HistoryEntry]]:
    """Return the history cut at random. Each piece begins with entries that were in the one before."""
    pieces, at = [], 0
    while at < len(history):
        end = at + random.randint(1, 8)
        pieces.append(list(history[max(at - random.choice((0, 0, 3)), 0) : end]))
        at = end
    return pieces


@cache
def histories() -> list[tuple[str, list[HistoryEntry]]]:
    told = [(scenario, of_scenario(scenario)) for scenario in NAMES]
    for seed in range(20):
        told += of_random_log(seed, 120, CoordinatorConfig()).items()
    found = [(of, history) for of, history in told if history]
    assert len(found) > len(NAMES)
    return found


@pytest.mark.examples
@pytest.mark.parametrize("kept_entries", [0, module.KEPT_ENTRIES])
def test_each_rebalance_is_found_once_for_any_split_of_its_entries(
    kept_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_ENTRIES", kept_entries)
    number = 0
    for seed, (of, history) in enumerate(histories()):
        random, rebalances = Random(seed), Rebalances()
        ended = [one for piece in in_pieces(history, random) for one in found(rebalances, piece)]
        assert [name(one.rebalance) for one in ended] == all_ended(history), of
        number += len(ended)
    assert number > 300


@pytest.mark.examples
def test_restart_at_any_entry_finds_the_remaining_rebalances() -> None:
    """The entries before the position say what was before, and what they ended is not found again."""
    for seed, (of, history) in enumerate(histories()):
        at = Random(seed).randint(0, len(history))
        before = [name(one.rebalance) for one in found(Rebalances(), history[:at])]
        rebalances = Rebalances()
        assert found(rebalances, history[:at], is_sent=True) == []
        after = [name(one.rebalance) for one in found(rebalances, history[at:])]
        assert before + after == all_ended(history), (of, at)


def test_notified_rebalance_equals_that_of_why() -> None:
    """With its cause, its members' names and what moved: the entries of earlier rebalances are kept."""
    history = Recorder().play(*STORY)
    ended = found_one_by_one(history)
    expected = [r for r in analyze(history).rebalances if r.ended_ms is not None]
    assert [(one.rebalance.cause, one.rebalance.moves) for one in ended] == [
        (r.cause, r.moves) for r in expected
    ]
    (expired,) = [one for one in ended if one.rebalance.cause.kind is CauseKind.SESSION_TIMEOUT]
    assert expired.names.of(expired.rebalance.cause.member_ids[0]) == "worker-3"


@pytest.mark.examples
@pytest.mark.parametrize("entries", [1, 2, 7])
def test_rebalance_with_an_evicted_start_is_found_once(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUP_ENTRIES", entries)
    for of, history in histories():
        ended = [name(one.rebalance) for one in found_one_by_one(history)]
        assert len(set(ended)) == len(ended), of
    story = Recorder().play(*STORY)
    assert [name(one.rebalance) for one in found_one_by_one(story)] == all_ended(story)


def test_groups_with_the_oldest_rebalance_are_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 40)
    rebalances = Rebalances()
    for number in range(20):
        commands = [f"join m{number} api=3 group=g{number}", "at 4s", f"sync m{number} group=g{number}"]
        history = [entry for entry in Recorder().play(*commands) if entry.group_id == f"g{number}"]
        assert len(found(rebalances, history)) == 1
        assert sum(len(group.entries) for group in rebalances._groups.values()) <= 40
    assert list(rebalances._groups)[-1] == "g19"


@pytest.mark.parametrize("told", range(1, 5))
def test_rebalance_after_the_position_is_notified_despite_equal_timestamps(told: int) -> None:
    """Two batches of a group can have one time, and notify can end between them."""
    generations = [row for row in real_rows() if row.key[:2] == b"\0\2" and b"classic" in row.key]
    rows = [row._replace(partition=0, offset=n, at_ms=5_000) for n, row in enumerate(generations)]
    part = LogPart(0, len(rows), OpenTransactions())
    for one in LogWalk(0, len(rows), b"").batches(b"".join(batch([row]) for row in rows)):
        part.take(one)
    (news,) = StoredGroups(NamesById(dict)).append(0, part)
    outbox = Outbox()
    ended = EndedRebalances(outbox, Filter(), lambda _: None, ())
    ended.add_first([news], {0: Position(told, 5_000)}, since_ms=0)
    assert ended.put({})
    generation_of = [int(message.id.rpartition(":")[2]) for message in outbox.head(99)]
    assert generation_of == list(range(told, len(rows)))
