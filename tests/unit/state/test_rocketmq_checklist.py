"""RocketMQ's load balancing according to its documents, points S1 to S19: those of broker and strategies."""

import pytest

from assignors.rocketmq.averagely import AllocateMessageQueueAveragely
from assignors.rocketmq.message_queue import MessageQueue, sort_client_ids, sort_queues
from assignors.rocketmq.strategies import Settings, strategy_named
from state.config import BrokerConfig
from state.rocketmq.effects import Effects
from state.rocketmq.history import EntryType
from state.rocketmq.requests import (
    MessageModel,
    RegisterConsumer,
    RegisterProducer,
    SubscriptionGroupConfig,
)
from state.rocketmq.responses import RegisterResponse, ResponseCode
from state.rocketmq.split import (
    ConsumerData,
    HeartbeatData,
    Origin,
    split_heartbeat,
)
from state.rocketmq.step import step
from state.rocketmq.timers import ScanDue
from tests.harness.rocketmq_broker import Broker

SILENT = SubscriptionGroupConfig(notify_consumer_ids_changed_enable=False)


def event_types(effects: Effects) -> list[EntryType]:
    return [event.type for event in effects.history]


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "b", number) for number in range(count)]


def numbers(name: str, client_id: str, count: int, client_ids: list[str]) -> list[int]:
    share = strategy_named(name, Settings()).allocate("G", client_id, queues(count), client_ids)
    return [queue.queue_id for queue in share or []]


def test_s7_members_that_do_not_subscribe_to_a_topic_count_too() -> None:
    broker = Broker()
    broker.heartbeat("A", "ch1", "T")
    broker.heartbeat("B", "ch2", "U")
    assert broker.consumer_list().consumer_id_list == ("A", "B")


def test_s8_the_list_of_a_group_without_members_is_an_error() -> None:
    broker = Broker()
    nobody = (ResponseCode.SYSTEM_ERROR, "no consumer for this group, G", ())
    answer = broker.consumer_list()
    assert (answer.code, answer.remark, answer.consumer_id_list) == nobody
    broker.heartbeat("A", "ch1")
    assert broker.consumer_list().code is ResponseCode.SUCCESS
    broker.unregister("A", "ch1")
    answer = broker.consumer_list()
    assert (answer.code, answer.remark, answer.consumer_id_list) == nobody
    assert broker.group is None


def test_s9_queues_and_ids_are_sorted_as_java_sorts() -> None:
    assert sort_client_ids(["CID-2", "\uff01", "\N{GRINNING FACE}", "CID-10"]) == [
        *("CID-10", "CID-2", "\N{GRINNING FACE}", "\uff01")
    ]
    in_order = [MessageQueue("T", "a", 2), MessageQueue("T", "a", 10), MessageQueue("T", "b", 0)]
    assert sort_queues(reversed(in_order)) == in_order


def test_s10_s12_avg_gives_4_and_3_of_7_queues() -> None:
    assert AllocateMessageQueueAveragely.name == "AVG"
    assert numbers("AVG", "b", 4, ["a", "b"]) == [2, 3]
    assert [numbers("AVG", c, 7, ["a", "b"]) for c in "ab"] == [[0, 1, 2, 3], [4, 5, 6]]


def test_s13_s14_one_heartbeat_registers_every_consumer_and_producer_group() -> None:
    heartbeat = HeartbeatData(
        client_id="A",
        consumer_data_set=(
            ConsumerData(group_name="G", message_model=MessageModel.CLUSTERING),
            ConsumerData(group_name="unknown", message_model=MessageModel.CLUSTERING),
        ),
        producer_groups=("G", "P"),
    )
    origin = Origin(connection="ch1", correlation_id="c", reply_partition=3)
    parts = split_heartbeat(heartbeat, origin, {"G": SILENT})
    consumer, unknown, producer, other_producer = parts
    assert isinstance(consumer, RegisterConsumer)
    assert isinstance(unknown, RegisterConsumer)
    assert isinstance(producer, RegisterProducer)
    assert (consumer.group_id, consumer.connection, consumer.client_id) == ("G", "ch1", "A")
    assert (consumer.group_config, unknown.group_config) == (SILENT, None)
    assert (producer.group_id, other_producer.group_id) == ("G", "P")
    broker = Broker()
    broker.send(consumer)
    effects = broker.send(producer)
    assert effects.replies[0].reply_partition == 3
    assert broker.group is not None
    assert (list(broker.group.channels), list(broker.group.producers)) == (["ch1"], ["ch1"])


def test_s14_a_group_without_configuration_is_silently_not_registered() -> None:
    effects = (broker := Broker()).heartbeat("A", "ch1", config=None)
    response = effects.replies[0].response
    assert isinstance(response, RegisterResponse)
    assert (response.code, response.changed) == (ResponseCode.SUCCESS, False)
    assert (broker.group, effects.calls, effects.notified) == (None, [], [])


def test_s15_joining_leaving_closing_and_other_topics_notify_every_connection() -> None:
    broker = Broker()
    assert broker.heartbeat("A", "ch1").notified == ["ch1"]
    assert broker.heartbeat("B", "ch2").notified == ["ch1", "ch2"]
    assert broker.heartbeat("C", "ch3").notified == ["ch1", "ch2", "ch3"]
    assert broker.heartbeat("A", "ch1", "T", "U").notified == ["ch1", "ch2", "ch3"]
    assert broker.heartbeat("B", "ch2", "T").notified == ["ch1", "ch2", "ch3"]
    assert broker.unregister("A", "ch1").notified == ["ch2", "ch3"]
    assert broker.unregister("A", "ch1").notified == ["ch2", "ch3"]  # although it was not registered any more
    assert broker.close("ch2").notified == ["ch3"]
    assert broker.close("ch2").notified == []
    assert broker.close("ch3").notified == []


def test_s15_refreshes_versions_swaps_and_expiry_notify_nobody() -> None:
    broker = Broker()
    broker.heartbeat("A", "ch1")
    broker.heartbeat("B", "ch2")
    assert broker.heartbeat("A", "ch1").notified == []
    assert broker.heartbeat("A", "ch1", version=2).notified == []
    swapped = broker.heartbeat("A2", "ch1", version=2)
    assert (swapped.notified, event_types(swapped)) == ([], [EntryType.CLIENT_ID_REPLACED])
    broker.now_ms = 60_000
    broker.heartbeat("B", "ch2")
    expired = broker.scan()
    assert broker.now_ms == 130_000
    assert (expired.notified, expired.closed) == ([], ["ch1"])
    assert broker.consumer_list().consumer_id_list == ("B",)


def test_s16_the_broker_and_each_group_can_switch_notification_off() -> None:
    silent_broker = Broker(BrokerConfig(notify_consumer_ids_changed_enable=False))
    assert silent_broker.heartbeat("A", "ch1").notified == []
    assert silent_broker.close("ch1").notified == []
    silent_group = Broker()
    silent_group.heartbeat("A", "ch1", config=SILENT)
    assert silent_group.heartbeat("B", "ch2", config=SILENT).notified == []
    assert silent_group.close("ch2").notified == [
        "ch1"
    ]  # a closed connection ignores the group's configuration


def test_s15_broadcasting_groups_are_never_notified() -> None:
    broker = Broker()
    broker.heartbeat("A", "ch1", model=MessageModel.BROADCASTING)
    assert broker.heartbeat("B", "ch2", model=MessageModel.BROADCASTING).notified == []
    assert broker.unregister("A", "ch1").notified == []
    assert broker.close("ch2").notified == []


def test_s18_a_duplicate_client_id_is_listed_twice_and_reported_with_both_connections() -> None:
    broker = Broker()
    broker.heartbeat("X", "ch1")
    broker.now_ms = 7_000
    effects = broker.heartbeat("X", "ch2")
    assert broker.consumer_list().consumer_id_list == ("X", "X")
    assert effects.notified == ["ch1", "ch2"]
    [report] = [e for e in effects.history if e.type is EntryType.DUPLICATE_CLIENT_ID]
    assert (report.client_id, report.connection, report.connections) == ("X", "ch2", ["ch1", "ch2"])
    assert "ch1 (last heard of 7000 ms ago)" in report.reason
    assert broker.group is not None
    assert broker.group.duplicate_client_ids() == {"X": ["ch1", "ch2"]}
    assert broker.heartbeat("X", "ch2").history == []  # it was notified
    over = broker.close("ch1").history
    assert [e.connection for e in over if e.type is EntryType.DUPLICATE_CLIENT_ID_OVER] == ["ch2"]
    assert broker.group.duplicate_client_ids() == {}


def test_s18_a_connection_can_take_another_ones_id() -> None:
    broker = Broker()
    broker.heartbeat("X", "ch1")
    broker.heartbeat("Y", "ch2")
    taken = broker.heartbeat("X", "ch2")
    assert event_types(taken) == [EntryType.CLIENT_ID_REPLACED, EntryType.DUPLICATE_CLIENT_ID]
    given_back = broker.heartbeat("Y", "ch2")
    assert event_types(given_back) == [EntryType.CLIENT_ID_REPLACED, EntryType.DUPLICATE_CLIENT_ID_OVER]


@pytest.mark.parametrize(
    ("name", "share"), [("AVG", [0, 1]), ("AVG_BY_CIRCLE", [0, 2]), ("CONSISTENT_HASH", [0, 1, 2, 3])]
)
def test_s18_both_clients_of_one_id_take_the_same_share(name: str, share: list[int]) -> None:
    assert numbers(name, "X", 4, ["X", "X"]) == share


@pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_s19_one_view_is_a_partition_and_two_views_are_not(name: str) -> None:
    one_view = sorted(n for c in ("a", "b", "c") for n in numbers(name, c, 9, ["a", "b", "c"]))
    assert one_view == list(range(9))
    stale = numbers(name, "a", 9, ["a"])  # a does not know the others yet
    fresh = [n for c in ("b", "c") for n in numbers(name, c, 9, ["a", "b", "c"])]
    assert sorted(stale + fresh) != list(range(9))


def test_a_scan_of_a_group_that_is_gone_does_nothing() -> None:
    effects = step(None, "G", ScanDue(10_000), 10_000, BrokerConfig())
    assert (effects.group, effects.history, effects.calls) == (None, [], [])
