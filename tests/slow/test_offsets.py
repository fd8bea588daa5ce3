"""Offsets on a real broker: what was acknowledged is fetched, whatever is killed in between."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from cli.demo.children import Child, Children
from cli.demo.strike import wait_until_gone
from clients.coordinator_client import CoordinatorClient, layout_on
from embedded.broker import EmbeddedBroker
from state.errors import ErrorCode
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit, OffsetFetch
from state.kafka.responses import OffsetCommitResponse, OffsetFetchResponse
from tests.e2e.harness import START_TIMEOUT_S, Member, create_topic, stable_member

pytestmark = pytest.mark.e2e

GROUP = "g"
PREFIX = "offsets-test"
COMMITS_BEFORE_KILL = 5


class Coordinators:
    """The coordinator as a process of its own, killed and started again on one folder."""

    def __init__(self, broker: EmbeddedBroker, children: Children, folder: Path) -> None:
        self._children = children
        self._folder = folder
        self._arguments = ["run", "--json", "--bootstrap-servers", broker.bootstrap_servers]
        self._arguments += ["--prefix", PREFIX, "--data-dir", str(folder)]
        self._arguments += ["-c", "group.initial.rebalance.delay.ms=0"]
        self._starts = 0
        self._running = self.start()

    def start(self) -> Child:
        self._starts += 1
        self._running = self._children.start(f"coordinator-{self._starts}", *self._arguments)
        self._running.wait_for_line(lambda line: "requests_topic" in line, START_TIMEOUT_S)
        return self._running

    def kill(self) -> None:
        self._running.kill()
        wait_until_gone(self._folder / "coordinator")


@pytest.fixture
def coordinators(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Coordinators]:
    with Children(tmp_path) as children:
        yield Coordinators(broker, children, tmp_path)


def commit(
    client: CoordinatorClient, member: Member, generation: int, offset: int
) -> Future[OffsetCommitResponse]:
    request = OffsetCommit(
        **client.header(GROUP, 9),
        generation_id=generation,
        member_id=member.member_id,
        topics=[CommittedTopic("t", [CommittedPartition(0, offset)])],
    )
    return client.send(request, OffsetCommitResponse)


def fetch(client: CoordinatorClient) -> int:
    answer = client.send(OffsetFetch(**client.header(GROUP, 9)), OffsetFetchResponse).result()
    ((committed,),) = (topic.partitions for topic in answer.topics)
    return committed.committed_offset


@pytest.mark.timeout(600)
def test_after_a_kill_the_last_commit_is_fetched(broker: EmbeddedBroker, coordinators: Coordinators) -> None:
    servers, layout = broker.client_config, layout_on(broker.client_config, PREFIX)
    create_topic(servers, "t", 1, {})
    with CoordinatorClient(servers, layout, client_id="c", request_timeout_ms=120_000) as client:
        first = stable_member(client, GROUP, session_timeout_ms=300_000)
        commit_and_kill(coordinators, client, first, generation=1, offset=10)
        assert first.leave() is ErrorCode.NONE
        second = Member.of(client, GROUP, session_timeout_ms=300_000)
        generation = second.join().result().generation_id
        second.sync(generation, {second.member_id: b"everything"}).result()
        assert fetch(client) == 16
        commit_and_kill(coordinators, client, second, generation, offset=20)


def commit_and_kill(
    coordinators: Coordinators, client: CoordinatorClient, member: Member, generation: int, offset: int
) -> None:
    """Commits one after the other, the last one under way when the coordinator is killed.

    It stands in the log, so it is worked off after the restart if it was not before.
    """
    for _ in range(COMMITS_BEFORE_KILL):
        offset += 1
        assert commit(client, member, generation, offset).result().error_code is ErrorCode.NONE
    last = commit(client, member, generation, offset + 1)
    coordinators.kill()
    coordinators.start()
    assert last.result().error_code is ErrorCode.NONE
    assert fetch(client) == offset + 1
