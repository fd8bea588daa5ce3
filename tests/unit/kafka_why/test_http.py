"""The HTTP port: metrics, and whether the process is alive and ready."""

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

from kafka_why.metrics.http import CheckNote, CheckResults, HttpPort

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
