"""RocketMQ's broker side beyond its traces (`test_rocketmq_traces.py`), the properties and the recorded
history: the broker's settings, and assignment by it.
"""

from typing import Any

import pytest

from kafka_why.contract.rocketmq.requests import (
    ConsumeType,
    MessageModel,
    MessageQueue,
    MessageRequestMode,
    RegisterConsumer,
    ResponseCode,
    SetMessageRequestMode,
    SubscriptionData,
)
from tests.harness.rocketmq_broker import QUEUES, Broker, of

POP, PULL = MessageRequestMode.POP, MessageRequestMode.PULL
ALL_QUEUES = MessageQueue("T", "b", -1)


def consumer(client_id: str, consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY) -> RegisterConsumer:
    return RegisterConsumer(
        **of(client_id),
        message_model=MessageModel.CLUSTERING,
        consume_type=consume_type,
        subscription_data_set=(SubscriptionData("T"),),
    )


def broker_of(*client_ids: str) -> Broker:
    broker = Broker()
    for client_id in client_ids:
        broker.send(consumer(client_id))
    return broker


def test_s14_a_group_without_configuration_is_not_registered() -> None:
    broker = Broker()
    assert broker.heartbeat("A", "ch1", config=None).pushes == []
    assert broker.group is None
    assert broker.register(consumer("A", ConsumeType.CONSUME_POP)).changed


def pulled(*queues: MessageQueue) -> tuple[tuple[MessageQueue, MessageRequestMode], ...]:
    return tuple((queue, PULL) for queue in queues)


# RocketMQ has a set of queues, so one may come twice.
BACKWARDS = (*reversed(QUEUES), QUEUES[0])
LIGHT: dict[str, Any] = {"topic": "%LMQ%x", "topic_queues": None}
BROADCASTING: dict[str, Any] = {"model": MessageModel.BROADCASTING}


@pytest.mark.parametrize(
    ("members", "query", "expected"),
    [
        ("CBA", {"client_id": "A", "topic_queues": BACKWARDS}, pulled(QUEUES[0], QUEUES[1])),
        ("CBA", {"client_id": "B", "topic_queues": BACKWARDS}, pulled(QUEUES[2])),
        ("CBA", {"client_id": "B", "strategy_name": "AVG_BY_CIRCLE"}, pulled(QUEUES[1])),
        ("CBA", {"client_id": "stranger"}, ()),
        # None says "keep what you have", where the broker cannot tell.
        ("", {}, None),
        ("A", {"topic_queues": None}, None),
        ("A", {"topic_queues": ()}, None),
        ("A", {"strategy_name": "CONSISTENT_HASH"}, None),
        ("A", {"strategy_name": None}, None),
        ("A", {"client_id": ""}, None),
        ("A", BROADCASTING | {"topic_queues": None}, None),
        ("", BROADCASTING, pulled(*QUEUES)),
        # A light queue is one queue of this broker.
        ("AB", LIGHT, pulled(MessageQueue("%LMQ%x", "broker", 0))),
        ("AB", LIGHT | {"client_id": "B"}, ()),
    ],
)
def test_the_broker_assigns_sorted_queues_to_sorted_ids(
    members: str, query: dict[str, Any], expected: object
) -> None:
    assert broker_of(*members).query(**query) == expected


def test_rocketmq_message_request_mode_outlives_its_group() -> None:
    broker = Broker()
    pop = SetMessageRequestMode(**of("admin"), topic="T", mode=POP, pop_share_queue_num=1)
    assert broker.set_mode(pop) == (ResponseCode.SUCCESS, None)
    for client_id in ("A", "B", "C"):
        broker.send(consumer(client_id))
    assert broker.query("C") == tuple((queue, POP) for queue in (QUEUES[3], QUEUES[0], QUEUES[1]))
    assert broker.query("C", topic="U") == pulled(QUEUES[3])
    broker.scan()
    assert broker.query("C") is None
    broker.send(consumer("A"))
    assert broker.query("A") == ((ALL_QUEUES, POP),)


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        (
            {"topic": "%RETRY%G", "topic_exists": False},
            (ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"),
        ),
        ({"topic": "T", "topic_exists": False}, (ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")),
        (
            {"topic": "T", "topic_exists": True},
            (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"),
        ),
    ],
)
def test_invalid_request_mode_is_refused(fields: dict[str, Any], refusal: tuple[ResponseCode, str]) -> None:
    broker = Broker()
    assert broker.set_mode(SetMessageRequestMode(**of("admin"), **fields, group_config=None)) == refusal
    assert broker.group is None
