"""Settings of a share group that the brokers have otherwise than its coordinator: row SP27."""

import pytest

from kafka_why.contract.messages import SettingValue
from kafka_why.why.share_state import differing

SESSION, INTERVAL, OTHER = (
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.auto.offset.reset",
)
AGAIN = "set or delete it through the gateway"


@pytest.mark.parametrize(
    ("own", "brokers", "sentences"),
    [
        ({}, {}, []),
        ({SESSION: 60_000}, {SESSION: "60000", OTHER: "earliest"}, []),
        (
            {SESSION: 60_000},
            {SESSION: "50000"},
            [f"{SESSION}=60000 is in force, and is 50000 at the brokers"],
        ),
        ({SESSION: 60_000}, {}, [f"{SESSION}=60000 is in force, and is not set at the brokers"]),
        ({}, {INTERVAL: "7000"}, [f"{INTERVAL}=7000 is set only at the brokers and has no effect"]),
    ],
)
def test_settings_that_differ_are_named_with_what_is_in_force(
    own: dict[str, SettingValue], brokers: dict[str, str], sentences: list[str]
) -> None:
    assert differing(own, brokers) == [f"{sentence}: {AGAIN}" for sentence in sentences]
