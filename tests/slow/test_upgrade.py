"""A coordinator is killed in the middle of a batch, and one of another version starts on its folder."""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from bench.memory import WORKERS, parts_of
from checkpoints.checkpoint import Checkpoint
from cli.demo.story import wait_until_gone
from cli.processes.child import Child, ChildFailed, Children
from clients.coordinator_client import CoordinatorClient, layout_on
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from records.pack import unpack
from state.errors import ErrorCode
from state.kafka.responses import HeartbeatResponse
from tests.e2e.harness import (
    START_TIMEOUT_S,
    Member,
    read_answers,
    stable_member,
    wait_until,
    waits_for_a_request,
)

pytestmark = pytest.mark.e2e

PREFIX = "upgrade-test"
GROUPS = [f"group-{n}" for n in range(5)]
SESSION_MS = 300_000
STANDSTILL_S = 3.0


def start(
    children: Children,
    broker: EmbeddedBroker,
    data: Path,
    name: str,
    send: Callable[[], object] | None = None,
) -> Child:
    """Start it. After a kill it waits for a request, which `send` sends."""
    child = children.start(
        name, "run", "--json", "--no-gateway", "--no-replica",
        "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX, "--data-dir", str(data),
        "-c", "group.initial.rebalance.delay.ms=0",
    )  # fmt: skip
    if send is not None:
        waits = partial(waits_for_a_request, data / "coordinator")
        wait_until(waits, "its wait for a request", START_TIMEOUT_S)
        send()
    child.wait_for_line(lambda line: "requests_topic" in line, START_TIMEOUT_S)
    return child


def kill_in_a_batch(
    running: Child, checkpoint: Checkpoint, client: CoordinatorClient, members: list[Member]
) -> list[Future[HeartbeatResponse]]:
    """Let the Python workers stand still, so that no batch ends, and kill everything when a batch is planned.

    Return the requests that were sent meanwhile. The first of them are in that batch.
    """
    for pid in parts_of(running.pid)[WORKERS]:
        os.kill(pid, signal.SIGSTOP)
    futures = [client.heartbeat(m.group_id, generation_id=1, member_id=m.member_id) for m in members]
    time.sleep(STANDSTILL_S)
    wait_until(lambda: checkpoint.last_batch("offsets") > checkpoint.last_batch("commits"), "a planned batch")
    running.kill()
    return futures


def check_other_rules_are_refused(children: Children, broker: EmbeddedBroker, data: Path) -> None:
    """As if a version with other rules had planned the batch. Nothing is written into its folder."""
    checkpoint = Checkpoint.at(data / "coordinator")
    written = checkpoint.record()
    other = replace(written, epochs=[replace(epoch, code_version="0.0.1") for epoch in written.epochs])
    checkpoint.rewrite(other)
    with pytest.raises(ChildFailed, match=r"was planned by version 0\.0\.1 and is not committed"):
        start(children, broker, data, "refused")
    assert (checkpoint.newest_owner(), checkpoint.record()) == (1, other)
    wait_until_gone(data / "coordinator")
    checkpoint.rewrite(written)


def answers_of(servers: str, layout: TopicLayout) -> dict[str, set[bytes]]:
    """All answers by the id of their request."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for record in read_answers(ClientConfig(servers), layout):
        for answer in unpack(record.value):
            found[msgspec.json.decode(answer)["request"]].add(bytes(answer))
    return found


@pytest.mark.timeout(600)
def test_a_planned_batch_of_other_rules_is_refused_and_its_own_version_answers_each_request_once(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    folder, servers = data / "coordinator", broker.client_config
    checkpoint = Checkpoint.at(folder)
    with Children(tmp_path) as children:
        first = start(children, broker, data, "first")
        layout = layout_on(servers, PREFIX)
        with CoordinatorClient(servers, layout, client_id="c", request_timeout_ms=240_000) as client:
            members = [stable_member(client, group, SESSION_MS) for group in GROUPS]
            planned = kill_in_a_batch(first, checkpoint, client, members)
            wait_until_gone(folder)
            check_other_rules_are_refused(children, broker, data)
            one = members[0]
            beat = partial(client.heartbeat, one.group_id, generation_id=1, member_id=one.member_id)
            again = start(children, broker, data, "again", beat)
            assert [future.result().error_code for future in planned] == [ErrorCode.NONE] * len(planned)
            assert {member.heartbeat(1) for member in members} == {ErrorCode.NONE}
            again.stop()
    answers = answers_of(str(servers), layout)
    assert {len(different) for different in answers.values()} == {1}
