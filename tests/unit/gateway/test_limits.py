"""Limits by Kafka's names."""

import pytest

from gateway.limits import SETTINGS, LimitError, Limits


def test_every_setting_changes_its_limit() -> None:
    values = dict.fromkeys(SETTINGS, "7") | {"max.connections.per.ip.overrides": "10.0.0.7:7"}
    changed = Limits().with_settings(values)
    for attribute, _ in SETTINGS.values():
        assert getattr(changed, attribute) != getattr(Limits(), attribute), attribute
    assert changed.idle_timeout_s == 0.007
    assert changed.quota_window_s == 7


def test_overrides_have_addresses_of_both_kinds() -> None:
    text = "10.0.0.7:5, 2001:db8::0:7:6,[::1]:8"
    changed = Limits().with_settings({"max.connections.per.ip.overrides": text})
    assert changed.connections_per_ip_overrides == {"10.0.0.7": 5, "2001:db8::7": 6, "::1": 8}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("max.connection", "1", "max.connection is not a setting of the gateway: connections.max.idle.ms"),
        ("max.connections", "many", "max.connections: 'many' is not a whole number"),
        ("max.connections", "1_000", "max.connections: '1_000' is not a whole number"),
        ("queued.max.requests", "\N{FULLWIDTH DIGIT SEVEN}", "is not a whole number"),
        ("quota.window.num", "9" * 5_000, "is not between 1 and 2147483647"),
        ("max.connections", "0", "max.connections: 0 is not between 1 and 2147483647"),
        ("max.connections", "2147483648", "is not between"),
        ("max.connections.per.ip.overrides", "10.0.0.7", "'10.0.0.7' is not ADDRESS:NUMBER"),
        ("max.connections.per.ip.overrides", "gateway:5", "'gateway' does not appear to be an IPv4"),
        ("max.connections.per.ip.overrides", "10.0.0.7:x", "'x' is not a whole number"),
    ],
)
def test_what_is_no_limit_is_refused(name: str, value: str, why: str) -> None:
    with pytest.raises(LimitError) as refused:
        Limits().with_settings({name: value})
    assert why in str(refused.value)
