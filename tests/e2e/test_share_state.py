"""The share-state thread beside a real broker: what it makes of the tasks in groups' views, and what a share
group of the coordinator gets by it.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import UpdateFeatureType

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import decode_request, encode
from kafka_why.contract.kafka.share_requests import ShareStatePartition, ShareStateResult
from kafka_why.contract.kafka.snapshot import ShareSnapshot, ShareTask, ShareTaskPartitions
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from streaming.service.share_state import thread as share_state
from streaming.service.share_state.open_tasks import NOT_PERMITTED
from streaming.service.share_state.partition_tasks import (
    PartitionTask,
    RecordedState,
    SharePartition,
    carry_out,
)
from streaming.service.share_state.thread import BrokerCoordinators, ShareStateThread
from streaming.service.topics import prepare_topics
from tests.e2e.harness import create_topic, new_layout, read_topic, topic_id_of, wait_until
from tests.harness.group_views import view_with
from tests.harness.secured_broker import ADMIN, COORDINATOR, Allowed, ClusterSecurity, SecuredBroker, grant

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


NO_STATE = RecordedState(0, 0, -1)


class Topic:
    """A topic of three partitions, and the share coordinators of a group's partitions of it."""

    def __init__(self, client_config: ClientConfig, calls: BrokerCoordinators) -> None:
        self.name = f"orders-{uuid.uuid4()}"
        create_topic(client_config, self.name, 3, {})
        self.id = uuid.UUID(topic_id_of(client_config, self.name))
        self.group_id = f"workers:{uuid.uuid4()}"  # with the separator of the coordinators' keys
        self._calls = calls

    def key(self, partition: int = 0) -> SharePartition:
        return SharePartition(self.group_id, self.id, partition)

    def item(self, state_epoch: int, start_offset: int = -1, partition: int = 0) -> PartitionTask:
        return PartitionTask("t", self.key(partition), self.name, False, state_epoch, start_offset)

    def deletion(self, partition: int = 0) -> PartitionTask:
        return PartitionTask("t", self.key(partition), self.name, True)

    def recorded(self, partition: int = 0) -> RecordedState:
        """Return what the share coordinator has recorded, by a reading of its own."""
        found: list[RecordedState] = []

        def is_read() -> bool:
            node_id, code = self._calls.find([self.key()])[self.key()]
            found[:] = [] if code else [self._calls.read(node_id, [self.key(partition)])[self.key(partition)]]
            return bool(found) and found[0].error_code not in (3, 14, 15, 16)

        wait_until(is_read, "a share coordinator answers")
        return found[0]

    def write(self, item: PartitionTask) -> int:
        """Initialize whatever is recorded, as nobody should: the error code."""
        node_id, _ = self._calls.find([item.key])[item.key]
        return self._calls.initialize(node_id, [item])[item.key]


class Groups:
    """The views that share groups publish, and what the thread tells them."""

    def __init__(self, client_config: ClientConfig, producer: KafkaProducer) -> None:
        self.client_config = client_config
        self.layout = new_layout(request_partitions=2)
        prepare_topics(client_config, self.layout)
        self._producer = producer

    def publish(self, group_id: str, *tasks: ShareTask) -> None:
        view = view_with(group_id, share=ShareSnapshot({}, {}, {}, list(tasks)))
        self._producer.send(self.layout.groups_topic, key=group_id.encode(), value=encode(view)).get(60)

    def told(self) -> list[ShareStateResult]:
        requests = [
            decode_request(record.value)
            for record in read_topic(self.client_config, self.layout.requests_topic)
            if record.key is not None
        ]
        return [request for request in requests if isinstance(request, ShareStateResult)]

    def wait_for(self, task: str) -> list[ShareStatePartition]:
        """Return the outcomes of the task, in one record."""
        wait_until(lambda: any(one.task == task for one in self.told()), f"outcomes of {task}")
        (told,) = [one for one in self.told() if one.task == task]
        return told.partitions


@contextmanager
def working(client_config: ClientConfig, layout: TopicLayout) -> Iterator[ShareStateThread]:
    thread = ShareStateThread(client_config, layout, lambda: True, settle_s=0.0)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def to_initialize(task: str, topic: Topic, numbers: list[int], epoch: int, offset: int = -1) -> ShareTask:
    partitions = ShareTaskPartitions(str(topic.id), topic.name, numbers, epoch, offset)
    return ShareTask(task, "initialize", time.time_ns() // 1_000_000, [partitions])


def to_delete(task: str, topic: Topic, numbers: list[int]) -> ShareTask:
    partitions = ShareTaskPartitions(str(topic.id), topic.name, numbers)
    return ShareTask(task, "delete", time.time_ns() // 1_000_000, [partitions])


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
    assert orders.recorded() == RecordedState(0, 2, -1)
    assert orders.write(orders.item(2, 100)) == ErrorCode.NONE, "it is not idempotent"
    assert orders.recorded() == RecordedState(0, 2, 100), "progress of the group"

    assert carry_out([orders.item(2)], calls) == {orders.key(): done}
    assert orders.recorded() == RecordedState(0, 2, 100)
    fenced = ShareStatePartition(orders.id, 0, ErrorCode.FENCED_STATE_EPOCH, 2, 100)
    assert orders.write(orders.item(1)) == ErrorCode.FENCED_STATE_EPOCH
    assert carry_out([orders.item(1)], calls) == {orders.key(): fenced}
    assert carry_out([orders.item(4)], calls) == {orders.key(): done}
    assert orders.recorded() == RecordedState(0, 2, 100)
    assert carry_out([orders.item(4, 20)._replace(is_altered=True)], calls) == {orders.key(): done}
    assert orders.recorded() == RecordedState(0, 4, 20)

    assert carry_out([orders.deletion()], calls) == {orders.key(): done}
    assert orders.recorded() == NO_STATE
    assert carry_out([orders.deletion()], calls) == {orders.key(): done}, (
        "what is not there counts as deleted"
    )


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


def test_tasks_wait_while_the_permission_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        log = (tmp_path / "broker" / "broker.log").read_text()
        # On a busy machine a broker is late to register with its controller, and repeats it.
        errors = [
            it for it in log.splitlines() if " ERROR " in it and " ControllerRegistrationManager:" not in it
        ]
        assert errors == []
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
            assert orders.recorded() == RecordedState(0, 2, -1)
            assert not of_admin.are_refused(asked)
        producer.close()
        admin.close()


def set_share_version(admin: KafkaAdminClient, level: int) -> None:
    """Turn share groups off (0) or on."""
    kind = UpdateFeatureType.SAFE_DOWNGRADE if level == 0 else UpdateFeatureType.UPGRADE
    admin.update_features({"share.version": (kind, level)})
