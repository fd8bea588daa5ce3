"""The cluster of three brokers that tests use: how it is reached, and how it fails."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.broker import BrokerFailed
from kafka_why.connections.kafka_clients import BOOTSTRAP_TIMEOUT_MS
from kafka_why.topic_reader import TopicReader
from tests.harness.broker_cluster import NODES, BrokerCluster

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


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
