"""What happens to the coordinator when something under it fails: the broker, a worker, a batch, the JVM.

The tests share a coordinator on a broker of its own, which is made anew after a test that ends its JVM.
"""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from checkpoints.files import FolderError, LocalFiles
from checkpoints.spark_logs import last_batch
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from records.codec import DeadLetter, Reason, record_of
from records.layout import TopicLayout
from records.partitioner import partition_of
from state.errors import ErrorCode
from streaming.service import coordinator as coordinator_module
from streaming.service.coordinator import Coordinator, Options
from streaming.service.status import Phase, Status, read_status
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
def started(
    own_broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Coordinator]]:
    """The coordinator that runs; another one if the last has failed."""
    options = options_for(own_broker, tmp_path_factory.mktemp("folder"), new_layout())
    running: list[Coordinator] = []
    with ExitStack() as stack:

        def start() -> Coordinator:
            if not running or running[-1].failure is not None:
                running.append(stack.enter_context(coordinating(options)))
            return running[-1]

        yield start


@pytest.fixture
def coordinator(started: Callable[[], Coordinator]) -> Coordinator:
    return started()


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[CoordinatorClient]:
    with client_of(coordinator.options) as client:
        yield client


def test_broker_restarts(
    own_broker: EmbeddedBroker, coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "broker-restarts", session_timeout_ms=60_000)
    own_broker.stop()
    assert coordinator.status.wait_until(lambda status: status.alarm is not None, timeout_s=60)
    own_broker.start()
    assert member.heartbeat(1) is ErrorCode.NONE
    assert coordinator.status.wait_until(is_well, timeout_s=60)


@pytest.mark.timeout(900)
def test_broker_is_away_until_the_query_fails(
    own_broker: EmbeddedBroker, coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "broker-away", session_timeout_ms=900_000)
    own_broker.stop()
    assert coordinator.status.wait_for(Phase.RESTARTING, Phase.FAILING, timeout_s=300)
    own_broker.start()
    assert coordinator.status.wait_until(is_well, timeout_s=300)
    assert member.heartbeat(1) is ErrorCode.NONE


def test_killed_worker_is_replaced(coordinator: Coordinator, client: CoordinatorClient) -> None:
    member = stable_member(client, "worker-killed", session_timeout_ms=60_000)
    for worker in python_workers(coordinator):
        os.kill(worker, signal.SIGKILL)
    assert member.heartbeat(1) is ErrorCode.NONE


def test_query_is_started_again_when_workers_keep_dying(
    coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "workers-die", session_timeout_ms=60_000)
    phases = phases_of(coordinator)
    wait_until(partial(kill_until, coordinator, Phase.RESTARTING), "the end of the query")
    assert coordinator.status.wait_until(is_well, timeout_s=START_TIMEOUT_S)
    assert member.heartbeat(1) is ErrorCode.NONE
    assert phases() == [Phase.RESTARTING, Phase.READY]


def test_end_of_the_jvm_is_the_end_of_the_coordinator(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    monkeypatch.setattr(coordinator, "_on_failure", told.set)
    os.kill(coordinator.jvm_pid, signal.SIGKILL)
    assert told.wait(60)
    coordinator.stop()
    assert str(coordinator.failure).startswith("Spark's JVM has ended")
    status = read_status(coordinator.options.folder / "status.json")
    assert (status.phase, status.reason) == (Phase.STOPPED, coordinator.failure)


def is_well(status: Status) -> bool:
    return status.phase is Phase.READY and status.alarm is None


def python_workers(coordinator: Coordinator) -> list[int]:
    """Process ids of Spark's Python workers, not of the daemon that forks them."""
    daemons = [pid for pid in child_pids(coordinator.jvm_pid) if "pyspark.daemon" in command_of(pid)]
    return [worker for daemon in daemons for worker in child_pids(daemon)]


def kill_until(coordinator: Coordinator, phase: Phase) -> bool:
    """Kill the workers there are, unless the coordinator is in that phase by now."""
    if coordinator.status.current.phase is phase:
        return True
    for worker in python_workers(coordinator):
        os.kill(worker, signal.SIGKILL)
    return False


def phases_of(coordinator: Coordinator) -> Callable[[], list[Phase]]:
    """Begin to write down the phases the coordinator enters; the call gives them and ends it."""
    seen: list[Phase] = []

    def watch() -> None:
        while coordinator.status.wait_until(lambda now: not seen or now.phase is not seen[-1], timeout_s=300):
            seen.append(coordinator.status.current.phase)
            if len(seen) == 3:
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    wait_until(lambda: bool(seen), "the phase it is in")

    def phases() -> list[Phase]:
        watcher.join(timeout=60)
        return seen[1:]

    return phases


def test_a_damaged_checkpoint_is_named_and_one_that_lost_batches_is_refused(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    options = options_for(broker, tmp_path, new_layout())
    with coordinating(options) as coordinator, client_of(options) as client:
        member = stable_member(client, "kept", session_timeout_ms=900_000)
        assert coordinator.status.wait_until(lambda status: status.batch_id > 3, timeout_s=60)
    answered_twice = pytest.raises(FolderError, match="would be handled and answered a second time")
    with moved_away(tmp_path / "spark" / "offsets", tmp_path / "spark" / "commits"), answered_twice:
        Coordinator(options).start()

    # The state after the last committed batch. A later changelog belongs to a batch that runs again, so it is
    # not read. A snapshot would make the changelogs needless.
    store = tmp_path / "spark/state/0/0"
    changelog = store / f"{last_batch(LocalFiles(tmp_path), 'commits') + 1}.changelog"
    assert not list(store.glob("*.zip"))
    content = changelog.read_bytes()
    changelog.write_bytes(bytes(len(content)))
    with Coordinator(options) as coordinator:
        failing = wait_for_failing(coordinator)
        assert f"the checkpoint is damaged: {changelog} does not match its checksum. " in failing.reason
        changelog.write_bytes(content)
        assert coordinator.status.wait_until(is_well, timeout_s=START_TIMEOUT_S)
        with client_of(options) as client:
            assert replace(member, client=client).heartbeat(1) is ErrorCode.NONE


@contextmanager
def moved_away(*logs: Path) -> Iterator[None]:
    """Without the two newest files of each of Spark's logs, as after a restore of some files."""
    newest = [p for log in logs for p in sorted(log.glob("[0-9]*"), key=lambda it: int(it.name))[-2:]]
    for path in newest:
        path.rename(path.with_suffix(".away"))
    yield
    for path in newest:
        path.with_suffix(".away").rename(path)


def test_record_at_fault_is_named_and_can_be_skipped(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_for(broker, tmp_path, new_layout())
    prepare_topics(options.client_config, options.layout)
    with client_of(options) as client, client_of(options, POISON) as poison:
        with monkeypatch.context() as patch:
            patch.setattr(coordinator_module, "Operator", partial(FaultyOperator, step=poisoned_step))
            with coordinating(options) as coordinator:
                client.heartbeat(RUINED_GROUP, generation_id=1, member_id="m")
                stable_member(client, "healthy")
                poison.heartbeat("poisoned", generation_id=1, member_id="m")
                partition = partition_of("poisoned", options.layout.request_partitions)
                record = f"{options.layout.requests_topic}-{partition}-"
                failing = wait_for_failing(coordinator)
                waiting = Member(client, "behind", "").join()
        at_fault = check_failing(failing, record)

        with coordinating(replace(options, skip=(at_fault,))) as coordinator:
            assert waiting.result().error_code is ErrorCode.MEMBER_ID_REQUIRED
            assert reasons_of(options)[at_fault] is Reason.SKIPPED
            client.heartbeat(RUINED_GROUP, generation_id=1, member_id="m")
            failing = wait_for_failing(coordinator)
    assert f"of version {UNKNOWN_VERSION}" in failing.reason
    assert "the error names no record" in failing.reason


def wait_for_failing(coordinator: Coordinator) -> Status:
    assert coordinator.status.wait_for(Phase.FAILING, timeout_s=START_TIMEOUT_S), coordinator.status.current
    return read_status(coordinator.options.folder / "status.json")


def check_failing(failing: Status, record_prefix: str) -> str:
    """The id of the request at fault, the first of a pack, as the status names it."""
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
