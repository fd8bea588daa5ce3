"""How `groups` describes RocketMQ's groups, from views that the real core made."""

import json
from textwrap import dedent

import msgspec

from kafka_why.contract.rocketmq.queues import MessageRequestMode
from kafka_why.contract.rocketmq.requests import (
    MessageModel,
    RegisterProducer,
    SetMessageRequestMode,
    SubscriptionGroupConfig,
)
from kafka_why.contract.rocketmq.snapshot import GroupSnapshot
from kafka_why.groups.list_groups import listed, select_groups
from kafka_why.groups.render import group_list
from kafka_why.groups.rocketmq import (
    client_table,
    rocketmq_remarks,
    rocketmq_row,
    rocketmq_state_table,
    topic_table,
)
from state.rocketmq.protocol import snapshot
from tests.harness.rocketmq_broker import Broker, of
from tests.unit.kafka_why.page_facts import view as kafka_view


def looks(text: str) -> str:
    return dedent(text).strip("\n")


def shop(model: MessageModel = MessageModel.CLUSTERING) -> GroupSnapshot:
    """Return a group of three connections; two have the same client id, and one is also a producer's."""
    broker = Broker()
    for client_id, connection in (("till", "c1"), ("app", "c2"), ("app", "c3")):
        broker.heartbeat(client_id, connection, "orders", "prices", model=model)
    broker.send(RegisterProducer(**of("app", "c2")))
    broker.set_mode(
        SetMessageRequestMode(
            **of("app"),
            topic="orders",
            mode=MessageRequestMode.POP,
            pop_share_queue_num=1,
            group_config=SubscriptionGroupConfig(),
        )
    )
    return view(broker)


def view(broker: Broker) -> GroupSnapshot:
    assert broker.group is not None
    return snapshot(broker.group)


def producers_only() -> GroupSnapshot:
    broker = Broker()
    broker.send(RegisterProducer(**of("app", "c2")))
    return view(broker)


def test_list_includes_kafka_and_rocketmq_groups() -> None:
    rows = select_groups([listed(kafka_view("a")), listed(shop())], frozenset(), frozenset())
    assert group_list(rows, with_type=True, with_state=True) == looks("""
GROUP                     TYPE                 STATE                #CLIENTS CLIENT-VERSION
a                         Classic              Stable               -        -
G                         RocketMQ             Online               2        JAVA 0
    """)
    assert group_list(rows, with_type=False, with_state=False) == "a\nG"
    assert json.loads(msgspec.json.encode(rows)) == [
        {"group": "a", "type": "Classic", "state": "Stable", "protocol_type": "consumer"},
        {
            "group": "G",
            "type": "RocketMQ",
            "state": "Online",
            "protocol_type": "",
            "clients": 2,
            "client_versions": ["JAVA 0"],
        },
    ]


def test_described_group_marks_consumers_that_share_a_client_id() -> None:
    row = rocketmq_row(shop())
    assert rocketmq_state_table(row) == looks("""
GROUP           TYPE       STATE      MESSAGE-MODEL   CONSUME-TYPE       CONSUME-FROM-WHERE        #CLIENTS #CONNECTIONS
G               RocketMQ   Online     CLUSTERING      CONSUME_PASSIVELY  CONSUME_FROM_LAST_OFFSET  2        3
    """)  # noqa: E501
    assert topic_table(row) == looks("""
GROUP           TOPIC           FILTER          QUEUES-DEALT-OUT-BY
G               orders          *               coordinator (POP)
G               prices          *               clients
    """)
    assert client_table(row) == looks("""
GROUP           CLIENT-ID       CONNECTION      ROLE     LANGUAGE VERSION REMARK
G               app             c2              consumer JAVA     0       DUPLICATE CLIENT ID
G               app             c3              consumer JAVA     0       DUPLICATE CLIENT ID
G               till            c1              consumer JAVA     0
G               app             c2              producer JAVA     0
    """)
    assert list(rocketmq_remarks(row)) == [
        "Warning: 2 connections of group 'G' have the client id 'app': "
        "they take the same queues, and other queues may have no consumer."
    ]


def test_group_without_consumers_and_quarantined_group_have_remarks() -> None:
    row = rocketmq_row(producers_only())
    assert list(rocketmq_remarks(row)) == ["Consumer group 'G' has no active members."]
    assert rocketmq_state_table(row).splitlines()[1].split() == ["G", "RocketMQ", "Offline", *"---", "0", "0"]
    broken = msgspec.structs.replace(shop(), quarantined="KeyError: 1", truncated=True, consumers=[])
    said = list(rocketmq_remarks(rocketmq_row(broken)))
    assert any("quarantined: KeyError: 1" in line for line in said)
    assert any("too large for the groups topic" in line for line in said)
    assert rocketmq_row(broken).state == "Online"
