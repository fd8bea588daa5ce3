"""The HTTP port: metrics, also before a broker responds, and whether the process is alive and ready."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.http_exchange import exchange
from kafka_why.connections.pem import client_context
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import NO_REPLICA_STATE, ServicePhase, ServiceStatus, TransactionsSummary
from kafka_why.metrics.http import CheckNote, CheckResults, HttpPort
from kafka_why.metrics.process import ServiceReadings
from kafka_why.metrics.service import Metrics
from kafka_why.web import ClientSlots, client_network
from tests.harness.ports import free_port
from tests.harness.scraped import LAYOUT
from tests.harness.webhook import HANG, Reply, Webhook

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
    with Metrics(client_config, observed, LOOPBACK, 0, readings, log_rebalances=False) as served:
        text = get(served.url)[1]
    assert "group_completed_rebalance_count" in text
    assert not any(name in text for name in ("offset_commit_count", "transactions_pending", "replica_"))


@pytest.mark.parametrize("follows", [False, True], ids=["before the coordinator has started", "then"])
def test_metrics_are_served_without_a_broker_until_stopped(follows: bool) -> None:
    with metrics(ClientConfig(f"{LOOPBACK}:{free_port()}"), 0) as served:
        if follows:
            served.follow()
        lines = get(served.url)[1].splitlines()
    assert 'group_coordinator_phase{phase="starting"} 1.0' in lines
    assert "group_coordinator_batch_duration_seconds_count 0.0" in lines
    # The number of groups is unknown, and nobody reads when a metric was created.
    assert not any("numgroups" in line or "_created" in line for line in lines)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(served.url, timeout=30)


PAUSE_S = 0.05


class Dripping:
    """Listens on a loopback port during the `with` block. To each connection it sends `at_once`, and then for
    ever a byte of `drips` each PAUSE_S. With `drips` empty it sends nothing more. It reads nothing.
    """

    def __init__(self, at_once: bytes, drips: bytes) -> None:
        self._at_once = at_once
        self._drips = drips
        self._is_over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="dripping")
        self.port = self._listening.getsockname()[1]
        self.cut = threading.Event()
        """A client has ended its connection."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    self._drip(connection)
        except OSError:
            if not self._is_over.is_set():
                raise

    def _drip(self, connection: socket.socket) -> None:
        try:
            connection.sendall(self._at_once)
            at = 0
            while not self._is_over.wait(PAUSE_S):
                if self._drips:
                    connection.sendall(self._drips[at % len(self._drips) :][:1])
                    at += 1
        except OSError:
            self.cut.set()


DEADLINE_S = 0.3
LATE_S = 60.0
"""For a test that gets a tenth of a core. The servers would go on for much longer."""
OK = b"HTTP/1.1 200 OK\r\n"


def asked(url: str, body: bytes = b"{}", timeout_s: float = 60.0) -> tuple[int, bytes]:
    def ask(opener: urllib.request.OpenerDirector) -> tuple[int, bytes]:
        try:
            with opener.open(urllib.request.Request(url, body)) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()

    return exchange(ask, timeout_s, client_context(None), (urllib.request.ProxyHandler({}),))


def is_cut(url: str, body: bytes = b"{}") -> bool:
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no complete answer within 0\.3 s"):
        asked(url, body, DEADLINE_S)
    return DEADLINE_S <= time.monotonic() - began_s < LATE_S


@pytest.mark.parametrize(
    ("scheme", "at_once", "drips"),
    [
        ("http", b"", b"HTTP/1.1 200 OK"),
        ("http", OK, b"A: b\r\n"),
        ("http", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
        ("http", OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
        ("http", OK + b"Connection: close\r\n\r\n", b"x"),
        ("http", OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        ("http", b"HTTP/1.1 500 Broken\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        # A record of TLS of 16 kB, byte by byte.
        ("https", b"\x16\x03\x03\x40\x00", b"\x02"),
    ],
)
def test_slow_trickling_response_is_cut_at_the_deadline(scheme: str, at_once: bytes, drips: bytes) -> None:
    with Dripping(at_once, drips) as server:
        assert is_cut(f"{scheme}://127.0.0.1:{server.port}/")
        assert server.cut.wait(LATE_S)


def test_server_that_reads_nothing_hits_the_deadline() -> None:
    with Dripping(b"", b"") as server:
        assert is_cut(f"http://127.0.0.1:{server.port}/", body=bytes(32 * 1024 * 1024))


def test_attempts_at_all_addresses_of_a_host_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight addresses whose queues of connections are full, so that a connect waits."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        full = [socket.socket() for _ in range(4)]
        for one in full:
            one.setblocking(False)
            one.connect_ex(address)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: 8 * found)
        assert is_cut(f"http://receiver.example.org:{address[1]}/")
        for one in full:
            one.close()


def test_slow_name_resolver_hits_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def resolve(*_: object, **__: object) -> None:
        is_over.wait(LATE_S)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert is_cut("http://receiver.example.org/")
    is_over.set()


def test_http_exchange_within_the_deadline_behaves_as_urllib() -> None:
    with Webhook(Reply(200, body=b"told"), Reply(503, body=b"later")) as webhook:
        assert [asked(webhook.url()) for _ in range(2)] == [(200, b"told"), (503, b"later")]
    with pytest.raises(urllib.error.URLError, match="refused"):
        asked(f"http://127.0.0.1:{free_port()}/")
    with Webhook(Reply(HANG)) as webhook:
        assert is_cut(webhook.url())


def slots(total: int, idle: str = "", *, ends_busy: bool = True) -> ClientSlots[str]:
    return ClientSlots(total, lambda holder: holder in idle, ends_busy=ends_busy)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("2001:db8:0:0:9::", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", "loopback"),
        ("127.8.8.8", "loopback"),
        ("::1", "loopback"),
        ("", ""),
    ],
)
def test_client_addresses_with_the_same_prefix_count_as_one_network(host: str, network: str) -> None:
    assert client_network(host) == network


def test_new_client_evicts_the_oldest_connection_of_the_network_with_most() -> None:
    full = slots(4)
    for host, holder in (("192.0.2.1", "a"), ("192.0.2.2", "b"), ("192.0.2.2", "c"), ("192.0.2.2", "d")):
        full.add(host, holder)
    assert full.add("192.0.2.3", "e") == "b"
    assert full.add("192.0.2.1", "f") == "c"
    assert full.add("192.0.2.1", "g") == "a", "no other has as many as it has itself"


def test_idle_connection_is_evicted_before_a_busy_one() -> None:
    full = slots(3, idle="b")
    for holder in "abc":
        full.add("192.0.2.1", holder)
    assert full.add("192.0.2.1", "d") == "b"
    assert full.add("192.0.2.1", "e") == "a", "all are busy"


def test_new_connection_is_refused_where_busy_ones_are_not_evicted() -> None:
    full = slots(2, idle="d", ends_busy=False)
    for holder in "ab":
        full.add("192.0.2.1", holder)
    assert full.add("192.0.2.2", "c") == "c"
    full.remove("c")
    full.remove("a")
    assert full.add("192.0.2.2", "d") is None
    assert full.add("192.0.2.2", "c") == "d", "it is idle"
