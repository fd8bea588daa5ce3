"""A gateway and a coordinator in front of three brokers: leaders move, a broker is killed and comes back, and a
broker is added. Clients of three libraries go on through the gateway, and nothing is lost.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from gateway.service import GatewayOptions, serving
from gateway.upstream.connections import Address
from records import kafka_clients
from records.client_config import ClientConfig
from records.layout import TopicLayout
from streaming.service.coordinator import Coordinator, Options
from streaming.service.topics import wanted_settings
from tests.e2e.gateway_clients import ConfluentMember, PythonMember
from tests.e2e.harness import QUICK_SPARK, coordinating, wait_until
from tests.harness.broker_cluster import BrokerCluster
from tests.harness.java_tools import ConsoleConsumer, JavaTools

pytestmark = pytest.mark.e2e

HOST = "127.0.0.1"
LAYOUT = TopicLayout.named("three", request_partitions=2)
TOPIC = "numbers"
PARTITIONS = 6
ADDED = 4
PAUSE_S = 0.02
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

    @contextmanager
    def being_written(self) -> Iterator["Numbers"]:
        self._thread.start()
        try:
            yield self
        finally:
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

    def _told_of(self, number: int):  # type: ignore[no-untyped-def]
        def told(error: object, _: object) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                self.failed.append(f"{number}: {error}")

        return told


class Story:
    """Three consumers of one group, what they have consumed, and what is written meanwhile."""

    def __init__(
        self, numbers: Numbers, members: list[PythonMember | ConfluentMember], java: ConsoleConsumer
    ) -> None:
        self.numbers = numbers
        self.members = members
        self.java = java
        self.consumed: set[int] = set()

    def share(self) -> None:
        """Wait until each consumer has a part of the topic."""

        def shared() -> bool:
            held = [self.java.partitions(), *(member.partitions() for member in self.members)]
            return all(held) and sum(map(len, held)) == PARTITIONS == len(set().union(*held))

        wait_until(shared, "three consumers with a part each")

    def go_on(self) -> None:
        """All that is written until some time from now is consumed, and offsets are committed."""
        after = max(self.numbers.acknowledged, default=0) + PARTITIONS
        wait_until(lambda: max(self.numbers.acknowledged, default=0) > after, "more records", CATCH_UP_TIMEOUT_S)
        self.catch_up()
        for member in self.members:
            member.commit()

    def catch_up(self) -> None:
        """Wait until all is consumed that is acknowledged now."""
        written = set(self.numbers.acknowledged)

        def is_consumed() -> bool:
            self.consumed.update(self.java.poll(), *(member.poll() for member in self.members))
            return written <= self.consumed

        wait_until(is_consumed, "all records at the consumers", CATCH_UP_TIMEOUT_S)


def leaders(admin: KafkaAdminClient) -> dict[int, int]:
    (described,) = admin.describe_topics([TOPIC])
    return {partition["partition_index"]: partition["leader_id"] for partition in described["partitions"]}


def move_leaders(admin: KafkaAdminClient, replicas: dict[int, list[int]]) -> None:
    """Move each partition to these brokers, the first of which becomes its leader."""
    admin.alter_partition_reassignments({TopicPartition(TOPIC, p): nodes for p, nodes in replicas.items()})
    wait_until(lambda: not admin.list_partition_reassignments()["topics"], "the partitions on their brokers")
    admin.elect_leaders(0, {TOPIC: list(replicas)}, raise_errors=False)
    wanted = {partition: nodes[0] for partition, nodes in replicas.items()}
    wait_until(lambda: leaders(admin) == wanted, "the preferred leaders")


def test_topics_have_three_replicas_two_of_them_in_sync(admin: KafkaAdminClient) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType

    topics = list(wanted_settings(LAYOUT))
    assert {
        (topic["name"], len(partition["replica_nodes"]))
        for topic in admin.describe_topics(topics)
        for partition in topic["partitions"]
    } == {(topic, 3) for topic in topics}
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    (found,) = admin.describe_configs(resources, config_filter="all").values()
    assert {topic: found[topic]["min.insync.replicas"]["value"] for topic in topics} == dict.fromkeys(topics, "2")


def test_clients_and_the_query_go_on_while_brokers_come_and_go(
    cluster: BrokerCluster, coordinator: Coordinator, gateway: str, admin: KafkaAdminClient, tmp_path: Path
) -> None:
    options = {"num_partitions": PARTITIONS, "replication_factor": 3}
    admin.create_topics({TOPIC: options}, wait_for_metadata=True)
    with ExitStack() as stack:
        members = [stack.enter_context(closing(of(gateway, TOPIC, TOPIC))) for of in (PythonMember, ConfluentMember)]
        java = stack.enter_context(JavaTools(gateway, tmp_path).console_consumer(TOPIC, TOPIC))
        numbers = stack.enter_context(Numbers(gateway).being_written())
        story = Story(numbers, members, java)
        story.share()
        story.go_on()

        before = leaders(admin)
        move_leaders(admin, {p: [1 + (leader + i) % 3 for i in range(3)] for p, leader in before.items()})
        assert all(leader != before[p] for p, leader in leaders(admin).items())
        story.go_on()

        lost = leaders(admin)[0]
        cluster.kill(lost)
        story.go_on()
        cluster.restart(lost)
        cluster.wait_until_in_sync()
        story.go_on()

        cluster.add(ADDED)
        move_leaders(admin, {p: [ADDED, 1 + p % 3, 1 + (p + 1) % 3] for p in range(PARTITIONS)})
        story.go_on()
        # Every client has learned the fourth broker's address, because it leads all partitions. It is the gateway's.
        of_brokers = {cluster.address(node) for node in cluster.nodes}
        for member in members:
            addresses = {f"{host}:{port}" for host, port in member.brokers()}
            assert len(addresses) == 4
            assert not addresses & of_brokers
    story.numbers_done()
    assert coordinator.failure is None
