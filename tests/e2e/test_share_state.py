"""The share-state thread beside a real broker: how it carries out the tasks in groups' views, and what a
share group of the coordinator gains by it.
"""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, UpdateFeatureType

from cli import main
from embedded.broker import EmbeddedBroker
from gateway.net.server import GatewayOptions
from gateway.service import serving
from gateway.upstream.share_groups import Coordinators
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import decode_request, encode
from kafka_why.contract.kafka.share_requests import ShareStatePartition, ShareStateResult
from kafka_why.contract.kafka.snapshot import ShareSnapshot, ShareTask, ShareTaskPartitions
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.page.deliveries import DeliveriesCache
from kafka_why.why.deliveries.report import read_deliveries
from kafka_why.why.history import read_history
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
from tests.e2e.gateway_clients import PARTITIONS, new_group, produce
from tests.e2e.harness import create_topic, new_layout, read_topic, topic_id_of, wait_until
from tests.harness.group_views import view_with
from tests.harness.kafkas_shares import JavaShares
from tests.harness.secured_broker import ADMIN, COORDINATOR, Allowed, ClusterSecurity, SecuredBroker, grant
from tests.unit.kafka_why.test_page_access import answer
from tests.unit.kafka_why.test_page_access import serving as page_of

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
        """Return the share coordinator's recorded state, read independently."""
        found: list[RecordedState] = []

        def is_read() -> bool:
            node_id, code = self._calls.find([self.key()])[self.key()]
            found[:] = [] if code else [self._calls.read(node_id, [self.key(partition)])[self.key(partition)]]
            return bool(found) and found[0].error_code not in (3, 14, 15, 16)

        wait_until(is_read, "a share coordinator answers")
        return found[0]

    def write(self, item: PartitionTask) -> int:
        """Initialize the state whatever is recorded, which nobody should do. Return the error code."""
        node_id, _ = self._calls.find([item.key])[item.key]
        return self._calls.initialize(node_id, [item])[item.key]


class Groups:
    """The views that share groups publish, and the outcomes that the thread sends them."""

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


def test_recorded_share_state_is_never_overwritten(orders: Topic, calls: BrokerCoordinators) -> None:
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


def test_share_state_of_a_deleted_topic_counts_as_deleted(orders: Topic, groups: Groups) -> None:
    """Row SK5. Brokers answer 3 for it, as they do for a topic that they do not know yet."""
    with working(groups.client_config, groups.layout):
        groups.publish(orders.group_id, to_initialize("1-0#0", orders, [0], epoch=2))
        groups.wait_for("1-0#0")
        admin = kafka_clients.admin(groups.client_config)
        admin.delete_topics([orders.name])
        admin.close()
        groups.publish(orders.group_id, to_delete("1-1#0", orders, [0]))
        assert groups.wait_for("1-1#0") == [ShareStatePartition(orders.id, 0)]


def test_share_tasks_wait_until_access_is_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with an authorizer has granted everything except CLUSTER_ACTION. The alarm names the missing
    right, and the task stays open until it is granted. The check creates nothing at the brokers, and logs no
    error there. In a cluster without share groups nothing has to be granted.
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
            wait_until(lambda: not calls.is_permission_missing(asked), "the feature is off")
            set_share_version(admin, 1)
            wait_until(lambda: calls.is_permission_missing(asked), "the feature is on")
        log = (tmp_path / "broker" / "broker.log").read_text()
        # On a busy machine a broker is late to register with its controller, or with its heartbeats.
        late = (" ControllerRegistrationManager:", " ReplicationControlManager:")
        errors = [it for it in log.splitlines() if " ERROR " in it and not any(name in it for name in late)]
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
            assert not of_admin.is_permission_missing(asked)
        producer.close()
        admin.close()


def set_share_version(admin: KafkaAdminClient, level: int) -> None:
    """Turn share groups off (0) or on."""
    kind = UpdateFeatureType.SAFE_DOWNGRADE if level == 0 else UpdateFeatureType.UPGRADE
    admin.update_features({"share.version": (kind, level)})


POISON, RECORDS, LIMIT = 7, 20, 3
PARTITION = 0
VALUES = range(0, RECORDS * PARTITIONS, PARTITIONS)
"""Of the records, by offset."""
POISON_VALUE = VALUES[POISON]


def give_back(address: str, group: str, topic: str, folder: Path) -> list[int]:
    """Let two members fetch until the poison record is no longer delivered. Return its delivery counts."""
    with JavaShares(address, folder) as shares, ExitStack() as stack:
        members = [stack.enter_context(shares.join(group, topic, str(POISON_VALUE))) for _ in range(2)]

        def counts() -> list[int]:
            return sorted(count for member in members for count in member.deliveries.get(POISON_VALUE, ()))

        def are_done() -> bool:
            return len(counts()) >= LIMIT and {value for m in members for value in m.deliveries} == {*VALUES}

        wait_until(are_done, "the records came, and the poison to its limit")
        last = len(VALUES) * PARTITIONS
        produce(address, topic, [last])
        wait_until(lambda: any(last in member.deliveries for member in members), "one more record")
        return counts()


def set_up(servers: ClientConfig, group: str) -> None:
    """Set the group's settings at the broker, because the gateway would wait for the coordinator."""
    settings = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(LIMIT)}
    with closing(kafka_clients.admin(servers)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs=settings)])


@pytest.fixture
def options(broker: EmbeddedBroker) -> GatewayOptions:
    """Return the options of a gateway without a running coordinator: brokers coordinate share groups."""
    layout = TopicLayout.named("share-deliveries", reply_partitions=1)
    prepare_topics(broker.client_config, layout)
    address = Address("127.0.0.1", 0)
    return GatewayOptions(broker.client_config, layout, address, share_groups=Coordinators.BROKERS)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"orders-{uuid4()}"
    create_topic(broker.client_config, name, 1, {})
    return name


def test_sp32_why_and_page_name_a_poison_record(
    broker: EmbeddedBroker, options: GatewayOptions, topic: str, tmp_path: Path
) -> None:
    group = new_group()
    produce(broker.bootstrap_servers, topic, VALUES)
    set_up(broker.client_config, group)
    with serving(options) as address:
        counts = give_back(str(address), group, topic, tmp_path)
    assert counts == [1, 2, 3], "the limit of the group"

    command = ["why", group, "--bootstrap-servers", broker.bootstrap_servers, "--prefix", "share-deliveries"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    poison = f"{topic}-{PARTITION}@{POISON}: delivered 3 times (limit 3), released 3 times by "
    assert poison in told.stdout
    assert "archived, or a dead letter (inferred" in told.stdout
    shown = json.loads(CliRunner().invoke(main, [*command, "-o", "json"]).stdout)["deliveries"]
    assert sum(one["accepted"] for one in shown["rows"]) == RECORDS  # with the last one
    assert sum(one["delivered"] for one in shown["rows"]) == RECORDS + LIMIT
    assert (shown["verdict"], shown["is_limit_known"]) == ("poison", True)

    kept = DeliveriesCache(partial(read_deliveries, options.client_config, options.layout))
    with page_of(read=partial(read_history, options.client_config, options.layout), deliveries=kept) as page:
        status, _, body = answer(page, f"/group?id={group}")
    assert (status, poison in body.decode()) == (200, True)
