"""Requests to an id that another kind of group has: RocketMQ's, or settings alone. No scenario has these."""

from typing import Any

import pytest

from kafka_why.contract.kafka.requests import AnyRequest, ConsumerGroupDescribe, ConsumerGroupHeartbeat
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
)
from kafka_why.contract.messages import ErrorCode, ErrorResponse
from kafka_why.contract.rocketmq.requests import GetConsumerListByGroup
from state.config import CoordinatorConfig
from state.dispatch import step
from state.kafka.group import ConfigsOnly
from state.protocol import Outage, Received
from state.rocketmq.group import RocketMqGroup
from state.timeline import Timeline
from tests.harness import batches

TO: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "reply_partition": 0}
V1 = TO | {"api_version": 1}
CONFIG = CoordinatorConfig()


@pytest.mark.parametrize(
    ("request_", "row"),
    [
        (ConsumerGroupHeartbeat(**V1, member_id="A", member_epoch=1), "HB19"),
        (ConsumerGroupHeartbeat(**V1, member_id="A", member_epoch=-1), "HB19"),
        (ConsumerGroupHeartbeat(**V1, member_id="", member_epoch=1), "HB5"),
        (ConsumerGroupDescribe(**V1), "AD2"),
        (ShareGroupHeartbeat(**V1, member_id="m", member_epoch=0, subscribed_topic_names=["t"]), "SD11"),
        (ShareGroupHeartbeat(**V1, member_id=" ", member_epoch=0, subscribed_topic_names=["t"]), "SH6"),
        (ShareGroupDescribe(**V1), "SD2"),
        (AlterShareGroupOffsets(**V1, topics=[]), "SD11"),
        (DeleteShareGroupOffsets(**V1, topics=[]), "SD11"),
        (DescribeShareGroupOffsets(**V1), "SD11"),
    ],
)
def test_request_of_kafkas_newer_groups_is_refused_by_a_rocketmq_group(
    request_: AnyRequest, row: str
) -> None:
    group = RocketMqGroup("g", "requests-0-0")
    effects = step(group, "g", Received("requests-0-1", request_), 0, CONFIG)
    (reply,) = effects.replies
    error = ErrorCode.INVALID_REQUEST if row in ("HB5", "SH6") else ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(reply.response, ErrorResponse)
    assert (reply.response.rule, reply.response.error_code) == (row, error)
    assert effects.group is group


def test_settings_without_a_group_outlive_outages_and_keep_their_id_for_kafka() -> None:
    kept = ConfigsOnly("g", "requests-0-0", 1, {"consumer.assignment.interval.ms": 0})
    assert step(kept, "g", Outage(1, 2), 1, CONFIG).group is kept
    query = GetConsumerListByGroup(**TO, connection="c", client_id="i")
    refused = step(kept, "g", Received("requests-0-9", query), 1, CONFIG)
    assert isinstance(refused.replies[0].response, ErrorResponse)
    assert refused.group is kept
    fails = batches.failing_step(lambda event: isinstance(event, Outage))
    timeline = Timeline("g", kept, CONFIG, step=fails, outages=[Outage(1_000, 2_000)])
    timeline.fire_until(3_000)
    assert len(timeline.faults) == 1
    assert isinstance(timeline.group, ConfigsOnly) and timeline.group.configs == kept.configs
