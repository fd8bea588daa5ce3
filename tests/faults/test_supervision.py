"""What happens to the coordinator when something under it fails: the broker, workers, a batch, a file."""

import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from checkpoints.spark_logs import last_batch
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.codec import DeadLetter, Reason, record_of
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase, ServiceStatus
from kafka_why.local_files import LocalFiles
from kafka_why.partitioner import partition_of
from streaming.service import coordinator as coordinator_module
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from streaming.service.status import read_status
from streaming.service.topics import prepare_topics
from tests.e2e.harness import (
    QUICK_SPARK,
    START_TIMEOUT_S,
    Member,
    child_pids,
    command_of,
    coordinating,
    new_layout,
    read_topic,
    stable_member,
    wait_until,
)
from tests.faults.faults import POISON, RUINED_GROUP, UNKNOWN_VERSION, FaultyOperator, poisoned_step
from tests.harness.member_requests import heartbeat

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


@pytest.mark.timeout(900)
def test_query_survives_faults_and_reports_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record at fault is named, and can be skipped; a state that cannot be read, and a damaged file, are
    named.
    """
    with EmbeddedBroker(tmp_path / "broker") as broker:
        # The step of the query alone is at fault. A replica would answer what the query cannot.
        options = replace(options_for(broker, tmp_path / "coordinator", new_layout()), replica=False)
        prepare_topics(options.client_config, options.layout)
        with client_of(options) as client, client_of(options, POISON) as poison:
            with monkeypatch.context() as patch:
                patch.setattr(coordinator_module, "Operator", partial(FaultyOperator, step=poisoned_step))
                with coordinating(options) as coordinator:
                    broker_is_away_until_the_query_fails(broker, coordinator, client)
                    workers_die_until_the_query_fails(coordinator, client)
                    heartbeat(client, RUINED_GROUP, 1, "m")
                    stable_member(client, "healthy")
                    heartbeat(poison, "poisoned", 1, "m")
                    partition = partition_of("poisoned", options.layout.request_partitions)
                    record = f"{options.layout.requests_topic}-{partition}-"
                    failing = wait_for_failing(coordinator)
                    waiting = Member(client, "behind", "").join()
            at_fault = check_failing(failing, record)

            with coordinating(replace(options, skip=(at_fault,))) as coordinator:
                assert waiting.result().error_code is ErrorCode.MEMBER_ID_REQUIRED
                assert reasons_of(options)[at_fault] is Reason.SKIPPED
                heartbeat(client, RUINED_GROUP, 1, "m")
                failing = wait_for_failing(coordinator)
        assert f"of version {UNKNOWN_VERSION}" in failing.reason
        assert "the error names no record" in failing.reason
        check_damage_is_named(replace(options, replica=True))


def broker_is_away_until_the_query_fails(
    broker: EmbeddedBroker, coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "broker-away", session_timeout_ms=900_000)
    broker.stop()
    assert coordinator.status.wait_until(lambda status: status.alarm is not None, timeout_s=60)
    assert coordinator.status.wait_for(ServicePhase.RESTARTING, ServicePhase.FAILING, timeout_s=300)
    broker.start()
    assert coordinator.status.wait_until(is_well, timeout_s=300)
    assert member.heartbeat(1) is ErrorCode.NONE


def workers_die_until_the_query_fails(coordinator: Coordinator, client: CoordinatorClient) -> None:
    """It is started again."""
    member = stable_member(client, "workers-die", session_timeout_ms=900_000)
    phases = phases_of(coordinator)
    wait_until(partial(kill_until, coordinator, ServicePhase.RESTARTING), "the end of the query")
    assert coordinator.status.wait_until(is_well, timeout_s=START_TIMEOUT_S)
    assert member.heartbeat(1) is ErrorCode.NONE
    assert phases() == [ServicePhase.RESTARTING, ServicePhase.READY]


def check_damage_is_named(options: Options) -> None:
    """Check that the state after the last committed batch is damaged. A later changelog belongs to a batch
    that runs again, so it is not read.
    """
    version = last_batch(LocalFiles(options.folder), "commits") + 1
    store = options.folder / "spark/state/0/0"
    # A snapshot would make the changelog needless.
    damaged = [path for path in store.glob(f"{version}.*") if path.suffix in (".changelog", ".zip")]
    assert damaged
    for path in damaged:
        path.write_bytes(bytes(path.stat().st_size))
    with Coordinator(options) as coordinator:
        assert coordinator.status.wait_for(ServicePhase.STOPPED, timeout_s=START_TIMEOUT_S)
        failure = coordinator.status.current.reason
        named = [f"the checkpoint is damaged: {path} does not match its checksum. " for path in damaged]
        assert any(name in failure for name in named), failure
        assert not coordinator.replica().is_answering


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


def wait_for_failing(coordinator: Coordinator) -> ServiceStatus:
    assert coordinator.status.wait_for(ServicePhase.FAILING, timeout_s=START_TIMEOUT_S), (
        coordinator.status.current
    )
    return read_status(coordinator.options.folder / "status.json")


def check_failing(failing: ServiceStatus, record_prefix: str) -> str:
    """Return the id of the request at fault, the first of a pack, as the status names it."""
    assert failing.reason.startswith(f"batch {failing.batch_id + 1} failed 3 times and is tried again")
    _, _, named = failing.reason.partition("start with --skip-record ")
    record = named.split(" ")[0]
    assert re.fullmatch(rf"{re.escape(record_prefix)}\d+#0", record), failing.reason
    topic, partition, _ = record_of(record)
    assert f"{topic}[{partition}] " in failing.reason
    assert f"record {record} of group 'poisoned': poisoned" in failing.reason
    assert "Logical Plan" not in failing.reason
    return record


def reasons_of(options: Options) -> dict[str, Reason]:
    records = read_topic(options.client_config, options.layout.dead_letters_topic)
    letters = [msgspec.json.decode(record.value, type=DeadLetter) for record in records]
    return {letter.request: letter.reason for letter in letters}
