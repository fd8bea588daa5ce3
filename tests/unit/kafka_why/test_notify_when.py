"""Which messages are wanted, and when they may be sent: filters, rate limit, pauses after failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.notify.courier import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    LONGEST_RETRY_AFTER_S,
    MINUTE_S,
    BackOff,
    RateLimit,
)
from kafka_why.notify.messages import KINDS, Filter, Message
from tests.unit.kafka_why.notify_messages import alarm, rebalance, stuck

NOW_MS = 10_000


EU = rebalance(group="orders-eu")


@pytest.mark.parametrize(
    ("chosen", "message", "wanted"),
    [
        (Filter(), EU, True),
        (Filter(("orders-*",)), EU, True),
        (Filter(("Orders-*",)), EU, False),
        (Filter(("payments", "orders-e?")), EU, True),
        (Filter(("payments",)), EU, False),
        (Filter(("orders-*",), ("*-eu",)), EU, False),
        (Filter((), ("payments",)), EU, True),
        # Alarms are of no group.
        (Filter(("orders",), ("*",)), alarm(), True),
        (Filter(kinds=frozenset(["stuck"])), stuck(), True),
        (Filter(kinds=frozenset(["stuck"])), rebalance(), False),
        *((Filter(), rebalance(kind=kind), True) for kind in KINDS),
        # A rebalance took a second. What lasts began at 1 s, so it has lasted for 9 s.
        (Filter(least_ms=1_000), rebalance(), True),
        (Filter(least_ms=1_001), rebalance(), False),
        (Filter(least_ms=9_000), stuck(), True),
        (Filter(least_ms=9_001), stuck(), False),
    ],
)
def test_filter_selects_by_group_kind_and_duration(chosen: Filter, message: Message, wanted: bool) -> None:
    assert chosen.wants(message, NOW_MS) is wanted


@given(st.integers(1, 5), st.lists(st.floats(0, 30), max_size=60))
def test_requests_per_minute_stay_within_the_limit(per_minute: int, pauses_s: list[float]) -> None:
    limit, now_s, sent_s = RateLimit(per_minute), 0.0, []
    for pause_s in pauses_s:
        now_s += pause_s
        now_s += limit.wait_s(now_s)
        limit.sent(now_s)
        sent_s.append(now_s)
    for first_s, beyond_s in zip(sent_s, sent_s[per_minute:], strict=False):
        assert beyond_s - first_s >= MINUTE_S - 1e-6


def test_retry_pause_doubles_up_to_a_minute_and_resets_on_success() -> None:
    back_off = BackOff(lambda: 0.0)
    assert [back_off.failed() for _ in range(8)] == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    back_off.worked()
    assert back_off.failed() == FIRST_PAUSE_S


@pytest.mark.parametrize(("asked_s", "pause_s"), [(0.5, 1), (120, 120), (1e9, LONGEST_RETRY_AFTER_S)])
def test_receiver_may_extend_the_pause_within_bounds(asked_s: float, pause_s: float) -> None:
    assert BackOff(lambda: 0.0).failed(asked_s) == pause_s
