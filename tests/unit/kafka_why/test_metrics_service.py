"""The metrics server: its port, its metrics before a broker responds, and its end."""

import urllib.error
import urllib.request

import pytest

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import NO_REPLICA_STATE, ServicePhase, ServiceStatus, TransactionsSummary
from kafka_why.metrics.process import ServiceReadings
from kafka_why.metrics.service import Metrics
from tests.harness.ports import free_port
from tests.harness.scraped import LAYOUT

LOOPBACK = "127.0.0.1"


def metrics(client_config: ClientConfig, port: int) -> Metrics:
    return Metrics(
        client_config,
        LAYOUT,
        LOOPBACK,
        port,
        ServiceReadings(
            status=lambda: ServiceStatus(ServicePhase.STARTING, "", 0),
            ticker_age_s=lambda: 0.0,
            spark_restarts=lambda: 0,
            transactions=TransactionsSummary,
            replica=lambda: NO_REPLICA_STATE,
        ),
        log_rebalances=False,
    )


def test_observer_serves_no_coordinator_only_metrics() -> None:
    observed = TopicLayout.observed("group-observer", 1)
    readings = ServiceReadings(
        lambda: ServiceStatus(ServicePhase.READY, "", 0), lambda: float("nan"), lambda: 0
    )
    client_config = ClientConfig(f"{LOOPBACK}:{free_port()}")
    with (
        Metrics(client_config, observed, LOOPBACK, 0, readings, log_rebalances=False) as served,
        urllib.request.urlopen(served.url, timeout=30) as response,
    ):
        text = response.read().decode()
    assert "group_completed_rebalance_count" in text
    assert not any(name in text for name in ("offset_commit_count", "transactions_pending", "replica_"))


@pytest.mark.parametrize("follows", [False, True], ids=["before the coordinator has started", "then"])
def test_metrics_are_served_without_a_broker_until_stopped(follows: bool) -> None:
    with metrics(ClientConfig(f"{LOOPBACK}:{free_port()}"), 0) as served:
        if follows:
            served.follow()
        with urllib.request.urlopen(served.url, timeout=30) as response:
            lines = response.read().decode().splitlines()
    assert 'group_coordinator_phase{phase="starting"} 1.0' in lines
    assert "group_coordinator_batch_duration_seconds_count 0.0" in lines
    # The number of groups is unknown, and nobody reads when a metric was created.
    assert not any("numgroups" in line or "_created" in line for line in lines)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(served.url, timeout=30)
