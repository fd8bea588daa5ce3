"""RocketMQ's groups in `groups`, from views of the real core."""

import json

import msgspec

from kafka_why.contract.rocketmq.history import GroupSnapshot
from kafka_why.contract.rocketmq.requests import (
    MessageModel,
    MessageRequestMode,
    RegisterProducer,
    SetMessageRequestMode,
    SubscriptionGroupConfig,
)
from kafka_why.groups.list_groups import list_row, select_groups
from kafka_why.groups.render import group_list
from kafka_why.groups.rocketmq import (
    client_table,
    rocketmq_remarks,
    rocketmq_row,
    rocketmq_state_table,
    topic_table,
)
from kafka_why.metrics.collector import rocketmq_gauges
from kafka_why.metrics.series import SeriesSelection
from kafka_why.page.findings import FindingKind, findings
from kafka_why.page.fleet import GroupFacts
from state.rocketmq.protocol import snapshot
from tests.harness.rocketmq_broker import Broker, of
from tests.unit.kafka_why.page_facts import looks
from tests.unit.kafka_why.page_facts import view as kafka_view
from tests.unit.kafka_why.test_why_rocketmq import gateway_story


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
    return snapshot(broker.group_now())


def producers_only() -> GroupSnapshot:
    broker = Broker()
    broker.send(RegisterProducer(**of("app", "c2")))
    return view(broker)


def test_list_includes_kafka_and_rocketmq_groups() -> None:
    rows = select_groups([list_row(kafka_view("a")), list_row(shop())], frozenset(), frozenset())
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
GROUP           CLIENT-ID       ADDRESS         BROKER     CONNECTION      ROLE     LANGUAGE VERSION REMARK
G               app             -               -          c2              consumer JAVA     0       DUPLICATE CLIENT ID
G               app             -               -          c3              consumer JAVA     0       DUPLICATE CLIENT ID
G               till            -               -          c1              consumer JAVA     0
G               app             -               -          c2              producer JAVA     0
    """)  # noqa: E501
    (duplicate,) = rocketmq_remarks(row)
    assert duplicate.startswith(
        "Warning: 2 clients of group 'G' have the client id 'app' (c2, c3): they take the same queues, "
        "and other queues may have no consumer. To do: stop one of them, or give it a client id"
    )


def test_clients_with_different_subscriptions_are_described_and_counted_once() -> None:
    group = view(gateway_story())
    row = rocketmq_row(group)
    (remark,) = rocketmq_remarks(row)
    each = "orders: worker-1 (10.0.0.1:5); users: worker-2 (10.0.0.2:5)"
    assert remark.startswith(f"Warning: clients of group 'G' have different subscriptions: {each}. A broker")
    first = " ".join(client_table(row).splitlines()[1].split())
    assert first == "G worker-1 10.0.0.1:5 b/0 worker-1@b/0 consumer JAVA 0 subscribes to orders"
    (found,) = findings(GroupFacts("G", group, {}, (), 0), None, 0)
    assert found.kind is FindingKind.DIFFERENT_SUBSCRIPTIONS
    (shared,) = findings(GroupFacts("G", shop(), {}, (), 0), None, 0)
    assert shared.sentence.startswith(
        "Clients share one id, so queues may have no consumer: app: c2, c3. To do:"
    )
    assert findings(GroupFacts("G", shop(MessageModel.BROADCASTING), {}, (), 0), None, 0) == []
    assert found.sentence.startswith(f"Its clients have different subscriptions: {each}. To do: give all")
    (metric,) = [
        family
        for family in rocketmq_gauges({"G": group}, SeriesSelection(frozenset({"G"})))
        if family.name == "group_coordinator_rocketmq_different_subscriptions"
    ]
    assert [sample.value for sample in metric.samples if sample.labels == {"consumergroup": "G"}] == [2]


def test_group_without_consumers_and_quarantined_group_have_remarks() -> None:
    row = rocketmq_row(producers_only())
    assert list(rocketmq_remarks(row)) == ["Consumer group 'G' has no active members."]
    assert rocketmq_state_table(row).splitlines()[1].split() == ["G", "RocketMQ", "Offline", *"---", "0", "0"]
    broken = msgspec.structs.replace(shop(), quarantined="KeyError: 1", truncated=True, consumers=[])
    said = list(rocketmq_remarks(rocketmq_row(broken)))
    assert any("quarantined: KeyError: 1" in line for line in said)
    assert any("too large for the groups topic" in line for line in said)
    assert rocketmq_row(broken).state == "Online"
