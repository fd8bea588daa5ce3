"""RocketMQ's broker side beyond its traces (`test_rocketmq_traces.py`) and the properties: heartbeat V2,
producers, assignment by the broker, history, and how a heartbeat is split.
"""

from typing import Any

import pytest

from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.queues import MessageQueue, MessageRequestMode
from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    ConsumeType,
    MessageModel,
    RegisterConsumer,
    RegisterProducer,
    SetMessageRequestMode,
    SubscriptionData,
    UnregisterProducer,
)
from kafka_why.contract.rocketmq.responses import ResponseCode
from state.config import BrokerConfig
from tests.harness.rocketmq_broker import QUEUES, Broker, of

POP, PULL = MessageRequestMode.POP, MessageRequestMode.PULL
ALL_QUEUES = MessageQueue("T", "b", -1)


def consumer(
    client_id: str,
    *,
    fingerprint: int = 0,
    without_sub: bool = False,
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
) -> RegisterConsumer:
    return RegisterConsumer(
        **of(client_id),
        message_model=MessageModel.CLUSTERING,
        consume_type=consume_type,
        subscription_data_set=() if without_sub else (SubscriptionData("T"),),
        heartbeat_fingerprint=fingerprint,
        is_without_sub=without_sub,
    )


def producer(client_id: str, connection: str = "ch1") -> RegisterProducer:
    return RegisterProducer(**of(client_id, connection))


def broker_of(*client_ids: str, config: BrokerConfig | None = None) -> Broker:
    broker = Broker(config)
    for client_id in client_ids:
        broker.send(consumer(client_id))
    return broker


@pytest.mark.parametrize(
    ("beats", "changes"),
    [
        # Version 1 always says so; it has no short form.
        ([("A", 0, False), ("A", 7, False)], [True, True]),
        ([("A", 7, False), ("A", 7, False), ("A", 7, True)], [False, False, False]),
        ([("A", 7, False), ("B", 8, False), ("A", 7, True)], [False, True, True]),
    ],
)
def test_v2_asks_for_the_full_form_when_another_clients_differs(
    beats: list[tuple[str, int, bool]], changes: list[bool]
) -> None:
    broker = Broker()
    found = [broker.register(consumer(c, fingerprint=f, without_sub=short)) for c, f, short in beats]
    assert [response.is_sub_change for response in found] == changes
    assert broker.group is not None
    table = broker.group.consumers[""]
    assert list(table.subscriptions) == ["T"]
    broker.register(consumer("A", without_sub=True))
    assert table.subscriptions == {}


def test_s14_pull_consumers_can_be_rejected_and_a_group_without_configuration_is_not_registered() -> None:
    broker = Broker(BrokerConfig(reject_pull_consumer_enable=True))
    response = broker.register(consumer("A", consume_type=ConsumeType.CONSUME_ACTIVELY))
    assert (response.code, response.changed, broker.group) == (ResponseCode.SUCCESS, False, None)
    assert broker.heartbeat("A", "ch1", config=None).notified == []
    assert broker.group is None
    assert broker.register(consumer("A", consume_type=ConsumeType.CONSUME_POP)).changed


def test_producers_register_refresh_and_unregister() -> None:
    broker = Broker()
    broker.send(producer("A"))
    broker.now_ms = 50_000
    assert broker.send(producer("B")).history == []  # the connection keeps its first id
    assert broker.group is not None
    assert broker.group.producers["ch1"].client_id == "A"
    broker.send(producer("C", "ch2"))
    broker.send(ConnectionClosed(group_id="G", connection="ch2"))
    assert list(broker.group.producers) == ["ch1"]
    silent = broker.scan()
    assert (broker.now_ms, silent.closed, silent.group) == (180_000, ["ch1"], None)
    broker.send(producer("A"))
    assert broker.send(UnregisterProducer(**of("A", "ch1"))).group is None
    assert broker.send(UnregisterProducer(**of("A", "ch1"))).history == []


def test_s8_the_list_of_a_group_without_members_is_an_error() -> None:
    broker = broker_of("A", "B")
    assert broker.consumer_list().consumer_id_list == ("A", "B")
    for client_id in "AB":
        broker.close(f"ch-{client_id}")
    answer = broker.consumer_list()
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, G")
    assert (answer.consumer_id_list, broker.group) == ((), None)


def test_s16_the_broker_can_switch_notification_off() -> None:
    broker = Broker(BrokerConfig(notify_consumer_ids_changed_enable=False))
    assert broker.heartbeat("A", "ch1").notified == broker.close("ch1").notified == []


def test_s18_a_duplicate_client_id_is_reported_with_both_connections() -> None:
    broker = Broker()
    broker.heartbeat("X", "ch1")
    broker.now_ms = 7_000
    told = broker.heartbeat("X", "ch2").history
    [report] = [e for e in told if e.type is EntryType.DUPLICATE_CLIENT_ID]
    assert (report.client_id, report.connection, report.connections) == ("X", "ch2", ["ch1", "ch2"])
    assert "ch1 (last heartbeat 7000 ms ago)" in report.reason
    assert broker.heartbeat("X", "ch2").history == []


def pulled(*queues: MessageQueue) -> tuple[tuple[MessageQueue, MessageRequestMode], ...]:
    return tuple((queue, PULL) for queue in queues)


# RocketMQ has a set of queues, so one may come twice.
BACKWARDS = (*reversed(QUEUES), QUEUES[0])
LIGHT: dict[str, Any] = {"topic": "%LMQ%x", "topic_queues": None}
BROADCASTING: dict[str, Any] = {"model": MessageModel.BROADCASTING}


@pytest.mark.parametrize(
    ("config", "members", "query", "expected"),
    [
        (None, "CBA", {"client_id": "A", "topic_queues": BACKWARDS}, pulled(QUEUES[0], QUEUES[1])),
        (None, "CBA", {"client_id": "B", "topic_queues": BACKWARDS}, pulled(QUEUES[2])),
        (None, "CBA", {"client_id": "B", "strategy_name": "AVG_BY_CIRCLE"}, pulled(QUEUES[1])),
        (None, "CBA", {"client_id": "stranger"}, ()),
        # None says "keep what you have", where the broker cannot tell.
        (None, "", {}, None),
        (None, "A", {"topic_queues": None}, None),
        (None, "A", {"topic_queues": ()}, None),
        (None, "A", {"strategy_name": "CONSISTENT_HASH"}, None),
        (None, "A", {"strategy_name": None}, None),
        (None, "A", {"client_id": ""}, None),
        (None, "A", BROADCASTING | {"topic_queues": None}, None),
        (None, "", BROADCASTING, pulled(*QUEUES)),
        (BrokerConfig(server_load_balancer_enable=False), "", {"strategy_name": None}, pulled(*QUEUES)),
        # A light queue is one queue of this broker.
        (BrokerConfig(broker_name="b7"), "AB", LIGHT, pulled(MessageQueue("%LMQ%x", "b7", 0))),
        (BrokerConfig(broker_name="b7"), "AB", LIGHT | {"client_id": "B"}, ()),
        # The default mode is not for retry topics.
        (BrokerConfig(default_message_request_mode=POP), "A", {}, ((ALL_QUEUES, POP),)),
        (BrokerConfig(default_message_request_mode=POP), "A", {"topic": "%RETRY%G"}, pulled(*QUEUES)),
    ],
)
def test_the_broker_assigns_sorted_queues_to_sorted_ids(
    config: BrokerConfig | None, members: str, query: dict[str, Any], expected: object
) -> None:
    assert broker_of(*members, config=config).query(**query) == expected


def test_message_request_mode_outlives_its_group() -> None:
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


def test_rocketmq_history_is_numbered_and_has_reasons() -> None:
    broker = Broker()
    events = broker.send(consumer("A")).history + broker.send(consumer("B")).history
    assert [event.seq for event in events] == [1, 2, 3, 4, 5, 6]
    assert [(event.type, event.reason) for event in events[:4]] == [
        (EntryType.GROUP_CREATED, "first request with state to store"),
        (EntryType.CONSUMER_CONNECTED, "first heartbeat on this connection"),
        (EntryType.SUBSCRIPTION_CHANGED, "heartbeat of client A: +T"),
        (EntryType.CONSUMERS_NOTIFIED, "client A connected; connections notified: 1"),
    ]
    assert {(event.incarnation, event.cause) for event in events} == {("r@0", "r@0")}
    [gone, *_] = broker.scan().history
    assert gone.cause == "scan at 130000"
    assert gone.reason == "silent for 130000 ms, over 120000; the others are not notified"
