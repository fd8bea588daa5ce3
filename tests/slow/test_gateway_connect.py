"""Kafka Connect in distributed mode through the gateway: two workers copy one file to another."""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.processes.child import Child
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from embedded.jars import connect_classpath
from embedded.java import find_java
from gateway.net.options import GatewayOptions
from insight.admin.requests import GroupRequests
from insight.why.rebalances import rebalances
from state.kafka.responses import DescribeGroupResponse
from tests.e2e.gateway_clients import members_added
from tests.e2e.harness import create_topic, history_of, wait_until
from tests.harness.java_tools import java_options_of
from tests.harness.ports import free_port

pytestmark = pytest.mark.e2e

LINES = 50
START_TIMEOUT_S = 180.0
STRING = "org.apache.kafka.connect.storage.StringConverter"
_LOG4J2 = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
"""


class Worker:
    """A Connect worker, reached by its REST interface."""

    def __init__(self, group_id: str, gateway: str, folder: Path) -> None:
        self.port = free_port()
        folder.mkdir()
        settings = {
            "bootstrap.servers": gateway,
            "group.id": group_id,
            "listeners": f"http://127.0.0.1:{self.port}",
            "key.converter": STRING,
            "value.converter": STRING,
            "offset.flush.interval.ms": "1000",
            "session.timeout.ms": "10000",
            "heartbeat.interval.ms": "1000",
            # The time for a lost worker to come back before its tasks move. The default is 5 min.
            "scheduled.rebalance.max.delay.ms": "1000",
        }
        for what in ("config", "offset", "status"):
            settings[f"{what}.storage.topic"] = f"{group_id}-{what}"
            settings[f"{what}.storage.replication.factor"] = "1"
        settings |= {"offset.storage.partitions": "1", "status.storage.partitions": "1"}
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / "log4j2.properties").write_text(_LOG4J2)
        options = [*java_options_of(connect_classpath()), "-Xmx256m"]
        log_settings = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        arguments = [*options, log_settings, "org.apache.kafka.connect.cli.ConnectDistributed", str(file)]
        self.process = Child(folder.name, arguments, folder / "worker.log", program=find_java())

    def ask(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        """The answer of the REST interface. Raises URLError while the worker cannot answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def runs(self, connector: str) -> bool:
        """Whether the connector and its task run, on whatever worker."""
        status = self.ask("GET", f"/connectors/{connector}/status")
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return states == ["RUNNING", "RUNNING"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def is_answered(ask: Callable[[], Any]) -> Callable[[], bool]:
    """Whether a worker gives an answer that is true. An error counts as none: a rebalance goes on."""

    def is_so() -> bool:
        try:
            return bool(ask())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    return is_so


def test_lines_of_a_file_arrive_though_a_worker_is_killed(
    options: GatewayOptions, broker: EmbeddedBroker, gateway: str, tmp_path: Path, stack: ExitStack
) -> None:
    """Connect's own group, of workers, and the sink's group of consumers are the coordinator's."""
    group_id, topic = f"connect-{uuid.uuid4()}", f"lines-{uuid.uuid4()}"
    source, sink = f"source-{uuid.uuid4()}", f"sink-{uuid.uuid4()}"
    create_topic(broker.client_config, topic, 1, {})
    read, written = tmp_path / "in.txt", tmp_path / "out.txt"
    read.write_text("")
    workers = [Worker(group_id, gateway, tmp_path / f"worker-{number}") for number in range(2)]
    for worker in workers:
        stack.callback(worker.process.stop)
    first, second = workers
    for worker in workers:
        wait_until(is_answered(partial(worker.ask, "GET", "/")), "a worker", START_TIMEOUT_S)
    file = "org.apache.kafka.connect.file.FileStream"
    reads = {"connector.class": f"{file}SourceConnector", "file": str(read), "topic": topic}
    writes = {"connector.class": f"{file}SinkConnector", "file": str(written), "topics": topic}
    for name, settings in ((source, reads), (sink, writes)):
        put = f"/connectors/{name}/config"
        body = {**settings, "tasks.max": "1"}
        wait_until(is_answered(partial(first.ask, "PUT", put, body)), f"{name} is taken")
    for name in (source, sink):
        wait_until(is_answered(partial(second.runs, name)), f"{name} runs", START_TIMEOUT_S)
    append(read, range(LINES))
    wait_until(lambda: lines(written) >= {*range(LINES)}, "the first lines", START_TIMEOUT_S)
    first.process.kill()
    append(read, range(LINES, 2 * LINES))
    wait_until(lambda: lines(written) >= {*range(2 * LINES)}, "the other lines", START_TIMEOUT_S)
    with CoordinatorClient(options.client_config, options.layout, client_id="test") as client:
        groups = GroupRequests(client)

        def committed() -> int:
            _, fetched = groups.describe([f"connect-{sink}"], with_offsets=True)
            return sum(it.offset for it in fetched[f"connect-{sink}"].offsets.values())

        # The source may have written lines of its last second twice.
        wait_until(lambda: committed() >= 2 * LINES, "the sink's offset", START_TIMEOUT_S)
        described = groups.describe([group_id])[0][group_id]
        assert isinstance(described, DescribeGroupResponse)
        assert described.protocol_type == "connect"
    assert members_added(options, group_id) >= len(workers)
    why_names_the_work(options, group_id, {source, sink})


def why_names_the_work(options: GatewayOptions, group_id: str, connectors: set[str]) -> None:
    """Each connector and its task was assigned, and no assignment is only bytes."""
    found = rebalances(history_of(options.client_config, options.layout, group_id))
    assert [r.assignment_bytes for r in found if r.assignment_bytes] == []
    works = [work for r in found for work in r.connect.values()]
    assert {name for work in works for name in work.connectors} == connectors
    tasks = {(name, task) for work in works for name, of in work.tasks.items() for task in of}
    assert tasks == {(name, 0) for name in connectors}


def append(path: Path, numbers: range) -> None:
    with path.open("a") as file:
        file.writelines(f"{number}\n" for number in numbers)


def lines(path: Path) -> set[int]:
    """The numbers of the whole lines of a file. A line may be there twice."""
    text = path.read_text() if path.exists() else ""
    return {int(line) for line in text.rpartition("\n")[0].splitlines()}
