"""The last polls of members in reports of `why`, from client telemetry: certain and only reported ones."""

from datetime import UTC
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.telemetry import LAST_HEARTBEAT, LAST_POLL, POLL_IDLE_RATIO
from kafka_why.why.client_telemetry import Push, Telemetry
from kafka_why.why.model import ClientRole
from kafka_why.why.report import Report, analyze, report_of
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from tests.harness.histories import Recorder, of_scenario
from tests.unit.kafka_why.why_story import BEGIN_MS, END_MS, STORY

# In STORY: worker-3 expires at 16 s, worker-4 leaves at 58 s because its poll timeout has expired, and while
# #2 is under way, from 16 s on, worker-2 comes 6.5 s late.
LEFT_MS, EXPIRED_MS = BEGIN_MS + 58_000, BEGIN_MS + 16_000
POLL_INTERVAL_MS = 10_000


def member(history: list[HistoryEntry], name: str) -> str:
    added = (e.member_id for e in history if e.type is EntryType.MEMBER_ADDED and e.member_id)
    return next(member_id for member_id in added if member_id.startswith(name))


@cache
def story() -> list[HistoryEntry]:
    return Recorder().play(*STORY)


def told(name: str, *pushes: Push, interval_ms: int | None = None) -> Report:
    """Return the report on STORY, in which this member's client has pushed these metrics."""
    history = story()
    member_id = member(history, name)
    intervals = {} if interval_ms is None else {member_id: interval_ms}
    telemetry = Telemetry({member_id: sorted(pushes)}, intervals)
    return report_of("g", analyze(history, telemetry=telemetry), END_MS)


def lines(report: Report) -> list[str]:
    """Return what the text says of clients."""
    text = report_text(report, Clock(UTC)).splitlines()
    return [line.strip().removeprefix("client").strip() for line in text if line.startswith("    client ")]


def push(at_ms: int, poll: float | None = None, beat: float | None = None, idle: float | None = None) -> Push:
    said = {LAST_POLL: poll, LAST_HEARTBEAT: beat, POLL_IDLE_RATIO: idle}
    return Push(at_ms, {name: value for name, value in said.items() if value is not None})


WITHIN, AGAIN = push(LEFT_MS - 4_000, poll=6), push(LEFT_MS + 5_000, poll=1)


@pytest.mark.parametrize(
    ("name", "pushes", "interval_ms", "expected"),
    [
        # A client that leaves because of its poll timeout has not polled after a push within it.
        (
            "worker-4",
            [WITHIN],
            POLL_INTERVAL_MS,
            "its last poll was 10 s before; max.poll.interval.ms is 10 s",
        ),
        ("worker-4", [WITHIN], None, "4 s before it reported: its last poll was 6 s ago"),
        (
            "worker-4",
            [push(LEFT_MS - 11_000, poll=6)],
            POLL_INTERVAL_MS,
            "11 s before it reported: its last poll was 6 s ago; max.poll.interval.ms is 10 s",
        ),
        # One that has polled again says nothing certain.
        ("worker-4", [AGAIN], None, None),
        (
            "worker-4",
            [push(LEFT_MS - 30_000, poll=2, beat=1, idle=0.3), AGAIN],
            None,
            "30 s before it reported: its last poll was 2 s ago, its last heartbeat 1 s ago",
        ),
        # One that expired has said nothing since, or says when it goes on how long it stood still.
        (
            "worker-3",
            [push(EXPIRED_MS - 12_000, poll=0, beat=2)],
            None,
            "12 s before it reported: its last poll was 0 s ago, its last heartbeat 2 s ago",
        ),
        (
            "worker-3",
            [push(EXPIRED_MS + 60_000, poll=75, beat=71)],
            None,
            "its last poll was 15 s before, its last heartbeat 11 s before",
        ),
        # librdkafka's say which part of their time was in poll.
        (
            "worker-3",
            [push(EXPIRED_MS - 4_000, idle=0.02)],
            None,
            "4 s before it reported: 2% of its time was in poll()",
        ),
        # Others wait for worker-2.
        (
            "worker-2",
            [push(EXPIRED_MS + 5_000, poll=45)],
            None,
            "worker-2: its last poll was 40 s before the rebalance began",
        ),
        ("worker-2", [push(EXPIRED_MS + 5_000, poll=0)], None, None),
        ("worker-2", [push(EXPIRED_MS - 5_000, poll=30)], None, None),
    ],
)
def test_report_states_the_last_poll_shown_by_client_telemetry(
    name: str, pushes: list[Push], interval_ms: int | None, expected: str | None
) -> None:
    assert lines(told(name, *pushes, interval_ms=interval_ms)) == ([] if expected is None else [expected])


def test_pushes_of_a_member_removed_in_a_rebalance_are_reported() -> None:
    history = of_scenario("timeline_3_follower_never_rejoins")
    follower = member(history, "follower")
    removed = next(e for e in history if e.type is EntryType.MEMBER_REMOVED and e.member_id == follower)
    telemetry = Telemetry({follower: [push(removed.at_ms + 1_000, poll=31)]})
    report = report_of("g", analyze(history, telemetry=telemetry), 60_000)
    assert lines(report) == ["follower: its last poll was 30 s before it was removed"]


@pytest.mark.parametrize(("poll_s", "is_told"), [(0, False), (8, False), (9, True), (300, True)])
def test_late_poll_of_a_member_that_leaves_is_reported(poll_s: int, is_told: bool) -> None:
    history = Recorder().play(
        "config group.initial.rebalance.delay.ms=0",
        "join a api=3",
        "sync a assign=@a:t-0",
        "at 5s",
        "leave a reason='the consumer is being closed'",
    )
    left = next(e for e in history if e.type is EntryType.MEMBER_REMOVED)
    assert left.member_id is not None
    telemetry = Telemetry(
        {left.member_id: [push(left.at_ms, poll=poll_s)]}, {left.member_id: POLL_INTERVAL_MS}
    )
    report = report_of("g", analyze(history, telemetry=telemetry), left.at_ms)
    assert len(lines(report)) == is_told


@given(st.data())
def test_last_poll_reported_as_certain_is_exact_to_a_second(data: st.DataObject) -> None:
    """A member polls at random times, and its client pushes at random times the whole seconds since."""
    polls = sorted(data.draw(st.lists(st.integers(BEGIN_MS, END_MS), min_size=1, max_size=8)))
    pushes_ms = sorted(data.draw(st.lists(st.integers(polls[0], END_MS), max_size=8)))
    pushes = [push(ms, poll=(ms - max(p for p in polls if p <= ms)) // 1_000) for ms in pushes_ms]
    report = told(data.draw(st.sampled_from([f"worker-{n}" for n in (1, 2, 3, 4)])), *pushes)
    for r in report.rebalances:
        for said in r.clients_said:
            if said.is_certain:
                removed = {gone.member_id: gone.after_ms for gone in r.removed}
                after_ms = removed[said.member_id] if said.about is ClientRole.REMOVED else 0
                moment_ms = r.began_ms + after_ms
                true_ms = moment_ms - max(p for p in polls if p <= moment_ms)
                assert said.last_poll_before_ms is not None
                assert abs(said.last_poll_before_ms - true_ms) <= 1_000
