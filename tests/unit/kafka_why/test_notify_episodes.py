"""Notifications of problems: one when a problem begins and one when it ends, also across a restart."""

from collections.abc import Iterable, Sequence
from functools import cache
from random import Random

import pytest
from kafka import TopicPartition
from structlog.testing import capture_logs

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.lag.definitions import STUCK_MS, LogBounds
from kafka_why.notify import events as module
from kafka_why.notify.events import EndedRebalance, RebalanceFinder, RebalanceMessages, restart_position
from kafka_why.notify.messages import ALARM, KINDS, Filter, Message, Outbox, Position, Status
from kafka_why.notify.problems import Episodes, Problem, Sources, alarm_of
from kafka_why.page.fleet import Fleet
from kafka_why.page.overview import Overview
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.stored_groups import LogPart, StoredGroups
from kafka_why.stored_log import LogWalk, OpenTransactions
from kafka_why.topic_reader import NamesById
from kafka_why.why.model import CauseKind, Rebalance
from kafka_why.why.report import analyze
from state.config import CoordinatorConfig
from tests.harness.histories import SCENARIOS, Recorder, of_random_log, of_scenario
from tests.harness.observed_log import real_rows
from tests.unit.kafka_why.page_facts import fleet_of, member, take_commit, view
from tests.unit.kafka_why.test_why_offsets_topic import batch
from tests.unit.kafka_why.why_story import STORY

STUCK = Problem("stuck", "orders", "orders", "orders-4 has no commit since 2 min 1 s", 5_000)
OFTEN = Problem("often", "orders", "orders", "6 rebalances in the last hour")
NOW_MS = 200_000
SETTLED_MS = 500_000


def episodes(*open_before: Message, least_ms: int = 0, again_ms: int | None = None) -> Episodes:
    return Episodes(
        open_before,
        settled_ms=SETTLED_MS,
        is_wanted=Filter(least_ms=least_ms).wants,
        link=lambda group_id: None if group_id is None else f"https://page/{group_id}",
        again_ms=again_ms,
    )


def look(of: Episodes, *found: Problem, now_ms: int = NOW_MS) -> list[Message]:
    return of.update(found, now_ms)


def told(messages: list[Message]) -> list[tuple[str, Status]]:
    return [(message.kind, message.status) for message in messages]


def test_problem_is_notified_once_when_it_begins_and_once_when_it_ends() -> None:
    known = episodes()
    (began,) = look(known, STUCK)
    assert (began.status, began.group, began.sentence) == (Status.BEGAN, "orders", STUCK.sentence)
    assert (began.began_ms, began.ended_ms, began.page) == (5_000, None, "https://page/orders")
    longer = STUCK._replace(sentence="orders-4 has no commit since 2 min 6 s")
    assert look(known, longer, now_ms=NOW_MS + 5_000) == []
    (ended,) = look(known, now_ms=NOW_MS + 10_000)
    assert (ended.id, ended.status, ended.ended_ms) == (began.id, Status.ENDED, NOW_MS + 10_000)
    assert ended.sentence == longer.sentence
    assert look(known, now_ms=NOW_MS + 15_000) == []


def test_problem_shorter_than_the_minimum_is_not_notified() -> None:
    known = episodes(least_ms=10_000)
    assert look(known, OFTEN) == []
    assert look(known, now_ms=NOW_MS + 5_000) == []
    assert look(known, OFTEN, now_ms=NOW_MS + 10_000) == []
    assert told(look(known, OFTEN, now_ms=NOW_MS + 20_000)) == [("often", Status.BEGAN)]
    assert told(look(known, now_ms=NOW_MS + 30_000)) == [("often", Status.ENDED)]


def test_restart_does_not_repeat_a_notification() -> None:
    (began,) = look(episodes(), STUCK)
    known = episodes(began)
    assert look(known, STUCK) == []
    (ended,) = look(known)
    assert (ended.id, ended.status) == (began.id, Status.ENDED)


def test_restarted_process_ends_no_problem_before_it_has_settled() -> None:
    """A new process calls a partition stuck only after it has seen it unchanged for long enough."""
    (began,) = look(episodes(), STUCK)
    known = episodes(began)
    assert look(known, now_ms=SETTLED_MS - 1) == []
    (ended,) = look(known, now_ms=SETTLED_MS)
    assert (ended.id, ended.status) == (began.id, Status.ENDED)


def test_lasting_problem_is_sent_again_to_receivers_that_expect_repetition() -> None:
    known = episodes(again_ms=60_000)
    (began,) = look(known, STUCK)
    assert look(known, STUCK, now_ms=NOW_MS + 59_999) == []
    (again,) = look(known, STUCK, now_ms=NOW_MS + 60_000)
    assert again == began


def test_alarm_keeps_its_identity_while_only_its_figures_change() -> None:
    once = "The replica answered 1 time differently from the query; the log has both answers"
    twice = "The replica answered 2 times differently from the query; the log has both answers"
    assert alarm_of(once) == alarm_of(twice) == "The replica answered"
    assert alarm_of("It has an alarm: the disk is full") == "It has an alarm"
    known = episodes()
    (began,) = look(known, Problem(ALARM, alarm_of(once), None, once))
    assert (began.group, began.page) == (None, None)
    assert look(known, Problem(ALARM, alarm_of(twice), None, twice)) == []


PARTITION = ("orders", 4)
LATER_MS = 10_000_000


def fleet() -> Fleet:
    """Return a fleet of three groups: one is well, one is stuck, one is quarantined."""
    made = fleet_of(
        view("well", members=[member("w")]),
        view("stuck", members=[member("w", PARTITION)]),
        view("broken", quarantined="KeyError in T5"),
    )
    take_commit(made, "stuck", PARTITION, 5)
    for number, at_ms in enumerate(range(LATER_MS - 2 * STUCK_MS, LATER_MS, 5_000)):
        made.lags.add_bounds({PARTITION: LogBounds(0, 9 + number)}, at_ms)
    return made


def sources(
    topics: ServiceTopics | None = None, read_age_s: float = 0.0, made: Fleet | None = None
) -> Sources:
    return Sources(made or fleet(), topics or ServiceTopics(), None, lambda: read_age_s)


def test_notified_problems_are_the_findings_of_the_page() -> None:
    made = fleet()
    problems = list(sources(made=made).problems(LATER_MS))
    assert {(one.kind, one.group) for one in problems} == {("stuck", "stuck"), ("quarantined", "broken")}
    lines = Overview(made).lines(LATER_MS)
    assert {one.sentence for one in problems} == {one.sentence for line in lines for one in line.findings}
    assert all(one.kind in KINDS and one.subject == one.group for one in problems)


def test_notified_alarms_are_the_findings_of_the_coordinator_page() -> None:
    topics = ServiceTopics()
    topics.apply_clock(None)
    (alarm,) = [one for one in sources(topics).problems(LATER_MS) if one.kind == "alarm"]
    assert (alarm.group, alarm.subject) == (None, "No group is coordinated")
    assert alarm.sentence == "No group is coordinated: start the coordinator, or read its log"


@pytest.mark.parametrize(
    ("kept", "found", "warning"),
    [
        (5, 5, None),
        (7, 7, None),
        (9, 9, None),
        (10, 5, "the events topic was recreated: it is read from its beginning"),
        (
            3,
            5,
            "entries of the events topic were deleted before they were read: rebalances in them are not sent",
        ),
    ],
)
def test_notify_position_outside_the_topic_is_replaced(kept: int, found: int, warning: str | None) -> None:
    with capture_logs() as logs:
        assert restart_position(
            TopicPartition("events", 0), Position(kept, 1_000), begin=5, end=9
        ) == Position(found, 1_000)
    assert [line["event"] for line in logs] == ([] if warning is None else [warning])
    assert [line.get("entries") for line in logs if kept < 5] == ([2] if kept < 5 else [])


NAMES = [path.stem for path in sorted(SCENARIOS.glob("*.txt"))]
Name = tuple[str, int | None, int | None]


def name(r: Rebalance) -> Name:
    return r.incarnation, r.ended_ms, r.generation_to


def all_ended(history: Sequence[HistoryEntry]) -> list[Name]:
    """Return what `why` says of the whole history."""
    return [name(r) for r in analyze(history).rebalances if r.ended_ms is not None] if history else []


def found(
    rebalances: RebalanceFinder, history: Iterable[HistoryEntry], *, is_sent: bool = False
) -> list[EndedRebalance]:
    """Apply these entries at once, and return the found rebalances."""
    for entry in history:
        rebalances.add(entry, is_sent=is_sent)
    return rebalances.take_ended()


def found_one_by_one(history: Iterable[HistoryEntry]) -> list[EndedRebalance]:
    rebalances = RebalanceFinder()
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
        random, rebalances = Random(seed), RebalanceFinder()
        ended = [one for piece in in_pieces(history, random) for one in found(rebalances, piece)]
        assert [name(one.rebalance) for one in ended] == all_ended(history), of
        number += len(ended)
    assert number > 300


@pytest.mark.examples
def test_restart_at_any_entry_finds_the_remaining_rebalances() -> None:
    """The entries before the position say what was before, and what they ended is not found again."""
    for seed, (of, history) in enumerate(histories()):
        at = Random(seed).randint(0, len(history))
        before = [name(one.rebalance) for one in found(RebalanceFinder(), history[:at])]
        rebalances = RebalanceFinder()
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
def test_rebalance_with_uncached_start_is_found_once(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUP_ENTRIES", entries)
    for of, history in histories():
        ended = [name(one.rebalance) for one in found_one_by_one(history)]
        assert len(set(ended)) == len(ended), of
    story = Recorder().play(*STORY)
    assert [name(one.rebalance) for one in found_one_by_one(story)] == all_ended(story)


def test_groups_with_the_oldest_rebalance_are_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 40)
    rebalances = RebalanceFinder()
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
    ended = RebalanceMessages(outbox, Filter(), lambda _: None, ())
    ended.add_first_updates([news], {0: Position(told, 5_000)}, since_ms=0)
    assert ended.put_messages({})
    generation_of = [int(message.id.rpartition(":")[2]) for message in outbox.head(99)]
    assert generation_of == list(range(told, len(rows)))
