"""A gateway and a coordinator in front of three brokers: leaders move, a broker is killed and comes back, a
fourth is added. Clients of three libraries and a share group go on through the gateway, and nothing is lost.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uvloop
from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError
from kafka.protocol.api_key import ApiKey
from kafka.record import MemoryRecordsBuilder

from clients.coordinator_client import CoordinatorClient
from gateway.apis.addresses import GROUP, TRANSACTION
from gateway.net.server import GatewayOptions
from gateway.service import serving
from gateway.upstream.connections import Address
from kafka_why import stored_log
from kafka_why.connections import kafka_clients
from kafka_why.connections.broker_requests import find_topic
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.partitioner import partition_of
from kafka_why.stored_log import LogWalk, StoredLog
from kafka_why.topic_reader import TopicReader
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from streaming.service.topics import wanted_settings
from tests.e2e.gateway_clients import ConfluentMember, PythonMember
from tests.e2e.harness import QUICK_SPARK, coordinating, create_topic, wait_until
from tests.harness.broker_cluster import BrokerCluster
from tests.harness.gateway import RawClient
from tests.harness.java_tools import ConsoleConsumer, JavaTools
from tests.harness.member_requests import heartbeat

pytestmark = pytest.mark.e2e

HOST = "127.0.0.1"
LAYOUT = TopicLayout.named("three", request_partitions=2)
TOPIC, SHARED = "numbers", "shared"
PARTITIONS = 6
ADDED = 4
PAUSE_S = 0.02
COORDINATOR_NOT_AVAILABLE = 15
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
    """Through the gateway."""
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

    def share(self) -> None:
        """Wait until each consumer has a part of the topic."""

        def shared() -> bool:
            held = [self.java.partitions(), *(member.partitions() for member in self.members)]
            return all(held) and sum(map(len, held)) == PARTITIONS == len(set().union(*held))

        wait_until(shared, "three consumers with a part each")

    def go_on(self) -> None:
        """All that is written until some time from now is consumed, and offsets are committed."""
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


async def check_addresses(gateway: str, cluster: BrokerCluster) -> None:
    """Every node in every answer that names nodes is a listener of the gateway."""
    by_node: dict[int, RawClient] = {}
    first = await _connected(gateway)
    metadata = await first.ask(ApiKey.Metadata, 12, topics=[{"name": TOPIC, "topic_id": None}])
    listeners = {broker.node_id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
    assert listeners.keys() == set(cluster.nodes)
    assert not set(listeners.values()) & {cluster.address(node) for node in cluster.nodes}
    for node, listener in listeners.items():
        by_node[node] = await _connected(listener)
        described = await by_node[node].ask(ApiKey.DescribeCluster, 1)
        assert {b.broker_id: f"{b.host}:{b.port}" for b in described.brokers} == listeners
    for kind, key in ((GROUP, TOPIC), (TRANSACTION, "a transaction")):
        while True:
            (found,) = (
                await first.ask(ApiKey.FindCoordinator, 4, key_type=kind, coordinator_keys=[key])
            ).coordinators
            if found.error_code != COORDINATOR_NOT_AVAILABLE:
                break
            await asyncio.sleep(0.2)
        assert f"{found.host}:{found.port}" == listeners[found.node_id]
    (topic,) = metadata.topics
    (partition,) = [p for p in topic.partitions if p.partition_index == 0]
    (stranger,) = set(listeners) - set(partition.replica_nodes)
    leader = {partition.leader_id: listeners[partition.leader_id]}
    for api_key, version, body in (
        (ApiKey.Produce, 11, _produce(partition.partition_index)),
        (ApiKey.Fetch, 16, _fetch(topic.topic_id, partition.partition_index)),
    ):
        answer = await by_node[stranger].ask(api_key, version, **body)
        assert {e.node_id: f"{e.host}:{e.port}" for e in answer.node_endpoints} == leader
    for client in (first, *by_node.values()):
        client.writer.close()


async def _connected(address: str) -> RawClient:
    at = Address.parse(address)
    return RawClient(*await asyncio.open_connection(at.host, at.port))


def _produce(partition: int) -> dict[str, Any]:
    records = MemoryRecordsBuilder(2, 0, 1_000)
    records.append(0, None, b"-1")
    records.close()
    data = {"index": partition, "records": bytes(records.buffer())}
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1_000,
        "topic_data": [{"name": TOPIC, "partition_data": [data]}],
    }


def _fetch(topic_id: UUID, partition: int) -> dict[str, Any]:
    asked = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1_000,
    }
    return {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1_000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": topic_id, "partitions": [asked]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def test_clients_connect_while_a_broker_hangs(cluster: BrokerCluster) -> None:
    """Each draws the servers in an order of its own, and the broker that hangs is the first for some."""
    cluster.pause(1)
    try:
        began_s = time.monotonic()
        for _ in range(8):
            TopicReader(cluster.client_config).close()
        assert time.monotonic() - began_s < kafka_clients.BOOTSTRAP_TIMEOUT_MS / 1000
    finally:
        cluster.resume(1)
    cluster.wait_until_in_sync()


def test_reader_of_the_stored_log_continues_when_the_leader_dies(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_log, "_FETCH_MAX_BYTES", 1)  # a batch at a time
    values = [b"%d" % n for n in range(20)]
    create_topic(cluster.client_config, "log", 1, {})
    with closing(kafka_clients.producer(cluster.client_config)) as producer:
        for value in values:
            producer.send("log", value).get(30)
    with closing(kafka_clients.admin(cluster.client_config)) as admin:
        leader = find_topic(admin, "log").leader_of(0)
    with StoredLog(cluster.client_config, "log") as log:
        batches = log.read(0, LogWalk(0, len(values), b""))
        read = [record.value for record in next(batches).records()]
        cluster.kill(leader)
        read += [record.value for batch in batches for record in batch.records()]
    cluster.restart(leader)
    cluster.wait_until_in_sync()
    assert read == values


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
    cluster: BrokerCluster, coordinator: Coordinator, gateway: str, admin: KafkaAdminClient, tmp_path: Path
) -> None:
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
        story.share()
        story.go_on()

        before = leaders(admin)
        moved = {p: [1 + (leader + i) % 3 for i in range(3)] for p, leader in before.items()}
        assert all(nodes[0] != before[p] for p, nodes in moved.items())
        move_leaders(admin, moved)
        story.go_on()

        # The one from which the query reads the group's requests.
        lost = leaders(admin, LAYOUT.requests_topic)[partition_of(TOPIC, LAYOUT.request_partitions)]
        cluster.kill(lost)
        # Before the client gives its request up, which is much sooner than Kafka's clients give a broker up.
        assert heartbeat(client, TOPIC, 1, "nobody").result().error_code
        story.go_on()
        cluster.restart(lost)
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
        uvloop.run(check_addresses(gateway, cluster))
        numbers.stop()
        story.catch_up()
    assert numbers.failed == []
    assert coordinator.failure is None
