"""The settings of a group by request. They may be set before the group exists, and they outlive it."""

from typing import Any

import pytest

from kafka_why.contract.kafka.requests import (
    AlterGroupConfigs,
    AnyAnswered,
    ConsumerGroupHeartbeat,
    DescribeGroup,
    DescribeGroupConfigs,
)
from kafka_why.contract.kafka.responses import DescribeGroupConfigsResponse, DescribeGroupResponse
from kafka_why.contract.messages import ErrorCode, ErrorResponse
from kafka_why.contract.rocketmq.requests import GetConsumerListByGroup
from state.config import CoordinatorConfig
from state.dispatch import step
from state.inputs import Outage, Received
from state.kafka.group import ConfigsOnly
from state.timeline import Row, Timeline
from tests.harness import batches

TO: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "reply_partition": 0, "api_version": 1}
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"
JOIN = ConsumerGroupHeartbeat(
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=60_000,
    subscribed_topic_names=[],
    topic_partitions=[],
    **TO,
)


class Log:
    """A group and its log: a request each millisecond."""

    def __init__(self) -> None:
        self.timeline = Timeline("g", None, CoordinatorConfig())
        self.sent = 0

    def send(self, request: AnyAnswered) -> Any:
        self.sent += 1
        self.timeline.apply(Row(self.sent, f"requests-0-{self.sent}", request))
        (*_, effects) = self.timeline.drain_effects()
        assert not self.timeline.faults
        (reply,) = effects.replies
        self.effects: Any = effects
        return reply.response

    def described(self) -> dict[str, tuple[str, bool]]:
        response = self.send(DescribeGroupConfigs(**TO))
        assert isinstance(response, DescribeGroupConfigsResponse)
        return {
            config.name: (config.value, config.is_default)
            for config in response.configs
            if config.name.startswith("consumer.") or not config.is_default
        }


def test_cf26_settings_of_unused_protocols_are_stored_without_effect() -> None:
    """Row CF26."""
    log = Log()
    given: dict[str, str | None] = {
        "share.auto.offset.reset": "by_duration:PT1H",
        "share.delivery.count.limit": "7",
        "share.renew.acknowledge.enable": "FALSE",
        "streams.rack.aware.assignment.tags": "zone, cluster",
        "errors.deadletterqueue.topic.name": "dlq.orders",
    }
    kept = {name: (value or "", False) for name, value in given.items()} | {
        "share.renew.acknowledge.enable": ("false", False),
        "streams.rack.aware.assignment.tags": ("zone,cluster", False),
    }
    coordinators = {ASSIGNMENT: ("1000", True), HEARTBEAT: ("5000", True), SESSION: ("45000", True)}
    assert log.send(AlterGroupConfigs(configs=given, **TO)).rule == "CF22"
    assert log.described() == kept | coordinators
    assert log.send(JOIN).heartbeat_interval_ms == 5_000
    log.send(AlterGroupConfigs(configs=dict.fromkeys(given), **TO))
    assert log.described() == coordinators


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.delivery.count.limit", "11"),
        ("share.auto.offset.reset", "first"),
        ("share.auto.offset.reset", "by_duration:P"),
        ("share.isolation.level", "committed"),
        ("share.renew.acknowledge.enable", "yes"),
        ("streams.num.standby.replicas", "3"),
        ("streams.assignor.name", "range"),
        ("streams.rack.aware.assignment.tags", "zone,zone"),
        ("errors.deadletterqueue.topic.name", "__mine"),
    ],
)
def test_cf26_invalid_setting_is_refused_and_not_stored(name: str, value: str) -> None:
    log = Log()
    refused = log.send(AlterGroupConfigs(configs={name: value}, **TO))
    assert (refused.rule, refused.error_code) == ("CF26", ErrorCode.INVALID_CONFIG)
    assert refused.error_message.startswith(f"{name} must be ")
    assert log.timeline.group is None


def test_settings_alone_do_not_make_a_group() -> None:
    log = Log()
    log.send(AlterGroupConfigs(configs={ASSIGNMENT: "0"}, **TO))
    described = log.send(DescribeGroup(**TO))
    assert isinstance(described, DescribeGroupResponse) and described.rule == "V1"
    kept = log.timeline.group
    assert isinstance(kept, ConfigsOnly)
    assert step(kept, "g", Outage(1, 2), log.sent, CoordinatorConfig()).group is kept
    query = GetConsumerListByGroup(
        group_id="g", correlation_id="c", reply_partition=0, connection="c", client_id="i"
    )
    refused = step(kept, "g", Received("requests-0-9", query), log.sent, CoordinatorConfig())
    assert isinstance(refused.replies[0].response, ErrorResponse), "the id is kept for Kafka's groups"
    assert refused.group is kept
    fails = batches.failing_step(lambda event: isinstance(event, Outage))
    timeline = Timeline("g", kept, CoordinatorConfig(), step=fails, outages=[Outage(1_000, 2_000)])
    timeline.fire_until(3_000)
    assert len(timeline.faults) == 1
    assert isinstance(timeline.group, ConfigsOnly) and timeline.group.configs == kept.configs
