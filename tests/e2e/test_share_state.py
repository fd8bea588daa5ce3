"""The share-state thread beside a real broker: what it makes of the tasks in groups' views, and what a share
group of the coordinator gets by it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import UpdateFeatureType

from clients.coordinator_client import CoordinatorClient
from connections import kafka_clients
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from state.errors import ErrorCode
from state.kafka.history import EntryType
from state.kafka.requests import DeleteGroup
from state.kafka.share_requests import (
    ShareGroupHeartbeat,
    ShareStatePartition,
)
from state.kafka.topic_images import TopicImage
from streaming.service.share_state import thread as share_state
from streaming.service.share_state.broker_coordinators import BrokerCoordinators
from streaming.service.share_state.carrying_out import Summary, carry_out
from streaming.service.share_state.summary import NOT_PERMITTED
from tests.e2e.harness import history_of, wait_until
from tests.e2e.share_tasks import NO_STATE, Groups, Topic, to_delete, to_initialize, working
from tests.harness.secured_broker import ADMIN, COORDINATOR, Allowed, ClusterSecurity, SecuredBroker, grant

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


@pytest.fixture(scope="module")
def calls(broker: EmbeddedBroker) -> Iterator[BrokerCoordinators]:
    with BrokerCoordinators(broker.client_config, lambda: True) as calls:
        yield calls


@pytest.fixture
def orders(broker: EmbeddedBroker, calls: BrokerCoordinators) -> Topic:
    topic = Topic(broker.client_config, calls)
    assert topic.recorded() == NO_STATE
    return topic


@pytest.fixture
def groups(broker: EmbeddedBroker) -> Iterator[Groups]:
    producer = kafka_clients.producer(broker.client_config)
    yield Groups(broker.client_config, producer)
    producer.close()


def test_a_state_that_is_recorded_is_never_written_again(orders: Topic, calls: BrokerCoordinators) -> None:
    """Timeline SL18: a share coordinator accepts the same epoch twice and forgets how far the group was. So
    the recorded state decides (rows SP11, SK8, SK11).
    """
    done = ShareStatePartition(orders.id, 0)
    assert carry_out([orders.item(2)], calls) == {orders.key(): done}
    assert orders.recorded() == Summary(0, 2, -1)
    assert orders.write(orders.item(2, 100)) == ErrorCode.NONE, "it is not idempotent"
    assert orders.recorded() == Summary(0, 2, 100), "progress of the group"

    assert carry_out([orders.item(2)], calls) == {orders.key(): done}
    assert orders.recorded() == Summary(0, 2, 100)
    fenced = ShareStatePartition(orders.id, 0, ErrorCode.FENCED_STATE_EPOCH, 2, 100)
    assert orders.write(orders.item(1)) == ErrorCode.FENCED_STATE_EPOCH
    assert carry_out([orders.item(1)], calls) == {orders.key(): fenced}
    assert carry_out([orders.item(4)], calls) == {orders.key(): done}
    assert orders.recorded() == Summary(0, 2, 100)
    assert carry_out([orders.item(4, 20)._replace(is_altered=True)], calls) == {orders.key(): done}
    assert orders.recorded() == Summary(0, 4, 20)

    assert carry_out([orders.deletion()], calls) == {orders.key(): done}
    assert orders.recorded() == NO_STATE
    assert carry_out([orders.deletion()], calls) == {orders.key(): done}, (
        "what is not there counts as deleted"
    )


def test_tasks_in_views_are_carried_out(orders: Topic, groups: Groups, calls: BrokerCoordinators) -> None:
    """A task has its outcomes in one record, in the group's partition. A task that another process asked for
    again changes nothing (row SP12), and neither does a thread that was killed before its record (SP13).
    """
    key = orders.group_id
    with working(groups.client_config, groups.layout) as thread:
        groups.publish(key, to_initialize("1-0#0", orders, [0, 1], epoch=2))
        assert groups.wait_for("1-0#0") == [ShareStatePartition(orders.id, n) for n in (0, 1)]
        assert orders.write(orders.item(2, 70)) == ErrorCode.NONE
        groups.publish(key)
        wait_until(lambda: not thread.summary.tasks, "the task is closed")
        assert (thread.summary.initialized, thread.summary.failures) == (2, ())
    # The record of this one was lost, so the view still shows the task.
    groups.publish(key, to_initialize("1-1#0", orders, [0, 2], epoch=2))
    with working(groups.client_config, groups.layout), working(groups.client_config, groups.layout):
        wait_until(lambda: sum(one.task == "1-1#0" for one in groups.told()) == 2, "both tell the outcome")
    assert [orders.recorded(n) for n in (0, 2)] == [Summary(0, 2, 70), Summary(0, 2, -1)]

    with working(groups.client_config, groups.layout) as thread:
        groups.publish(key, to_initialize("1-2#0", orders, [0], epoch=1))
        fenced = ShareStatePartition(orders.id, 0, ErrorCode.FENCED_STATE_EPOCH, 2, 70)
        assert groups.wait_for("1-2#0") == [fenced]
        groups.publish(key, to_delete("1-3#0", orders, [0, 1, 2]))
        assert groups.wait_for("1-3#0") == [ShareStatePartition(orders.id, n) for n in range(3)]
        assert (thread.summary.adopted, thread.summary.deleted) == (1, 3)
    assert [orders.recorded(n) for n in range(3)] == [NO_STATE] * 3


def test_what_a_deleted_topic_had_counts_as_deleted(orders: Topic, groups: Groups) -> None:
    """Row SK5. Brokers answer 3 for it, as they do for a topic that they do not know yet."""
    with working(groups.client_config, groups.layout):
        groups.publish(orders.group_id, to_initialize("1-0#0", orders, [0], epoch=2))
        groups.wait_for("1-0#0")
        admin = kafka_clients.admin(groups.client_config)
        admin.delete_topics([orders.name])
        admin.close()
        groups.publish(orders.group_id, to_delete("1-1#0", orders, [0]))
        assert groups.wait_for("1-1#0") == [ShareStatePartition(orders.id, 0)]


def test_a_member_gets_partitions(
    broker: EmbeddedBroker, layout: TopicLayout, calls: BrokerCoordinators, record_property: Any
) -> None:
    """The whole way: a heartbeat asks for the partitions, the thread has them initialized, and the next
    heartbeats assign them. Deleting the group deletes their state (rows SI5, SI13, SP17).
    """
    orders = Topic(broker.client_config, calls)
    images = {orders.name: TopicImage(orders.id, 3)}
    with CoordinatorClient(broker.client_config, layout, client_id="share") as client:

        def beat(epoch: int, **fields: Any) -> Any:
            header = client.header(orders.group_id, 1)
            request = ShareGroupHeartbeat(**header, member_id="m", member_epoch=epoch, **fields)
            return client.send(request).result(60)

        began_s = time.monotonic()
        answer = beat(0, subscribed_topic_names=[orders.name], topics=images)
        assert (answer.error_code, answer.member_epoch) == (0, 2)
        assigned: list[int] = []

        def has_all() -> bool:
            nonlocal answer
            answer = beat(answer.member_epoch)
            if answer.assignment is not None:
                assigned[:] = [n for topic in answer.assignment for n in topic.partitions]
            return sorted(assigned) == [0, 1, 2]

        wait_until(has_all, "the member has all partitions")
        record_property("first partitions after s", round(time.monotonic() - began_s, 2))
        assert [orders.recorded(n) for n in range(3)] == [Summary(0, 2, -1)] * 3
        beat(-1)
        header = client.header(orders.group_id, 2)
        assert client.send(DeleteGroup(**header)).result(90).error_code == ErrorCode.NONE
    assert [orders.recorded(n) for n in range(3)] == [NO_STATE] * 3
    types = [entry.type for entry in history_of(broker.client_config, layout, orders.group_id)]
    assert EntryType.SHARE_PARTITIONS_INITIALIZED in types


def test_without_the_permission_tasks_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that authorizes, and has granted all but CLUSTER_ACTION: the alarm says what to grant, the
    task stays open, and goes on when it is granted. The look makes nothing at the brokers, and
    no error in their logs. Where the cluster has no share groups there is nothing to grant.
    """
    monkeypatch.setattr(share_state, "_CHECK_PAUSE_S", 0.2)
    security = ClusterSecurity(tmp_path / "security", authorizes=True)
    with SecuredBroker(tmp_path / "broker", security) as broker:
        admins = broker.config_of(ADMIN)
        admin = kafka_clients.admin(admins)
        topics = Allowed(COORDINATOR, "TOPIC", "*", "LITERAL", ("DESCRIBE", "READ", "WRITE"))
        grant(admins, [topics])
        producer = kafka_clients.producer(admins)
        groups = Groups(admins, producer)
        asked = groups.layout.requests_topic
        set_share_version(admin, 0)
        with BrokerCoordinators(broker.client_config, lambda: True) as calls:
            wait_until(lambda: not calls.are_refused(asked), "the feature is off")
            set_share_version(admin, 1)
            wait_until(lambda: calls.are_refused(asked), "the feature is on")
        assert " ERROR " not in (tmp_path / "broker" / "broker.log").read_text()
        with (
            BrokerCoordinators(admins, lambda: True) as of_admin,
            working(broker.client_config, groups.layout) as thread,
        ):
            orders = Topic(admins, of_admin)
            groups.publish(orders.group_id, to_initialize("1-0#0", orders, [0], epoch=2))
            wait_until(lambda: thread.summary.alarm == NOT_PERMITTED, "the alarm")
            assert dict(thread.summary.failures) == {"31": 1}
            assert not any(topic.startswith("__share") for topic in admin.list_topics())
            assert groups.told() == []
            grant(admins, [Allowed(COORDINATOR, "CLUSTER", "kafka-cluster", "LITERAL", ("CLUSTER_ACTION",))])
            assert groups.wait_for("1-0#0") == [ShareStatePartition(orders.id, 0)]
            assert thread.summary.alarm is None
            assert orders.recorded() == Summary(0, 2, -1)
            assert not of_admin.are_refused(asked)
        producer.close()
        admin.close()


def set_share_version(admin: KafkaAdminClient, level: int) -> None:
    """Turn share groups off (0) or on."""
    kind = UpdateFeatureType.SAFE_DOWNGRADE if level == 0 else UpdateFeatureType.UPGRADE
    admin.update_features({"share.version": (kind, level)})
