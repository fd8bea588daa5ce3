"""Quotas: the file, which entity's quota holds for a client, and the arithmetic of the buckets."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import limits as limits_module
from gateway.limits import DEFAULT, Limits, QuotaRules, Quotas, QuotasError, TokenBucket, read_quotas

FILE = """
[[quotas]]
user = "ann"
client-id = "app"
group_request_rate = 5

[[quotas]]
user = "<default>"
group_request_rate = 2.5

[[quotas]]
ip = "<default>"
connection_creation_rate = 10

[[quotas]]
ip = "2001:db8::0:7"
connection_creation_rate = 1
"""
LONG = "c" * 1_000


def test_quota_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text(FILE)
    rules = read_quotas(path)
    assert rules.request_rate("ann", "app") == (("ann", "app"), 5.0)
    assert rules.request_rate("ann", "job") == (("ann", None), 2.5)
    assert rules.connection_rate("2001:db8::7") == 1.0
    assert rules.connection_rate("10.0.0.1") == 10.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[quotas]]\nuser = 'ann'", "quota 1: it needs user"),
        ("[[quotas]]\ngroup_request_rate = 1", "it needs user"),
        ("[[quotas]]\nuser = 'ann'\nrequest_percentage = 1", "it needs user"),
        ("[[quotas]]\nuser = 'ann'\nconnection_creation_rate = 1", "it needs user"),
        ("[[quotas]]\nuser = 'ann'\nip = '10.0.0.1'\nconnection_creation_rate = 1", "it needs user"),
        ("[[quotas]]\nuser = 1\ngroup_request_rate = 1", "are strings"),
        ("[[quotas]]\nuser = ''\ngroup_request_rate = 1", "are strings"),
        ("[[quotas]]\nuser = 'ann'\ngroup_request_rate = 0", "not a number above 0"),
        ("[[quotas]]\nuser = 'ann'\ngroup_request_rate = inf", "not a number above 0"),
        ("[[quotas]]\nuser = 'ann'\ngroup_request_rate = true", "not a number above 0"),
        ("[[quotas]]\nuser = 'ann'\ngroup_request_rate = 'many'", "not a number above 0"),
        ("[[quotas]]\nip = 'nowhere'\nconnection_creation_rate = 1", "quota 1: 'nowhere'"),
        ("[[quotas]]\nuser = 'a'\ngroup_request_rate = 1\n" * 2, "quota 2: the entity has a quota already"),
        ("quotas = 3", "something else than"),
        ("quotas = [3]", "quota 1: it is not a"),
        ("[limits]\na = 1", "something else than .* limits"),
        ("[[quotas]", "cannot be read"),
        ("\udcff", "cannot be read"),
    ],
)
def test_unusable_quota_file_is_refused_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "quotas.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(QuotasError, match=why):
        read_quotas(path)


# Kafka's order of precedence (documentation of quotas, "Quota Configuration"), most specific first.
PRECEDENCE = [
    ("ann", "app"),
    ("ann", DEFAULT),
    ("ann", None),
    (DEFAULT, "app"),
    (DEFAULT, DEFAULT),
    (DEFAULT, None),
    (None, "app"),
    (None, DEFAULT),
]


@given(st.sets(st.sampled_from(PRECEDENCE)))
def test_most_specific_quota_wins_as_in_kafka(given_: set[tuple[str | None, str | None]]) -> None:
    rules = QuotaRules({entity: float(PRECEDENCE.index(entity) + 1) for entity in given_})
    found = rules.request_rate("ann", "app")
    if not given_:
        assert found is None
        return
    first = min(given_, key=PRECEDENCE.index)
    shared = ("ann" if first[0] else None, "app" if first[1] else None)
    assert found == (shared, float(PRECEDENCE.index(first) + 1))


def test_new_quota_rules_keep_the_buckets_of_unchanged_rates() -> None:
    now_s = 0.0
    quotas = Quotas(Limits(), QuotaRules({("ann", None): 1.0, ("bob", None): 1.0}), lambda: now_s)
    before = {user: quotas.requests_of(user, "app") for user in ("ann", "bob")}
    version = quotas.version
    quotas.replace_rules(QuotaRules({("ann", None): 1.0, ("bob", None): 2.0}))
    assert quotas.version != version
    assert quotas.requests_of("ann", "app") is before["ann"]
    assert quotas.requests_of("bob", "app") is not before["bob"]


def test_full_quota_buckets_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_BUCKETS_MAX", 10)
    now_s = 0.0
    quotas = Quotas(Limits(), QuotaRules({(None, DEFAULT): 1.0}), lambda: now_s)
    busy = quotas.requests_of("ann", "busy")
    assert busy is not None
    busy.charge_exceeds(now_s)
    version = quotas.version
    for number in range(1_000):
        assert quotas.requests_of("ann", f"client-{number}") is not None
    assert quotas.bucket_count <= 12
    assert quotas.requests_of("ann", "busy") is busy
    assert quotas.version != version, "a connection may hold a bucket that was dropped"


def test_long_client_ids_have_distinct_buckets_and_are_not_cached() -> None:
    quotas = Quotas(Limits(), QuotaRules({(None, DEFAULT): 1.0, (None, LONG): 2.0}))
    one, other = quotas.requests_of("ann", f"{LONG}1"), quotas.requests_of("ann", f"{LONG}2")
    assert one is not other
    assert one is quotas.requests_of("bob", f"{LONG}1")
    named = quotas.requests_of("ann", LONG)
    assert named is not None
    assert named.rate == 2.0
    assert max(len(str(key)) for key in quotas._requests) < 100


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
def test_quota_bucket_equals_kafkas_while_its_debt_is_within_the_bound(
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


def test_clock_set_back_adds_no_quota_tokens() -> None:
    quota = bucket(1.0, burst_s=1.0)
    assert not quota.charge_exceeds(100.0)
    assert quota.charge_exceeds(50.0)
    assert quota.charge_exceeds(99.0)
    assert quota.throttle_s(100.0) == 1.0


@given(rates, windows, pauses)
def test_failed_attempts_consume_no_quota_tokens(rate: float, burst_s: float, waits: list[float]) -> None:
    """A client that retries all the time gets as many tokens as one that waits."""
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
