"""What happens to the coordinator when something under it fails: the broker, a worker, a batch.

The first tests share a coordinator on a broker of its own.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service.status import ServicePhase, ServiceStatus
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from tests.e2e.harness import (
    QUICK_SPARK,
    START_TIMEOUT_S,
    child_pids,
    command_of,
    coordinating,
    new_layout,
    stable_member,
    wait_until,
)

pytestmark = pytest.mark.e2e

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
TIMEOUT_MS = int(START_TIMEOUT_S * 1000)


def options_for(broker: EmbeddedBroker, folder: Path, layout: TopicLayout) -> Options:
    return Options(
        broker.client_config,
        folder,
        layout,
        SETTINGS,
        ui_port=None,
        tick_interval_ms=50,
        first_request_wait_s=1.0,
        spark=QUICK_SPARK,
    )


def client_of(options: Options, client_id: str = "client") -> CoordinatorClient:
    return CoordinatorClient(
        options.client_config, options.layout, client_id=client_id, request_timeout_ms=TIMEOUT_MS
    )


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module")
def coordinator(
    own_broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Coordinator]:
    with coordinating(options_for(own_broker, tmp_path_factory.mktemp("folder"), new_layout())) as running:
        yield running


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[CoordinatorClient]:
    with client_of(coordinator.options) as client:
        yield client


@pytest.mark.timeout(900)
def test_broker_is_away_until_the_query_fails(
    own_broker: EmbeddedBroker, coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "broker-away", session_timeout_ms=900_000)
    own_broker.stop()
    assert coordinator.status.wait_until(lambda status: status.alarm is not None, timeout_s=60)
    assert coordinator.status.wait_for(ServicePhase.RESTARTING, ServicePhase.FAILING, timeout_s=300)
    own_broker.start()
    assert coordinator.status.wait_until(is_well, timeout_s=300)
    assert member.heartbeat(1) is ErrorCode.NONE


def test_killed_worker_is_replaced(coordinator: Coordinator, client: CoordinatorClient) -> None:
    member = stable_member(client, "worker-killed", session_timeout_ms=60_000)
    kill_workers(coordinator)
    assert member.heartbeat(1) is ErrorCode.NONE


def test_query_is_started_again_when_workers_keep_dying(
    coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "workers-die", session_timeout_ms=60_000)
    phases = phases_of(coordinator)
    wait_until(partial(kill_until, coordinator, ServicePhase.RESTARTING), "the end of the query")
    assert coordinator.status.wait_until(is_well, timeout_s=START_TIMEOUT_S)
    assert member.heartbeat(1) is ErrorCode.NONE
    assert phases() == [ServicePhase.RESTARTING, ServicePhase.READY]


def is_well(status: ServiceStatus) -> bool:
    return status.phase is ServicePhase.READY and status.alarm is None


def python_workers(coordinator: Coordinator) -> list[int]:
    """Process ids of Spark's Python workers, not of the daemon that forks them."""
    daemons = [pid for pid in child_pids(coordinator.jvm_pid) if "pyspark.daemon" in command_of(pid)]
    return [worker for daemon in daemons for worker in child_pids(daemon)]


def kill_until(coordinator: Coordinator, phase: ServicePhase) -> bool:
    """Kill the workers there are, unless the coordinator is in that phase by now."""
    if coordinator.status.current.phase is phase:
        return True
    kill_workers(coordinator)
    return False


def kill_workers(coordinator: Coordinator) -> None:
    for worker in python_workers(coordinator):
        with suppress(ProcessLookupError):  # the daemon ends workers, too
            os.kill(worker, signal.SIGKILL)


def phases_of(coordinator: Coordinator) -> Callable[[], list[ServicePhase]]:
    """Begin to write down the phases the coordinator enters; the call gives them and ends it."""
    seen: list[ServicePhase] = []

    def watch() -> None:
        while coordinator.status.wait_until(lambda now: not seen or now.phase is not seen[-1], timeout_s=300):
            seen.append(coordinator.status.current.phase)
            if len(seen) == 3:
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    wait_until(lambda: bool(seen), "the phase it is in")

    def phases() -> list[ServicePhase]:
        watcher.join(timeout=60)
        return seen[1:]

    return phases
