"""The metrics server: its port, its metrics before a broker responds, and its end."""

import socket
import urllib.error
import urllib.request
from contextlib import closing

import pytest

from insight.metrics.http import MetricsUnavailable
from insight.metrics.service import Metrics
from records.client_config import ClientConfig
from streaming.service.replica_state import OFF
from streaming.service.status import Phase, Status
from streaming.service.transactions_pending import Summary
from tests.harness.ports import free_port
from tests.harness.scraped import LAYOUT

LOOPBACK = "127.0.0.1"


def metrics(client_config: ClientConfig, port: int) -> Metrics:
    return Metrics(
        client_config,
        LAYOUT,
        LOOPBACK,
        port,
        status=lambda: Status(Phase.STARTING, "", 0),
        ticker_age_s=lambda: 0.0,
        spark_restarts=lambda: 0,
        transactions=Summary,
        replica=lambda: OFF,
        log_rebalances=False,
    )


def test_a_port_that_is_taken_is_told() -> None:
    with closing(socket.create_server((LOOPBACK, 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            MetricsUnavailable, match=rf"cannot serve metrics on 127\.0\.0\.1:{port}: Address already in use"
        ):
            metrics(ClientConfig("127.0.0.1:9"), port).start()


def test_it_serves_without_a_broker_and_stops_serving() -> None:
    served = metrics(ClientConfig(f"{LOOPBACK}:{free_port()}"), 0)
    served.start()
    try:
        with urllib.request.urlopen(served.url, timeout=5) as response:
            lines = response.read().decode().splitlines()
    finally:
        served.stop()
    assert 'group_coordinator_phase{phase="starting"} 1.0' in lines
    assert not any("numgroups" in line for line in lines), "the number of groups is unknown"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(served.url, timeout=5)
