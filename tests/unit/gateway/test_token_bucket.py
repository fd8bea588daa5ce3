"""The arithmetic of quotas: what a token bucket promises for every sequence of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import TokenBucket

rates = st.floats(0.01, 10_000)
windows = st.floats(0.1, 60)
pauses = st.lists(st.floats(0, 30), max_size=60)


def bucket(rate: float, burst_s: float = 11.0, longest_s: float = 1.0) -> TokenBucket:
    return TokenBucket(rate, burst=max(rate * burst_s, 1.0), longest_s=longest_s, now_s=0.0)


@given(rates, windows, windows, pauses)
def test_client_that_waits_the_throttle_time_stays_within_rate_and_burst(
    rate: float, burst_s: float, longest_s: float, waits: list[float]
) -> None:
    quota, now_s = bucket(rate, burst_s, longest_s), 0.0
    for taken, wait_s in enumerate(waits, 1):
        now_s += wait_s
        is_over = quota.charge_exceeds(now_s)
        if is_over:
            now_s += quota.throttle_s(now_s)
        allowed = max(rate * burst_s, 1.0) + rate * now_s + 1
        # A bound on the wait lets through at least one request in each longest wait.
        assert taken <= allowed * (1 + 1e-9) + now_s / longest_s


@given(rates, windows, windows, pauses)
def test_throttle_time_is_at_most_one_window(
    rate: float, burst_s: float, longest_s: float, waits: list[float]
) -> None:
    quota, now_s = bucket(rate, burst_s, longest_s), 0.0
    for wait_s in waits:
        now_s += wait_s
        is_over = quota.charge_exceeds(now_s)
        throttle_s = quota.throttle_s(now_s)
        assert 0 <= throttle_s <= longest_s * (1 + 1e-9)
        assert is_over is (throttle_s > 0)


@given(rates, windows, pauses)
def test_bucket_counts_as_kafkas_while_its_debt_is_within_the_bound(
    rate: float, burst_s: float, waits: list[float]
) -> None:
    """Kafka's TokenBucket has no bound on the debt: tokens = min(burst, tokens + rate * seconds) - 1."""
    quota, now_s = bucket(rate, burst_s, longest_s=1e9), 0.0
    burst = tokens = max(rate * burst_s, 1.0)
    for wait_s in waits:
        now_s += wait_s
        tokens = min(burst, tokens + rate * wait_s) - 1
        quota.charge_exceeds(now_s)
        assert quota.throttle_s(now_s) == pytest.approx(max(-tokens / rate, 0), rel=1e-6, abs=1e-6)


def test_clock_that_steps_back_adds_no_tokens() -> None:
    quota = bucket(1.0, burst_s=1.0)
    assert not quota.charge_exceeds(100.0)
    assert quota.charge_exceeds(50.0)
    assert quota.charge_exceeds(99.0)
    assert quota.throttle_s(100.0) == 1.0


@given(rates, windows, pauses)
def test_attempts_that_get_no_token_cost_none(rate: float, burst_s: float, waits: list[float]) -> None:
    """A client that always tries again gets as many as one that waits."""
    quota, now_s, got = bucket(rate, burst_s), 0.0, 0
    burst = max(rate * burst_s, 1.0)
    for wait_s in waits:
        now_s += wait_s
        before_s = quota.wait_s(now_s)
        is_taken = quota.try_charge(now_s)
        assert is_taken is (before_s == 0) or before_s == pytest.approx(0, abs=1e-6)
        got += is_taken
        assert got <= (burst + rate * now_s) * (1 + 1e-9)
        assert 0 <= quota.wait_s(now_s) <= 1.0 + 1e-9
