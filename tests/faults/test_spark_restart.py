"""The service goes on when Spark's JVM has ended: the same process starts another one."""

import gc
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from checkpoints.checkpoint import Checkpoint
from checkpoints.state_stores import is_intact
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.responses import HeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase
from kafka_why.local_files import FolderError
from streaming.query import jvm
from streaming.query.jvm import OwnJvm, SparkFailed
from streaming.query.session import Session
from streaming.query.storage import HadoopFiles
from streaming.service.coordinator import Coordinator
from streaming.service.query import spark_keeper
from streaming.service.starts import Options
from streaming.service.status import read_status
from tests.e2e.harness import (
    QUICK_SPARK,
    START_TIMEOUT_S,
    Member,
    coordinating,
    history_of,
    new_layout,
    note,
    running,
    settle,
    stable_member,
    wait_until,
)
from tests.faults.test_spark_cluster import check_every_request_was_answered_once
from tests.harness.member_requests import heartbeat
from tests.harness.run_command import SPARK, children_running, stop_within_a_batch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SESSION_MS = 30_000
GROUPS = 5
BEAT_S = 0.1


def options_for(broker: EmbeddedBroker, folder: Path) -> Options:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    return Options(broker.client_config, folder, new_layout(), settings, spark=QUICK_SPARK)


@dataclass
class Service:
    """A coordinator, and members that send heartbeats all the time."""

    coordinator: Coordinator
    members: list[Member]
    restarts: int = 0
    """Those of Spark that a test has waited for."""

    @property
    def folder(self) -> Path:
        return self.coordinator.options.folder

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.at(self.folder)

    def wait_for_another_jvm(self, ended: int) -> None:
        """Wait until batches are committed by another JVM than this."""
        status = self.coordinator.status
        wait_until(lambda: self.coordinator.spark_restarts > self.restarts, "another JVM", START_TIMEOUT_S)
        self.restarts = self.coordinator.spark_restarts
        assert status.wait_for(ServicePhase.READY, timeout_s=START_TIMEOUT_S), status.current
        assert self.coordinator.jvm_pid != ended
        assert not running([ended])


@contextmanager
def beating(members: list[Member]) -> Iterator[None]:
    """Yield a heartbeat of each member ten times a second, which all have to be answered without an error."""
    sent: list[Future[HeartbeatResponse]] = []
    stopping = threading.Event()

    def beat() -> None:
        while not stopping.wait(BEAT_S):
            sent.extend(heartbeat(m.client, m.group_id, 1, m.member_id) for m in members)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    codes = {answer.result(START_TIMEOUT_S).error_code for answer in sent}
    assert codes == {ErrorCode.NONE}


# pyspark leaves the pipe to a JVM that did not start to the garbage collector.
LEAVES_A_PIPE = pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")


def next_jvm(ended: set[int]) -> int:
    """Wait for a JVM of this process that is none of these."""
    found: list[int] = []

    def has_come() -> bool:
        found[:] = [pid for pid in children_running(os.getpid(), SPARK) if pid not in ended]
        return bool(found)

    wait_until(has_come, "another JVM")
    return found[0]


@LEAVES_A_PIPE
def test_spark_session_survives_its_jvms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(log_path=tmp_path / "spark.log", temporary_folder=tmp_path / "tmp") as session:
        check_nothing_is_left(session, tmp_path)
        nowhere = HadoopFiles(lambda: session.spark, "hdfs://127.0.0.1:1/there", renames=True)
        with pytest.raises(FolderError, match=r"/there/file cannot be written: .*Connection refused"):
            nowhere.write("file", b"")
        check_hanging_starts_are_killed(session, monkeypatch)
        session.check_running()
        # As where a cluster's master gives the application up. The JVM goes on then.
        session.spark.sparkContext._jsc.sc().stop()
        with pytest.raises(SparkFailed, match="Spark has stopped the application"):
            session.check_running()
        assert not session.has_lost_jvm()


def check_nothing_is_left(session: Session, folder: Path) -> None:
    """No thread, no open file and no entry of the path is there for each restart, nor anything on standard
    error. The next JVM reads what was written through Hadoop by the one before.
    """
    files = HadoopFiles(lambda: session.spark, folder.as_uri(), renames=True)
    files.write("file", b"before")
    before, after = (_used(session) for _ in range(2))
    assert files.read("file") == b"before"
    # What a test before this one has left may end meanwhile.
    assert after.threads <= before.threads
    assert after.files <= before.files
    assert after.path == before.path


def check_hanging_starts_are_killed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a JVM has answered once nobody else watches it, and while Spark starts the watchdog does. The
    next one is started as after any other end.
    """
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(jvm, "LAUNCH_S", 4.0)
        session.kill()
        second = pool.submit(lambda: _stopped(next_jvm({session.jvm_pid})))
        with pytest.raises(SparkFailed, match=r"Spark did not start: .*, so it was killed\. Its log is "):
            session.restart()
        assert not running([second.result()])
    launch = session._launch

    def launch_stopped() -> OwnJvm:
        launched = launch()
        _stopped(launched.pid)
        return launched

    with monkeypatch.context() as patch:
        patch.setattr(session, "_launch", launch_stopped)
        patch.setattr(jvm, "UNANSWERED_S", 3)
        with pytest.raises(SparkFailed, match="Spark's JVM has not answered for 3 s, so it was killed"):
            session.restart()
    session.restart()
    session.ping()


def _stopped(pid: int) -> int:
    os.kill(pid, signal.SIGSTOP)
    return pid


class Used(NamedTuple):
    """How many threads and files this process has, and its path."""

    threads: int
    files: int
    path: list[str]


def _used(session: Session) -> Used:
    """Kill Spark's JVM, start it again and use it. Return what this process has then."""
    ended = session.jvm_pid
    os.kill(ended, signal.SIGKILL)
    assert session.has_lost_jvm()
    session.restart()
    assert not running([ended])
    assert session.spark.sparkContext.parallelize(range(4), 2).map(lambda n: n * 2).sum() == 12
    gc.collect()  # clients leave their sockets to the garbage collector
    return Used(threading.active_count(), len(list(Path("/proc/self/fd").iterdir())), list(sys.path))


@LEAVES_A_PIPE
def test_coordinator_restarts_its_jvm_until_it_keeps_ending(
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """All requests are answered, each in one way, and no member expires."""
    options = options_for(broker, tmp_path)
    with coordinating(options) as coordinator:
        timeout_ms = int(START_TIMEOUT_S * 1000)
        with (
            CoordinatorClient(
                options.client_config, options.layout, client_id="c", request_timeout_ms=timeout_ms
            ) as client,
            ThreadPoolExecutor(GROUPS) as pool,
        ):
            names = [f"group-{i}" for i in range(GROUPS)]
            members = list(pool.map(partial(stable_member, client, session_timeout_ms=SESSION_MS), names))
            with beating(members):
                service = Service(coordinator, members)
                killed_in_a_batch_and_its_state_file_torn(service, record_property)
                hangs(service)
            settle(options.client_config, options.layout)
        check_every_request_was_answered_once(options.client_config, options.layout)
        for name in names:
            history = history_of(options.client_config, options.layout, name, settled=False)
            assert not [entry for entry in history if entry.type is EntryType.MEMBER_REMOVED]
        check_it_ends_when_no_jvm_stays(coordinator, monkeypatch)


def killed_in_a_batch_and_its_state_file_torn(
    service: Service, record_property: Callable[[str, object], None]
) -> None:
    """The batch runs again and writes the file again, which Spark would keep as it is. The address of the UI
    stays valid, and the temporary files of the old Spark are gone.
    """
    jvm, ui, folder = service.coordinator.jvm_pid, service.coordinator.ui_url, service.folder
    batch = stop_within_a_batch(jvm, service.checkpoint, partial(os.kill, jvm))
    torn = folder / f"spark/state/0/0/{batch + 1}.changelog"
    torn.write_bytes(b"torn")
    torn.with_name(f".{torn.name}.crc").write_bytes(b"crc\0\0\0\2\0\0\0\0\0")
    assert not is_intact(torn)
    began_s = time.monotonic()
    os.kill(jvm, signal.SIGKILL)
    assert service.coordinator.status.wait_for(ServicePhase.RESTARTING, timeout_s=60)
    reason = read_status(folder / "status.json").reason
    assert reason == (
        f"Spark's JVM has ended; its log is {folder / 'spark.log'}. It is started again, attempt 1 of 5"
    )
    service.wait_for_another_jvm(jvm)
    note(record_property, "SIGKILL of the JVM to a batch", f"{time.monotonic() - began_s:.1f} s")
    assert service.checkpoint.last_batch("commits") >= batch
    assert is_intact(torn)
    assert service.coordinator.ui_url == ui
    with urllib.request.urlopen(f"{ui}/api/v1/applications", timeout=30) as response:
        assert len(json.load(response)) == 1
    assert len(list((folder / "tmp").glob("librocksdbjni*.so"))) == 1
    assert service.coordinator.failure is None


def hangs(service: Service) -> None:
    """It is killed, and another one is started."""
    jvm = service.coordinator.jvm_pid
    os.kill(jvm, signal.SIGSTOP)
    assert service.coordinator.status.wait_for(ServicePhase.RESTARTING, timeout_s=60)
    reason = service.coordinator.status.current.reason
    assert reason.startswith("Spark's JVM has not answered for 10 s, so it was killed; its log is ")
    service.wait_for_another_jvm(jvm)


def check_it_ends_when_no_jvm_stays(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(spark_keeper, "MOST_RESTARTS", 2)
    monkeypatch.setattr(coordinator, "_on_failure", ended.set)
    jvms = {coordinator.jvm_pid}
    os.kill(coordinator.jvm_pid, signal.SIGKILL)
    for _ in range(2):
        jvms.add(jvm := next_jvm(jvms))
        os.kill(jvm, signal.SIGKILL)
    assert ended.wait(60)
    folder, failure = coordinator.options.folder, str(coordinator.failure)
    assert failure.startswith("Spark did not start: "), failure
    assert failure.endswith(f"Its log is {folder / 'spark.log'}. It was started 2 times since it last worked")
    status = read_status(folder / "status.json")
    assert (status.phase, status.reason) == (ServicePhase.STOPPED, failure)
    assert not running(list(jvms))
