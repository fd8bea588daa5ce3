"""A gateway and a coordinator in front of three brokers: leaders move, a broker is killed and returns,
another hangs, a fourth is added. Clients of three libraries and a share group continue through the gateway, a
reader of the stored log continues at the brokers, and nothing is lost.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, count
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from clients.coordinator_client import CoordinatorClient
from gateway.net.server import GatewayOptions
from gateway.service import serving
from gateway.upstream.connections import Address
from kafka_why import stored_log
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.partitioner import partition_of
from kafka_why.stored_log import LogWalk, StoredLog
from kafka_why.topic_reader import TopicReader
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from streaming.service.topics import wanted_settings
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, PythonMember, share
from tests.e2e.harness import QUICK_SPARK, coordinating, wait_until
from tests.harness.broker_cluster import BrokerCluster
from tests.harness.java_tools import ConsoleConsumer, JavaTools
from tests.harness.member_requests import heartbeat

pytestmark = pytest.mark.e2e

HOST = "127.0.0.1"
LAYOUT = TopicLayout.named("three", request_partitions=2)
TOPIC, SHARED = "numbers", "shared"
ADDED = 4
PAUSE_S = 0.02
READ = 20
"""Records that the reader of stored records reads."""
CATCH_UP_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def coordinator(cluster: BrokerCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    options = Options(
        client_config=cluster.client_config,
        folder=tmp_path_factory.mktemp("coordinator"),
        layout=LAYOUT,
        ui_port=None,
        spark=QUICK_SPARK,
    )
    with coordinating(options) as coordinator:
        yield coordinator


@pytest.fixture(scope="module")
def gateway(cluster: BrokerCluster, coordinator: Coordinator) -> Iterator[str]:
    with serving(GatewayOptions(cluster.client_config, LAYOUT, Address(HOST, 0))) as address:
        yield str(address)


@pytest.fixture(scope="module")
def admin(gateway: str) -> Iterator[KafkaAdminClient]:
    """Yield an admin client through the gateway."""
    with closing(kafka_clients.admin(ClientConfig(gateway))) as admin:
        yield admin


class Numbers:
    """Rising numbers, written through the gateway by librdkafka's idempotent producer with acks=all."""

    def __init__(self, servers: str) -> None:
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until all is acknowledged."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush(CATCH_UP_TIMEOUT_S)

    def _run(self) -> None:
        for number in count():
            if self._stopping.wait(PAUSE_S):
                return
            self._producer.produce(
                TOPIC, str(number), partition=number % PARTITIONS, on_delivery=self._told_of(number)
            )
            self._producer.poll(0)

    def _told_of(self, number: int) -> Callable[[object, object], None]:
        def told(error: object, _: object) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                self.failed.append(f"{number}: {error}")

        return told


class Story:
    """Three consumers of one group and the one of a share group, what they have consumed, and what is written
    meanwhile.
    """

    def __init__(
        self,
        numbers: Numbers,
        members: list[PythonMember | ConfluentMember],
        java: ConsoleConsumer,
        sharing: ConsoleConsumer,
    ) -> None:
        self.numbers = numbers
        self.members = members
        self.java = java
        self.sharing = sharing
        self.consumed: set[int] = set()
        self.shared: set[int] = set()

    def go_on(self) -> None:
        """Wait until all records written until some time from now are consumed, and offsets are committed."""
        after = max(self.numbers.acknowledged, default=0) + PARTITIONS
        wait_until(
            lambda: max(self.numbers.acknowledged, default=0) > after, "more records", CATCH_UP_TIMEOUT_S
        )
        self.catch_up()
        for member in self.members:
            wait_until(partial(has_committed, member), "a commit")

    def catch_up(self) -> None:
        """Wait until all is consumed that is acknowledged now."""
        written = set(self.numbers.acknowledged)

        def is_consumed() -> bool:
            self.consumed.update(self.java.poll(), *(member.poll() for member in self.members))
            self.shared.update(self.sharing.poll())
            return written <= self.consumed & self.shared

        wait_until(is_consumed, "all records at the consumers", CATCH_UP_TIMEOUT_S)


def has_committed(member: PythonMember | ConfluentMember) -> bool:
    """Return True if a commit succeeds now, as not during a rebalance or before a member has records."""
    try:
        member.commit()
    except (KafkaError, KafkaException):
        return False
    return True


def leaders(admin: KafkaAdminClient, topic: str = TOPIC) -> dict[int, int]:
    (described,) = admin.describe_topics([topic])
    return {partition["partition_index"]: partition["leader_id"] for partition in described["partitions"]}


def move_leaders(admin: KafkaAdminClient, replicas: dict[int, list[int]]) -> None:
    """Move each partition to these brokers, the first of which becomes its leader."""
    admin.alter_partition_reassignments({TopicPartition(TOPIC, p): nodes for p, nodes in replicas.items()})
    wait_until(lambda: not admin.list_partition_reassignments(), "the partitions on their brokers")
    admin.elect_leaders(0, {TOPIC: list(replicas)}, raise_errors=False)
    wanted = {partition: nodes[0] for partition, nodes in replicas.items()}
    wait_until(lambda: leaders(admin) == wanted, "the preferred leaders")


def connect_several_times(client_config: ClientConfig) -> None:
    """Connect clients while a broker hangs. Each tries the brokers in an order of its own, and for some the
    one that hangs is the first.
    """
    began_s = time.monotonic()
    for _ in range(8):
        TopicReader(client_config).close()
    assert time.monotonic() - began_s < kafka_clients.BOOTSTRAP_TIMEOUT_MS / 1000


def test_topics_have_three_replicas_two_of_them_in_sync(admin: KafkaAdminClient) -> None:
    topics = list(wanted_settings(LAYOUT))
    assert {
        (topic["name"], len(partition["replica_nodes"]))
        for topic in admin.describe_topics(topics)
        for partition in topic["partitions"]
    } == {(topic, 3) for topic in topics}
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    (found,) = admin.describe_configs(resources, config_filter="all").values()
    assert {topic: found[topic]["min.insync.replicas"]["value"] for topic in topics} == dict.fromkeys(
        topics, "2"
    )


def test_clients_and_query_survive_broker_restarts(
    cluster: BrokerCluster,
    coordinator: Coordinator,
    gateway: str,
    admin: KafkaAdminClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_log, "_FETCH_MAX_BYTES", 1)  # a batch at a time
    options = {"num_partitions": PARTITIONS, "replication_factor": 3}
    admin.create_topics({TOPIC: options}, wait_for_metadata=True)
    with ExitStack() as stack:
        client = stack.enter_context(CoordinatorClient(cluster.client_config, LAYOUT, client_id="test"))
        members = [
            stack.enter_context(closing(of(gateway, TOPIC, TOPIC))) for of in (PythonMember, ConfluentMember)
        ]
        tools = JavaTools(gateway, tmp_path)
        java = stack.enter_context(tools.console_consumer(TOPIC, TOPIC))
        earliest = {"share.auto.offset.reset": "earliest"}
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, SHARED, configs=earliest)])
        sharing = stack.enter_context(tools.console_share_consumer(SHARED, TOPIC))
        numbers = Numbers(gateway)
        stack.callback(numbers.stop)
        story = Story(numbers, members, java, sharing)
        share(java, *members)
        story.go_on()

        before = leaders(admin)
        moved = {p: [1 + (leader + i) % 3 for i in range(3)] for p, leader in before.items()}
        assert all(nodes[0] != before[p] for p, nodes in moved.items())
        move_leaders(admin, moved)
        story.go_on()

        # The one from which the query reads the group's requests, and a reader of what is stored reads, too.
        asked = TopicPartition(LAYOUT.requests_topic, partition_of(TOPIC, LAYOUT.request_partitions))
        lost = leaders(admin, asked.topic)[asked.partition]
        with TopicReader(cluster.client_config) as reader:
            end = reader.ends([asked])[asked]
        assert end > READ
        with StoredLog(cluster.client_config, asked.topic) as log:
            batches = log.read(asked.partition, LogWalk(end - READ, end, b""))
            first = next(batches)
            assert first.next_offset < end
            cluster.kill(lost)
            answer = heartbeat(client, TOPIC, 1, "nobody")
            read = [record.offset for batch in chain([first], batches) for record in batch.records()]
        # Before the client gives its request up, much sooner than Kafka's clients give a broker up.
        assert answer.result().error_code
        assert read[-READ:] == [*range(end - READ, end)]
        story.go_on()
        cluster.restart(lost)
        cluster.wait_until_in_sync()
        with cluster.paused(1):
            connect_several_times(cluster.client_config)
        cluster.wait_until_in_sync()
        story.go_on()

        cluster.add(ADDED)
        move_leaders(admin, {p: [ADDED, 1 + p % 3, 1 + (p + 1) % 3] for p in range(PARTITIONS)})
        story.go_on()
        # The fourth broker leads all partitions, so every client has learned its address, the gateway's.
        of_brokers = {cluster.address(node) for node in cluster.nodes}
        for member in members:
            addresses = {f"{host}:{port}" for host, port in member.brokers()}
            assert len(addresses) == 4
            assert not addresses & of_brokers
        numbers.stop()
        story.catch_up()
    assert numbers.failed == []
    assert coordinator.failure is None
