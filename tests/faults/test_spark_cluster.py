"""The coordinator on a standalone Spark cluster, with its checkpoint on HDFS.

Executors and workers are lost, and another machine continues from the checkpoint.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import msgspec
import pyspark
import pytest

from clients.barrier import wait_for_views
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from embedded.jars import spark_jars
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import is_clock_record, is_pack, request_id, unpack
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase
from kafka_why.topic_reader import layout_on
from streaming.query.jvm import SparkFailed
from streaming.query.session import Session
from streaming.service.outages.outage import type_of
from streaming.service.status import read_status
from tests.e2e.harness import (
    QUICK_JAVA,
    START_TIMEOUT_S,
    Member,
    history_of,
    note,
    read_answers,
    read_topic,
    running,
    stable_member,
    wait_until,
)
from tests.harness.run_command import Run, run
from tests.harness.spark_cluster import EXECUTOR_SETTINGS, HOST, Hdfs, SparkCluster

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
GROUPS = 8
REQUEST_PARTITIONS = 4
STATE_PARTITIONS = 2
SESSION_MS = 60_000
# Of members that join and say nothing more.
SILENT_SESSION_MS = 1_800_000
PAUSE_S = 0.1
AFTER_A_LOSS_S = 120.0
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


class Working:
    """Members of their own groups, each of which sends heartbeats all the time, and new groups."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(GROUPS)
        names = [f"group-{n}" for n in range(GROUPS)]
        made = self._pool.map(lambda name: stable_member(client, name, SESSION_MS), names)
        self.members = dict(zip(names, made, strict=True))
        self.answered = dict.fromkeys(self.members, 0)
        self._beating = [self._pool.submit(self._beat, name, m) for name, m in self.members.items()]

    def _beat(self, name: str, member: Member) -> None:
        while not self._stopping.wait(PAUSE_S):
            assert member.heartbeat(1) is ErrorCode.NONE
            self.answered[name] += 1

    def wait_for_answers(self, timeout_s: float = AFTER_A_LOSS_S) -> float:
        """Wait until each group, and a new one, was answered twice from now on. Return the seconds."""
        began_s, before = time.monotonic(), dict(self.answered)

        def came() -> bool:
            for beating in self._beating:
                if beating.done():
                    beating.result()
            return all(self.answered[name] >= count + 2 for name, count in before.items())

        wait_until(came, "answers to each group", timeout_s)
        new = f"new-{len(self.members)}"
        self.members[new] = stable_member(self._client, new, SILENT_SESSION_MS)
        return time.monotonic() - began_s

    def wait_for_batches(self) -> None:
        """Wait until the query has handled what was answered."""
        wait_for_views(self._client)

    def stop(self) -> None:
        """End the members' work, and wait for the answers to it."""
        self._stopping.set()
        for beating in self._beating:
            beating.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._pool.shutdown()


def check_every_request_was_answered_once(client_config: ClientConfig, layout: TopicLayout) -> int:
    """Check that repeated answers are equal. Return the number of requests."""
    asked = {
        request_id(record.topic, record.partition, record.offset, n if is_pack(record.value) else None)
        for record in read_topic(client_config, layout.requests_topic)
        if not is_clock_record(record.key, record.value) and type_of(record.value) != "TopicMetadata"
        for n in range(len(unpack(record.value)))
    }
    answers: dict[str, bytes] = {}
    for record in read_answers(client_config, layout):
        for answer in map(bytes, unpack(record.value)):
            assert answers.setdefault(msgspec.json.decode(answer)["request"], answer) == answer
    assert answers.keys() == asked
    assert not read_topic(client_config, layout.dead_letters_topic)
    return len(asked)


def settings_as(option: str, settings: Mapping[str, str]) -> list[str]:
    """Return settings of Spark as words of a command line."""
    return [word for name, value in settings.items() for word in (option, f"{name}={value}")]


def wait_for_lost(pids: list[int]) -> None:
    wait_until(lambda: not running(pids), f"the end of {pids}")


def lose_a_worker(cluster: SparkCluster, work: Working) -> float:
    """Kill a worker. Its executor ends too, and the other executor gets all partitions."""
    executors = cluster.executors(1)
    assert executors
    os.kill(cluster.worker_pids[1], signal.SIGKILL)
    wait_for_lost(executors)
    took_s = work.wait_for_answers()
    work.wait_for_batches()
    return took_s


def lose_all_executors(cluster: SparkCluster, work: Working) -> None:
    """Kill all executors. The batch waits for a worker with a free core. The replica answers meanwhile."""
    executors = cluster.executors(0)
    os.kill(cluster.worker_pids[0], signal.SIGKILL)
    wait_for_lost(executors)
    work.wait_for_answers()
    cluster.start_worker()
    work.wait_for_batches()


@pytest.mark.timeout(600)
def test_lost_executors_and_workers_lose_no_request_and_change_no_answer(
    spark_cluster: SparkCluster,
    broker: EmbeddedBroker,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    prefix, data = f"cluster-{uuid4()}", tmp_path / "data"
    with ExitStack() as stack:
        hdfs = stack.enter_context(Hdfs(tmp_path / "hdfs"))
        client_config = broker.client_config
        common = (
            *("--json", "--no-page", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", prefix),
            *("--checkpoint", f"{hdfs.uri}/coordinator", "--request-partitions", str(REQUEST_PARTITIONS)),
        )
        first = stack.enter_context(
            run(
                tmp_path,
                *(*common, "--data-dir", str(data), "-c", "group.initial.rebalance.delay.ms=0"),
                *("--master", spark_cluster.master, "--state-partitions", str(STATE_PARTITIONS)),
                *settings_as("--spark-conf", EXECUTOR_SETTINGS),
            )
        )
        first.ready()
        layout = layout_on(client_config, prefix)
        assert layout.request_partitions == REQUEST_PARTITIONS
        timeout_ms = round(START_TIMEOUT_S * 1000)
        client = CoordinatorClient(client_config, layout, client_id="c", request_timeout_ms=timeout_ms)
        work = stack.enter_context(Working(stack.enter_context(client)))
        work.wait_for_answers()
        wait_until(lambda: all(map(spark_cluster.executors, range(2))), "an executor on each worker")
        took_s = lose_a_worker(spark_cluster, work)
        note(record_property, "answers after a lost worker", f"{took_s:.1f} s")
        lose_all_executors(spark_cluster, work)
        work.stop()
        check_stopped_in_order(first, data)
        check_the_query_never_ended(first)
        check_a_submitted_one_goes_on(spark_cluster, tmp_path, common, work.members.values())
        asked = check_every_request_was_answered_once(client_config, layout)
        note(record_property, "requests", str(asked))
        for group_id in work.members:
            types = [entry.type for entry in history_of(client_config, layout, group_id, settled=False)]
            assert types.count(EntryType.MEMBER_REMOVED) == 0
    assert not (data / "coordinator/spark").exists()


def check_stopped_in_order(coordinator: Run, data: Path) -> None:
    coordinator.interrupt()
    assert coordinator.end()[0] == 0, coordinator.stderr
    assert read_status(data / "coordinator" / "status.json").phase is ServicePhase.STOPPED


def check_the_query_never_ended(coordinator: Run) -> None:
    """Check that a lost executor is no failure of a batch: Spark runs its tasks again elsewhere."""
    assert coordinator.stderr.count('"query started"') == 1
    assert "query failed" not in coordinator.stderr
    assert "dropped requests" not in coordinator.stderr


def check_a_submitted_one_goes_on(
    cluster: SparkCluster, tmp_path: Path, common: tuple[str, ...], members: Iterable[Member]
) -> None:
    """Check that a job of spark-submit, with its own JVM, continues with the state in another folder."""
    jars = ",".join(str(jar) for jar in spark_jars())
    settings = {**EXECUTOR_SETTINGS, "spark.driver.host": HOST, "spark.driver.memory": "512m"}
    conf = settings_as("--conf", settings)
    command = [str(SPARK_SUBMIT), "--master", cluster.master, "--jars", jars, *conf]
    python = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
    environment = os.environ | python | {"JAVA_TOOL_OPTIONS": QUICK_JAVA}
    log = tmp_path / "submitted.log"
    with log.open("wb") as output:
        submitted = subprocess.Popen(
            [
                *command,
                str(ROOT / "deploy/spark_submit.py"),
                "run",
                *common,
                "--data-dir",
                str(tmp_path / "two"),
            ],
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    try:
        with ThreadPoolExecutor(GROUPS) as pool:
            answered = list(pool.map(lambda member: member.heartbeat(1), members))
        assert set(answered) == {ErrorCode.NONE}, log.read_text()[-2_000:]
    finally:
        os.killpg(submitted.pid, signal.SIGTERM)
        submitted.wait(START_TIMEOUT_S)


def test_executors_whose_python_lacks_packages_are_named(
    spark_cluster: SparkCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has each host, and the versions that the driver has."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # a session changes it
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without what was installed
    bare.chmod(0o755)
    extra = {**EXECUTOR_SETTINGS, "spark.pyspark.python": str(bare)}
    with pytest.raises(SparkFailed, match=r"msgspec on \S+ \(\S+\) is none, the driver has \d"):
        Session(log_path=tmp_path / "spark.log", master=spark_cluster.master, extra=extra).close()
