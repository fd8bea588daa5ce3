"""When clock records may be rare, and what makes them frequent again."""

import threading
import time

import pytest

from streaming.service.clock.pace import Pace

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
def pace(clock: Clock) -> Pace:
    """Return the pace of a topic of two partitions; a batch has read all of it: ten and twenty records."""
    pace = Pace(2, INTERVAL_MS, rest_interval_ms=REST_INTERVAL_MS, quiet_s=QUIET_S, now_s=clock)
    pace.appended([9, 19])
    pace.batch_read({0: 10, 1: 20})
    return pace


def rest(pace: Pace, clock: Clock) -> None:
    """No request comes for a while, and no group has a member."""
    clock.now_s += QUIET_S + 1
    assert pace.needs_members_check()
    pace.no_member(clock.now_s)
    assert pace.is_resting()
    clock.now_s += 1


def test_clock_records_are_frequent_until_all_groups_are_empty(pace: Pace, clock: Clock) -> None:
    assert not pace.needs_members_check(), "the start counts as a request"
    clock.now_s += QUIET_S + 1
    assert pace.needs_members_check()
    assert not pace.is_resting()
    pace.no_member(clock.now_s)
    assert pace.is_resting()
    assert not pace.needs_members_check(), "nothing is left to prove"


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
def test_request_ends_the_slow_pace_but_own_clock_records_do_not(
    pace: Pace, clock: Clock, appended: list[int] | None, read: dict[int, int], rests: bool
) -> None:
    rest(pace, clock)
    if appended is not None:
        pace.appended(appended)
    pace.batch_read(read)
    assert pace.is_resting() == rests


def test_slow_pace_does_not_start_while_a_request_waits_for_its_batch(pace: Pace, clock: Clock) -> None:
    pace.appended([11, 20])  # a request has offset 10
    pace.appended([12, 21])
    pace.batch_read({0: 10, 1: 22})
    clock.now_s += 60
    assert not pace.needs_members_check(), "the group of the request may get a member"
    pace.batch_read({0: 13, 1: 22})
    assert not pace.needs_members_check(), "the view of the group is written, but a proof may be on its way"
    rest(pace, clock)


def test_unread_request_of_the_last_coordinator_prevents_the_slow_pace(clock: Clock) -> None:
    pace = Pace(1, INTERVAL_MS, now_s=clock)
    pace.appended([500])
    clock.now_s += 60
    assert not pace.needs_members_check()
    pace.batch_read({0: 501})
    rest(pace, clock)


def test_request_ends_a_pause_at_once() -> None:
    pace = Pace(1, INTERVAL_MS, rest_interval_ms=60_000, quiet_s=0)
    pace.appended([0])
    pace.batch_read({0: 1})
    pace.no_member(time.monotonic())
    assert pace.is_resting()
    threading.Timer(0.05, pace.batch_read, [{0: 2}]).start()
    began_s = time.monotonic()
    pace.wait()
    assert time.monotonic() - began_s < 30
