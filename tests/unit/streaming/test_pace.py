"""The pace of clock records: when it may be slow, and what makes it fast again."""

import threading
import time

import pytest

from streaming.service.clock.pace import BATCH_RECORDS, BETWEEN_DEADLINES_MS, DeadlinePace, MembersPace

INTERVAL_MS, REST_INTERVAL_MS, QUIET_S = 100, 2_000, 3.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> MembersPace:
    """Return the pace of a topic of two partitions; a batch has read all of it: ten and twenty records."""
    pace = MembersPace(2, INTERVAL_MS, rest_interval_ms=REST_INTERVAL_MS, quiet_s=QUIET_S, now_s=clock)
    pace.appended([9, 19])
    pace.batch_read({0: 10, 1: 20})
    return pace


def rest(pace: MembersPace, clock: Clock) -> None:
    """Let no request come for a while, while no group has a member."""
    assert not pace.needs_members_check(), "the start and a batch with a request count as requests"
    clock.now_s += QUIET_S + 1
    assert pace.needs_members_check()
    assert not pace.is_resting()
    pace.no_member(clock.now_s)
    assert pace.is_resting()
    assert not pace.needs_members_check(), "nothing is left to prove"
    clock.now_s += 1


@pytest.mark.parametrize(
    ("appended", "read", "rests"),
    [
        ([10, 20], {0: 11, 1: 21}, True),
        # A request is between two clock records, or in a batch before the next one.
        ([10, 21], {}, False),
        (None, {0: 11}, False),
    ],
    ids=["clock records", "a request appended", "a request read"],
)
def test_only_client_requests_end_the_slow_pace_of_clock_records(
    pace: MembersPace, clock: Clock, appended: list[int] | None, read: dict[int, int], rests: bool
) -> None:
    rest(pace, clock)
    if appended is not None:
        pace.appended(appended)
    pace.batch_read(read)
    assert pace.is_resting() == rests


def test_slow_pace_does_not_start_while_a_request_waits_for_its_batch(
    pace: MembersPace, clock: Clock
) -> None:
    pace.appended([11, 20])  # a request has offset 10
    pace.appended([12, 21])
    pace.batch_read({0: 10, 1: 22})
    clock.now_s += 60
    assert not pace.needs_members_check(), "the group of the request may get a member"
    pace.batch_read({0: 13, 1: 22})
    assert not pace.needs_members_check(), "the view of the group is written, but a proof may be on its way"
    rest(pace, clock)


def test_unread_request_of_the_last_coordinator_prevents_the_slow_pace(clock: Clock) -> None:
    pace = MembersPace(1, INTERVAL_MS, now_s=clock)
    pace.appended([500])
    clock.now_s += 60
    assert not pace.needs_members_check()
    pace.batch_read({0: 501})
    rest(pace, clock)


def test_request_ends_a_pause_of_clock_records_at_once() -> None:
    pace = MembersPace(1, INTERVAL_MS, rest_interval_ms=60_000, quiet_s=0)
    pace.appended([0])
    pace.batch_read({0: 1})
    pace.no_member(time.monotonic())
    assert pace.is_resting()
    threading.Timer(0.05, pace.batch_read, [{0: 2}]).start()
    began_s = time.monotonic()
    pace.wait(0)
    assert time.monotonic() - began_s < 30


AT_MS = 1_000_000
"""The broker's time of the last clock record."""


def announced(*deadlines_ms: int, knows: bool = True) -> DeadlinePace:
    pace = DeadlinePace(INTERVAL_MS, lambda: knows)
    for at_ms in deadlines_ms:
        pace.deadline_at(at_ms)
    return pace


def waited_ms(pace: DeadlinePace) -> float:
    began_s = time.monotonic()
    pace.wait(AT_MS)
    return (time.monotonic() - began_s) * 1000


@pytest.mark.parametrize(
    ("pace", "least_ms", "attests"),
    [
        (announced(), BETWEEN_DEADLINES_MS, False),
        (announced(AT_MS + 60_000), BETWEEN_DEADLINES_MS, False),
        (announced(AT_MS + 60_000, AT_MS + 30, AT_MS + 90), 30, False),
        (announced(knows=False), INTERVAL_MS, True),
        (announced(AT_MS), 0, True),
        (announced(AT_MS + 1), 1, False),
    ],
)
def test_next_clock_record_comes_at_the_next_deadline(
    pace: DeadlinePace, least_ms: int, attests: bool
) -> None:
    assert waited_ms(pace) >= least_ms
    assert pace.needs_second_round(AT_MS) is attests


def test_deadline_announced_during_a_pause_of_clock_records_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.service.clock.pace.BETWEEN_DEADLINES_MS", 60_000)
    pace = announced()
    threading.Timer(0.05, pace.deadline_at, [AT_MS + 1]).start()
    assert waited_ms(pace) < 30_000


def test_clock_records_for_deadlines_are_an_interval_apart(clock: Clock) -> None:
    pace = DeadlinePace(INTERVAL_MS, lambda: True, now_s=clock)
    pace.deadline_at(AT_MS)
    pace.wait(AT_MS)  # returns, because the clock says that the time has come
    clock.now_s += 0.001
    assert pace.needs_second_round(AT_MS)
    pace.deadline_at(AT_MS + 1)
    assert pace._next_round_s(clock.now_s, AT_MS) == pytest.approx(clock.now_s - 0.001 + INTERVAL_MS / 1_000)
    assert not pace.needs_second_round(AT_MS), "the deadline has not come"
    assert pace.needs_second_round(AT_MS + 1)


def test_later_deadline_is_kept_while_an_earlier_one_is_pending(clock: Clock) -> None:
    pace = DeadlinePace(INTERVAL_MS, lambda: True, now_s=clock)
    for at_ms in (AT_MS, AT_MS + 60):
        pace.deadline_at(at_ms)
    assert pace.needs_second_round(AT_MS)
    assert pace._next_round_s(clock.now_s, AT_MS) == pytest.approx(clock.now_s + 0.061)
    assert pace.needs_second_round(AT_MS + 60)


def test_ticker_writes_enough_records_for_a_batch_only_if_one_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streaming.service.clock.pace.BETWEEN_DEADLINES_MS", 60_000)
    pace = announced()
    assert pace.records() == 1
    pace.want_batch()
    assert waited_ms(pace) < 30_000
    assert pace.records() == BATCH_RECORDS
    assert pace.records() == BATCH_RECORDS, "the first round has failed"
    pace.appended([7])
    assert pace.records() == 1
    assert announced(knows=False).records() * 1_000 / INTERVAL_MS >= BATCH_RECORDS, (
        "clients wait for the query"
    )
