"""RocketMQ's groups through the operator's call, beyond the recorded history (`test_histories.py`)."""

from dataclasses import replace

import pytest

from kafka_why.contract.rocketmq.requests import (
    GetConsumerListByGroup,
    MessageModel,
    RegisterConsumer,
    ResponseCode,
    SubscriptionData,
)
from state.config import BrokerConfig
from streaming.query.operator import ConfigEpoch
from tests.harness.operator_call import OPERATOR, call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log

SMALL = replace(OPERATOR, layout=replace(LAYOUT, response_max_bytes=700))


def beat(client_id: str) -> RegisterConsumer:
    return RegisterConsumer(
        group_id="g",
        connection="c1",
        client_id=client_id,
        correlation_id="beats",
        reply_partition=1,
        message_model=MessageModel.CLUSTERING,
        subscription_data_set=(SubscriptionData("t"),),
    )


@pytest.mark.parametrize(("after_ms", "fired_ms"), [(140_000, 130_000), (100_000, 100_001), (10_000, 30_000)])
def test_resting_group_is_scanned_under_the_configuration_of_then(after_ms: int, fired_ms: int) -> None:
    """Its connection was last heard of at T0, and the limit changes from 120 to 20 s. A scan that is overdue
    when the limit changes comes at once.
    """
    (old,) = OPERATOR.epochs
    sooner = replace(old.config, rocketmq=BrokerConfig(channel_expired_timeout_ms=20_000))
    operator = replace(OPERATOR, epochs=(old, ConfigEpoch(7, sooner, after_ms=T0 + after_ms)))
    log, state = Log(), spark_state()
    call([log.request(T0, beat("A"))], state)
    resting = spark_state(tuple(state.get), watermark_ms=T0 + 200_000, timed_out=True)
    said = contents(call([], resting, operator=operator), LAYOUT.events_topic)
    assert {entry["at_ms"] for entry in said} == {T0 + fired_ms}
    assert not resting.exists


def test_an_answer_too_large_is_a_system_error_and_a_view_too_large_is_shortened() -> None:
    log, state = Log(), spark_state()
    asked = GetConsumerListByGroup(
        group_id="g", connection="c1", client_id="A", correlation_id="list", reply_partition=1
    )
    frames = call([log.request(T0, beat("A" * 600)), log.request(T0, asked)], state, operator=SMALL)
    answer = next(r for r in contents(frames, LAYOUT.responses_topic) if r.get("correlation_id") == "list")
    assert (answer["code"], answer["consumer_id_list"]) == (ResponseCode.SYSTEM_ERROR, [])
    (view,) = contents(frames, LAYOUT.groups_topic)
    assert (view["truncated"], view["consumers"]) == (True, [])
