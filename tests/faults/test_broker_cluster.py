"""The cluster of three brokers that tests use: how it is reached, and how it fails."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka.admin import OffsetSpec

from embedded.broker import BrokerFailed
from kafka_why import stored_log
from kafka_why.connections import kafka_clients
from kafka_why.connections.broker_requests import find_topic
from kafka_why.connections.kafka_clients import BOOTSTRAP_TIMEOUT_MS
from kafka_why.stored_log import LogWalk, StoredLog
from kafka_why.topic_reader import TopicReader
from tests.e2e.harness import create_topic
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


def test_stored_log_is_read_on_when_the_leader_dies(
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
        batches = log.read(0, LogWalk(0, log.offset(0, OffsetSpec.LATEST), b""))
        read = [record.value for record in next(batches).records()]
        cluster.kill(leader)
        read += [record.value for batch in batches for record in batch.records()]
    cluster.restart(leader)
    assert read == values


def test_start_that_fails_names_the_broker_and_leaves_nothing_running(tmp_path: Path) -> None:
    cluster = BrokerCluster(tmp_path, overrides={"num.io.threads": "none"})
    with pytest.raises(BrokerFailed, match=r"(?s)broker-\d.broker\.log:.*num\.io\.threads"):
        cluster.start()
    assert [cluster.pid(node) for node in NODES] == [None] * 3
