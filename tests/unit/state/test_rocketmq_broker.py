"""RocketMQ's broker side beyond the traces: heartbeat V2, producers, locks, assignment, history."""

import msgspec
import pytest

from assignors.rocketmq.api import MessageRequestMode
from assignors.rocketmq.message_queue import MessageQueue
from state.config import BrokerConfig
from state.rocketmq.history import EntryType
from state.rocketmq.requests import (
    AnyRequest,
    ConnectionClosed,
    ConsumeType,
    LockBatchMq,
    MessageModel,
    RegisterConsumer,
    RegisterProducer,
    SetMessageRequestMode,
    SubscriptionData,
    UnregisterProducer,
)
from state.rocketmq.responses import (
    LockBatchMqResponse,
    ResponseCode,
)
from state.rocketmq.step import step
from state.rocketmq.timers import ScanDue
from tests.harness.rocketmq_broker import QUEUES, Broker, of


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


def test_v2_asks_for_the_full_form_when_another_clients_differs() -> None:
    broker = Broker()
    assert broker.register(consumer("A")).is_sub_change  # version 1 always says so
    assert broker.register(consumer("A", fingerprint=7)).is_sub_change  # the last one was version 1's
    assert not broker.register(consumer("A", fingerprint=7)).is_sub_change
    assert not broker.register(consumer("A", fingerprint=7, without_sub=True)).is_sub_change
    assert broker.register(consumer("B", fingerprint=8)).is_sub_change
    assert broker.register(consumer("A", fingerprint=7, without_sub=True)).is_sub_change
    assert broker.group is not None
    assert list(broker.group.subscriptions) == ["T"]


def test_a_first_v2_heartbeat_is_no_change_and_version_1_has_no_short_form() -> None:
    broker = Broker()
    assert not broker.register(consumer("A", fingerprint=7)).is_sub_change
    broker.register(consumer("A", without_sub=True))
    assert broker.group is not None
    assert broker.group.subscriptions == {}


def test_pull_consumers_can_be_rejected() -> None:
    broker = Broker(BrokerConfig(reject_pull_consumer_enable=True))
    response = broker.register(consumer("A", consume_type=ConsumeType.CONSUME_ACTIVELY))
    assert (response.code, response.changed, broker.group) == (ResponseCode.SUCCESS, False, None)
    assert broker.register(consumer("A", consume_type=ConsumeType.CONSUME_POP)).changed


def test_producers_come_refresh_and_go() -> None:
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


def test_a_connection_that_consumes_and_produces_is_closed_once() -> None:
    broker = Broker()
    broker.send(consumer("A"))
    broker.send(producer("A", "ch-A"))
    silent = broker.scan()
    assert (broker.now_ms, silent.closed, silent.notified, silent.group) == (130_000, ["ch-A"], [], None)


def test_a_scan_takes_what_is_older_than_the_timeout_not_what_is_as_old() -> None:
    broker = Broker()
    broker.send(consumer("A"))
    assert step(broker.group, "G", ScanDue(120_000), 120_000, broker.config).closed == []
    broker.now_ms = 120_000
    broker.scan()
    assert (broker.now_ms, broker.group) == (130_000, None)


def test_a_lock_taken_over_is_told() -> None:
    broker = Broker()
    broker.lock("A", *QUEUES[:2])
    broker.now_ms = 60_001
    [told] = broker.send(LockBatchMq(**of("B"), mq_set=QUEUES[:1])).history
    assert (told.type, told.client_id) == (EntryType.QUEUE_LOCKS_TAKEN_OVER, "B")
    assert "client A did not renew its locks within 60000 ms" in told.reason
    assert str(QUEUES[0]) in told.reason


def test_locks_outlive_the_group_and_one_id_has_them_on_any_connection() -> None:
    broker = Broker()
    broker.send(consumer("A"))
    broker.lock("A", *QUEUES)
    assert broker.send(ConnectionClosed(group_id="G", connection="ch-A")).group is not None
    again = LockBatchMq(**of("A", "another"), mq_set=QUEUES)
    assert broker.send(again).replies[0].response == LockBatchMqResponse(
        group_id="G", correlation_id="c", request="r@0", lock_ok_mq_set=QUEUES
    )
    assert broker.lock("B", *QUEUES) == ()


def pulled(*queues: MessageQueue) -> tuple[tuple[MessageQueue, MessageRequestMode], ...]:
    return tuple((queue, MessageRequestMode.PULL) for queue in queues)


def test_the_broker_assigns_sorted_queues_to_sorted_ids() -> None:
    broker = Broker()
    for client_id in ("C", "B", "A"):
        broker.send(consumer(client_id))
    backwards = (*reversed(QUEUES), QUEUES[0])  # with one twice: RocketMQ has a set
    assert broker.query("A", topic_queues=backwards) == pulled(QUEUES[0], QUEUES[1])
    assert broker.query("B", topic_queues=backwards) == pulled(QUEUES[2])
    assert broker.query("B", strategy_name="AVG_BY_CIRCLE") == pulled(QUEUES[1])
    assert broker.query("stranger") == ()


def test_the_broker_says_keep_what_you_have_where_it_cannot_tell() -> None:
    broker = Broker()
    assert broker.query() is None  # no such group
    broker.send(consumer("A"))
    assert broker.query(topic_queues=None) is None
    assert broker.query(topic_queues=()) is None  # the strategy refuses it
    assert broker.query(strategy_name="CONSISTENT_HASH") is None
    assert broker.query(strategy_name=None) is None
    assert broker.query(client_id="") is None
    assert broker.query(model=MessageModel.BROADCASTING, topic_queues=None) is None


def test_broadcasting_and_a_broker_that_does_not_balance_give_all_queues() -> None:
    assert Broker().query(model=MessageModel.BROADCASTING) == pulled(*QUEUES)
    unbalanced = Broker(BrokerConfig(server_load_balancer_enable=False))
    assert unbalanced.query(strategy_name=None) == pulled(*QUEUES)


def test_a_light_queue_is_one_queue_of_this_broker() -> None:
    broker = Broker(BrokerConfig(broker_name="b7"))
    broker.send(consumer("A"))
    broker.send(consumer("B"))
    assert broker.query("A", topic="%LMQ%x", topic_queues=None) == pulled(MessageQueue("%LMQ%x", "b7", 0))
    assert broker.query("B", topic="%LMQ%x", topic_queues=None) == ()


def test_a_mode_is_kept_for_its_topic_beyond_the_groups_end() -> None:
    broker = Broker()
    pop = SetMessageRequestMode(**of("admin"), topic="T", mode=MessageRequestMode.POP, pop_share_queue_num=1)
    assert broker.set_mode(pop) == (ResponseCode.SUCCESS, None)
    for client_id in ("A", "B", "C"):
        broker.send(consumer(client_id))
    in_pop = tuple((queue, MessageRequestMode.POP) for queue in (QUEUES[3], QUEUES[0], QUEUES[1]))
    assert broker.query("C") == in_pop
    assert broker.query("C", topic="U") == pulled(QUEUES[3])
    broker.scan()
    assert broker.group is not None
    assert broker.query("C") is None
    broker.send(consumer("A"))
    assert broker.query("A") == ((MessageQueue("T", "b", -1), MessageRequestMode.POP),)


def test_the_default_mode_is_not_for_retry_topics() -> None:
    broker = Broker(BrokerConfig(default_message_request_mode=MessageRequestMode.POP))
    broker.send(consumer("A"))
    assert broker.query() == ((MessageQueue("T", "b", -1), MessageRequestMode.POP),)
    assert broker.query(topic="%RETRY%G") == pulled(*QUEUES)


@pytest.mark.parametrize(
    ("topic", "topic_exists", "group_exists", "refusal"),
    [
        ("%RETRY%G", False, False, (ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")),
        ("T", False, False, (ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")),
        ("T", True, False, (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")),
    ],
)
def test_a_mode_is_refused(
    topic: str, topic_exists: bool, group_exists: bool, refusal: tuple[ResponseCode, str]
) -> None:
    broker = Broker()
    request = SetMessageRequestMode(**of("admin"), topic=topic, topic_exists=topic_exists)
    if not group_exists:
        request = msgspec.structs.replace(request, group_config=None)
    assert broker.set_mode(request) == refusal
    assert broker.group is None


def test_history_is_counted_and_says_why() -> None:
    broker = Broker()
    events = broker.send(consumer("A")).history + broker.send(consumer("B")).history
    assert [event.seq for event in events] == [1, 2, 3, 4, 5, 6]
    assert [(event.type, event.reason) for event in events[:4]] == [
        (EntryType.GROUP_CREATED, "first request that leaves something to be kept"),
        (EntryType.CONSUMER_CONNECTED, "first heartbeat on this connection"),
        (EntryType.SUBSCRIPTION_CHANGED, "heartbeat of client A: +T"),
        (EntryType.CONSUMERS_NOTIFIED, "client A connected; connections told: 1"),
    ]
    assert {(event.incarnation, event.cause) for event in events} == {("r@0", "r@0")}
    [gone, *_] = broker.scan().history
    assert gone.cause == "scan at 130000"
    assert gone.reason == "silent for 130000 ms, over 120000; the others are not notified"


def test_requests_are_told_apart_by_rocketmqs_names() -> None:
    line = msgspec.json.encode(LockBatchMq(**of("A"), mq_set=QUEUES[:1]))
    assert b'"type":"LOCK_BATCH_MQ"' in line
    assert b'"mq_set":[["T","b",0]]' in line
    request = msgspec.json.decode(line, type=AnyRequest)
    assert request == LockBatchMq(**of("A"), mq_set=QUEUES[:1])
