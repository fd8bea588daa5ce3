"""The cluster of three brokers: what is acknowledged outlives the loss of any one of them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from connections import kafka_clients
from connections.kafka_clients import BOOTSTRAP_TIMEOUT_MS
from embedded.broker import BrokerFailed
from records.reader import TopicReader
from tests.harness.broker_cluster import NODES, BrokerCluster

pytestmark = pytest.mark.e2e

TOPIC = "kept"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        admin = kafka_clients.admin(cluster.client_config)
        try:
            # -1: the brokers' default.
            admin.create_topics(
                {TOPIC: {"num_partitions": 3, "replication_factor": -1}}, wait_for_metadata=True
            )
        finally:
            admin.close()
        yield cluster


@pytest.fixture
def producer(cluster: BrokerCluster) -> Iterator[KafkaProducer]:
    producer = kafka_clients.producer(cluster.client_config)
    try:
        yield producer
    finally:
        producer.close()


@pytest.fixture(scope="module")
def reader(cluster: BrokerCluster) -> Iterator[TopicReader]:
    with TopicReader(cluster.client_config) as reader:
        yield reader


@pytest.mark.parametrize(
    ("node", "lose"),
    [*((node, BrokerCluster.kill) for node in NODES), (NODES[-1], BrokerCluster.pause)],
    ids=[*(f"{node} killed" for node in NODES), f"{NODES[-1]} paused"],
)
def test_what_was_acknowledged_is_there_without_any_one_broker(
    cluster: BrokerCluster,
    producer: KafkaProducer,
    reader: TopicReader,
    node: int,
    lose: Callable[[BrokerCluster, int], None],
) -> None:
    before, while_down = f"{node} {lose} before".encode(), f"{node} {lose} while".encode()
    for partition in range(3):
        producer.send(TOPIC, before, partition=partition).get(timeout=60)
    lose(cluster, node)
    try:
        for partition in range(3):
            producer.send(TOPIC, while_down, partition=partition).get(timeout=60)
        assert {before, while_down} <= {record.value for record in reader.read_all(TOPIC)}
    finally:
        if cluster.pid(node) is None:
            cluster.restart(node)
        else:
            cluster.resume(node)
    cluster.wait_until_in_sync()


def test_clients_connect_while_a_broker_hangs(cluster: BrokerCluster) -> None:
    """Each draws the servers in an order of its own, and the broker that hangs is the first for some."""
    cluster.pause(1)
    try:
        began_s = time.monotonic()
        for _ in range(8):
            TopicReader(cluster.client_config).close()
        assert time.monotonic() - began_s < BOOTSTRAP_TIMEOUT_MS / 1000
    finally:
        cluster.resume(1)
    cluster.wait_until_in_sync()


def test_start_that_fails_names_the_broker_and_leaves_nothing_running(tmp_path: Path) -> None:
    cluster = BrokerCluster(tmp_path, overrides={"num.io.threads": "none"})
    with pytest.raises(BrokerFailed, match=r"(?s)broker-\d.broker\.log:.*num\.io\.threads"):
        cluster.start()
    assert [cluster.pid(node) for node in NODES] == [None] * 3
