"""Experiments and groups that `whatif` refuses, of the consumer, share and streams protocols."""

from dataclasses import replace

import pytest

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS
from kafka_why.contract.kafka.requests import Heartbeat
from operations.whatif import text
from operations.whatif.changes import parse_changes
from operations.whatif.run import WhatIfError
from operations.whatif.text import answer
from state.timeline import Row
from tests.harness.common import Common
from tests.harness.fleets import GROUP, at, fleet, member, recorded


def test_whatif_refuses_an_endless_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "FREE_STEPS", 100)
    log = recorded(fleet(member(CONSUMER, "a")), 30)
    settings = "group.consumer.min.heartbeat.interval.ms=1 group.consumer.heartbeat.interval.ms=1"
    with pytest.raises(WhatIfError, match=r"heartbeat\.interval\.ms=1: the simulation ends after \d+ steps"):
        answer(log, [parse_changes(settings.split())])


@pytest.mark.parametrize(
    ("protocol", "setting", "message"),
    [
        (CONSUMER, "session.timeout.ms=6000", "clients of the consumer protocol do not have session.timeout"),
        (
            STREAMS,
            "partition.assignment.strategy=range",
            "settings of their groups are: group.instance",
        ),
        (SHARE, "group.instance.id=client.id", "clients of the share protocol do not have group.instance.id"),
        (STREAMS, "streams.num.standby.replicas=9", "streams.num.standby.replicas"),
        (CONSUMER, "consumer.session.timeout.ms=1", "consumer.session.timeout.ms"),
        (CONSUMER, "share.session.timeout.ms=45000", "is a setting of share groups"),
        (CONSUMER, "group.initial.rebalance.delay.ms=0", "is a setting of classic groups"),
        (STREAMS, "group.consumer.session.timeout.ms=50000", "is a setting of consumer groups"),
        (STREAMS, "coordinator.share.assign.at.once=false", "is a setting of share groups"),
        (SHARE, "rocketmq.scan.interval.ms=1", "is a setting of rocketmq groups"),
        (SHARE, "share.record.lock.duration.ms=20000", "this coordinator only stores it"),
    ],
)
def test_whatif_refuses_a_setting_the_group_cannot_have(protocol: str, setting: str, message: str) -> None:
    log = recorded(fleet(member(protocol, "a")), 20)
    with pytest.raises(WhatIfError, match=message):
        answer(log, [parse_changes([setting])])


def test_whatif_refuses_a_group_that_had_members_of_two_protocols() -> None:
    log = recorded(fleet(member(CONSUMER, "a"), member(SHARE, "b")), 20)
    with pytest.raises(WhatIfError, match="had members of two protocols"):
        answer(log, [])


def test_whatif_refuses_a_consumer_group_with_a_classic_member() -> None:
    log = recorded(fleet(member(CONSUMER, "a")), 20)
    common: Common = {
        "group_id": GROUP,
        "correlation_id": "c",
        "reply_partition": 0,
        "api_version": 4,
        "client_id": "b",
    }
    heartbeat = Heartbeat(**common, generation_id=1, member_id="classic")
    rows = [*log.rows, Row(at(20), "requests-0-9", heartbeat)]
    with pytest.raises(WhatIfError, match="had members of the classic protocol, too"):
        answer(replace(log, rows=rows), [])
