"""Limits by Kafka's names, and the limit of open files: in processes of its own: a lowered one stays."""

import subprocess
import sys

import pytest

from gateway.limits import SETTINGS, Limits


def test_every_limit_setting_changes_its_limit() -> None:
    values = dict.fromkeys(SETTINGS, "7") | {"max.connections.per.ip.overrides": "10.0.0.7:7"}
    changed = Limits().with_settings(values)
    for attribute, _ in SETTINGS.values():
        assert getattr(changed, attribute) != getattr(Limits(), attribute), attribute
    assert changed.idle_timeout_s == 0.007
    assert changed.quota_window_s == 7


def test_limit_overrides_accept_ipv4_and_ipv6_addresses() -> None:
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
def test_invalid_limit_is_rejected(name: str, value: str, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        Limits().with_settings({name: value})
    assert why in str(refused.value)


SCRIPT = """
import resource, sys
from gateway.net.listener import allow_open_files
for arguments in sys.argv[1:]:
    soft, hard, wanted = map(int, arguments.split())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allow_open_files(wanted)
    print(*resource.getrlimit(resource.RLIMIT_NOFILE), end="\\nend\\n")
"""

RAISED = "the limit of open files was raised"
TOO_LOW = "too few open files for the maximum number of clients"


SOFT_HARD_WANTED = {
    "100 400 300": ("300 400", {RAISED}),
    "100 400 500": ("400 400", {RAISED, TOO_LOW}),
    "400 400 500": ("400 400", {TOO_LOW}),
    "350 400 300": ("350 400", set()),
}


def test_soft_file_limit_is_raised_as_needed_up_to_the_hard_limit() -> None:
    arguments = [sys.executable, "-c", SCRIPT, *SOFT_HARD_WANTED]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    *parts, _ = output.split("end\n")
    for part, (limits, logged) in zip(parts, SOFT_HARD_WANTED.values(), strict=True):
        assert part.splitlines()[-1] == limits
        assert {line for line in (RAISED, TOO_LOW) if line in part} == logged
