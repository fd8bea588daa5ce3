"""Quotas: the file, which entity's quota holds for a client, and the buckets."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import limits as limits_module
from gateway.limits import DEFAULT, Limits, QuotaRules, Quotas, QuotasError, read_quotas

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
    quotas.use(QuotaRules({("ann", None): 1.0, ("bob", None): 2.0}))
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
