"""The HTTP port: metrics, also before a broker responds, and whether the process is alive and ready."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import NO_REPLICA_STATE, ServicePhase, ServiceStatus, TransactionsSummary
from kafka_why.metrics.http import CheckNote, CheckResults, HttpPort
from kafka_why.metrics.process import ServiceReadings
from kafka_why.metrics.service import Metrics
from tests.harness.ports import free_port
from tests.harness.scraped import LAYOUT

REASONS: dict[str, str | CheckNote | None] = {}


def ready(exclude: Collection[str]) -> CheckResults:
    if "broken" in REASONS:
        raise TimeoutError("the loop is stuck")
    return {name: reason for name, reason in REASONS.items() if name not in exclude}


@pytest.fixture
def url() -> Iterator[str]:
    REASONS.clear()
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc()
    with HttpPort("127.0.0.1", 0, registry, {"/healthz": lambda _: {}, "/readyz": ready}) as http:
        yield http.url.removesuffix("/metrics")


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_failing_readiness_check_is_named_with_its_reason_and_can_be_excluded(url: str) -> None:
    REASONS.update(brokers=None, coordinator="the coordinator does not answer")
    status, text = get(f"{url}/readyz")
    assert (status, json.loads(text)["checks"]) == (
        503,
        {"brokers": "ok", "coordinator": "the coordinator does not answer"},
    )
    status, text = get(f"{url}/readyz?exclude=coordinator")
    assert (status, json.loads(text)["checks"]) == (200, {"brokers": "ok"})


def test_readiness_note_is_shown_without_failing_the_check(url: str) -> None:
    REASONS.update(coordinator=None, replica=CheckNote("following: it is more than 5000 ms behind"))
    status, text = get(f"{url}/readyz")
    assert (status, json.loads(text)) == (
        200,
        {
            "ok": True,
            "checks": {"coordinator": "ok", "replica": "ok"},
            "notes": {"replica": "following: it is more than 5000 ms behind"},
        },
    )
    REASONS.update(coordinator="starting: preparing topics and Spark")
    status, text = get(f"{url}/readyz")
    assert (status, list(json.loads(text)["notes"])) == (503, ["replica"])
    assert get(f"{url}/readyz?exclude=coordinator&exclude=replica") == (
        200,
        '{"ok": true, "checks": {}, "notes": {}}\n',
    )


class Together(Collector):
    """Notes whether two scrapes were made at the same time."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.were_together = False

    def collect(self) -> Iterator[Metric]:
        try:
            self.barrier.wait(0.3)
            self.were_together = True
        except threading.BrokenBarrierError:
            self.barrier.reset()
        yield GaugeMetricFamily("things", "Things.", 1)


def test_metric_scrapes_never_run_concurrently() -> None:
    registry, together = CollectorRegistry(), Together()
    registry.register(together)
    with HttpPort("127.0.0.1", 0, registry) as port, ThreadPoolExecutor(2) as threads:
        assert [status for status, _ in threads.map(get, [port.url] * 2)] == [200, 200]
    assert not together.were_together


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
