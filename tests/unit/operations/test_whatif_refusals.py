"""Experiments and groups that `whatif` refuses, of the consumer, share and streams protocols."""

import pytest

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS
from kafka_why.contract.kafka.requests import Heartbeat
from operations.whatif import text
from operations.whatif.changes import parse_changes
from operations.whatif.run import GroupLog, WhatIfError
from operations.whatif.text import answer
from state.config import Configs, CoordinatorConfig
from state.timeline import Row
from tests.harness.fleets import GROUP, at, fleet, recorded
from tests.harness.member_fleets import member


def test_endless_experiment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_setting_that_a_group_cannot_have_is_refused(protocol: str, setting: str, message: str) -> None:
    log = recorded(fleet(member(protocol, "a")), 20)
    with pytest.raises(WhatIfError, match=message):
        answer(log, [parse_changes([setting])])


CLASSIC_HEARTBEAT = Heartbeat(
    group_id=GROUP,
    correlation_id="c",
    reply_partition=0,
    api_version=4,
    generation_id=1,
    member_id="classic",
)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            recorded(fleet(member(CONSUMER, "a"), member(SHARE, "b")), 20),
            "had members of two protocols",
        ),
        (
            GroupLog(
                GROUP,
                [
                    *recorded(fleet(member(CONSUMER, "a")), 20).rows,
                    Row(at(21), "requests-0-9", CLASSIC_HEARTBEAT),
                ],
                Configs(CoordinatorConfig()),
                at(22),
            ),
            "had members of the classic protocol, too",
        ),
    ],
)
def test_group_of_two_protocols_is_refused(log: GroupLog, message: str) -> None:
    with pytest.raises(WhatIfError, match=message):
        answer(log, [])
