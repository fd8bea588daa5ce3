"""Kafka Connect in distributed mode through the gateway: two workers copy one file to another."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from gateway.net.options import GatewayOptions
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.why.rebalances import rebalances
from operations.admin.requests import GroupRequests
from tests.e2e.gateway_clients import members_added
from tests.e2e.harness import create_topic, history_of, wait_until
from tests.harness.connect_worker import FILE_STREAM, START_TIMEOUT_S, Worker, is_answered

pytestmark = pytest.mark.e2e

LINES = 50


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


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
    reads = {"connector.class": f"{FILE_STREAM}SourceConnector", "file": str(read), "topic": topic}
    writes = {"connector.class": f"{FILE_STREAM}SinkConnector", "file": str(written), "topics": topic}
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
            _, fetched = groups.describe({f"connect-{sink}": None}, with_offsets=True)
            return sum(it.offset for it in fetched[f"connect-{sink}"].committed.values())

        # The source may have written lines of its last second twice.
        wait_until(lambda: committed() >= 2 * LINES, "the sink's offset", START_TIMEOUT_S)
        described = groups.describe({group_id: None})[0][group_id]
        assert isinstance(described, GroupSnapshot)
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
