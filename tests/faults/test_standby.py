"""Two coordinators on one checkpoint, in processes of their own: one works, the other one takes over.

They stand for two machines: each has a data folder of its own, and they share the folder of the checkpoint.
"""

import os
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from kafka import TopicPartition

from checkpoints.checkpoint import Checkpoint
from cli.processes.child import family
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import unpack
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.responses import HeartbeatResponse
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase, ServiceStatus
from kafka_why.topic_reader import layout_on
from streaming.service.can_continue import FILE, LostRequests
from streaming.service.status import read_status
from tests.e2e.gateway_clients import PythonMember, consume, produce, share
from tests.e2e.harness import (
    START_TIMEOUT_S,
    Member,
    create_topic,
    history_of,
    note,
    read_answers,
    settle,
    stable_member,
    wait_until,
)
from tests.harness.member_requests import heartbeat
from tests.harness.ports import gateway_port
from tests.harness.run_command import Run, hold, jvm_of, run, stop_within_a_batch

pytestmark = pytest.mark.e2e

NOT_OWNER = 78
SESSION_MS = 10_000
GROUPS = 5
RECORDS = 40
BEAT_S = 0.1


@dataclass
class Machine:
    """A coordinator with a data folder and a gateway of its own."""

    process: Run
    data: Path
    gateway: str

    @property
    def status(self) -> ServiceStatus | None:
        with suppress(FileNotFoundError):
            return read_status(self.data / "coordinator" / "status.json")
        return None

    def is_in(self, phase: ServicePhase) -> bool:
        status = self.status
        return status is not None and status.phase is phase

    def wait_for(self, phase: ServicePhase) -> None:
        def come() -> bool:
            assert self.process.process.poll() is None, self.process.stderr
            return self.is_in(phase)

        wait_until(come, f"{self.data.name}: {phase}", START_TIMEOUT_S)

    def signal(self, number: signal.Signals) -> None:
        """Send it to the process, its JVM and its Python workers, as if it came to the whole machine."""
        seen: set[int] = set()
        while fresh := set(family(self.process.pid)) - seen:
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            seen |= fresh


@dataclass
class Site:
    """What all machines share: the broker, the topics and the folder of the checkpoint."""

    broker: EmbeddedBroker
    folder: Path
    prefix: str
    stack: ExitStack

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.at(self.folder / "shared")

    @property
    def common(self) -> tuple[str, ...]:
        """The options of all coordinators."""
        servers = self.broker.bootstrap_servers
        return ("--json", "--no-page", "--bootstrap-servers", servers, "--prefix", self.prefix)

    def start(self, name: str) -> Machine:
        data = self.folder / name
        gateway = f"127.0.0.1:{gateway_port()}"
        own = ("--standby", "--data-dir", str(data), "--gateway", gateway)
        shared = ("--checkpoint", str(self.folder / "shared"), "-c", "group.initial.rebalance.delay.ms=0")
        return Machine(self.stack.enter_context(run(self.folder, *self.common, *own, *shared)), data, gateway)


class Beating:
    """Sends a heartbeat of each member ten times a second until `stop`, which returns the error codes."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._sent: list[Future[HeartbeatResponse]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_S):
            for member in self._members:
                self._sent.append(heartbeat(member.client, member.group_id, 1, member.member_id))

    def stop(self) -> list[ErrorCode]:
        self._stopping.set()
        self._thread.join()
        return [sent.result(120).error_code for sent in self._sent]


@pytest.mark.timeout(600)
def test_standby_takes_over_from_a_suspended_coordinator(
    broker: EmbeddedBroker, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """No member is lost, no request has two different answers, and the one that wakes up ends. One on another
    checkpoint is refused meanwhile. The other one ends when requests are lost. The fault campaign kills
    coordinators and standbys, too.
    """
    with ExitStack() as stack:
        site = Site(broker, tmp_path, f"test-{uuid4()}", stack)
        active, standby = both(site.start("one"), site.start("other"))
        layout = layout_on(broker.client_config, site.prefix)
        client = stack.enter_context(
            CoordinatorClient(broker.client_config, layout, client_id="c", request_timeout_ms=120_000)
        )
        with ThreadPoolExecutor(GROUPS) as pool:
            names = [f"group-{i}" for i in range(GROUPS)]
            members = list(pool.map(partial(stable_member, client, session_timeout_ms=SESSION_MS), names))
        beating = Beating(members)
        seen = Consumed(stack, broker, standby.gateway)
        seen.more()
        check_another_checkpoint_is_refused(site, active)

        with asleep_between_plan_and_commit(site, active):
            began_s = time.monotonic()
            standby.wait_for(ServicePhase.READY)
            note(record_property, "takeover from one that sleeps", f"{time.monotonic() - began_s:.1f} s")
            seen.more()
        check_ends(active, standby)
        seen.more()
        # While they beat: their sessions may end on a busy machine before the topics are read. That none was
        # removed since then is what the codes say.
        settle(broker.client_config, layout)
        for group_id in (seen.group_id, *names):
            check_nobody_removed(broker.client_config, layout, group_id)
        assert set(beating.stop()) == {ErrorCode.NONE}
        check_lost_requests_end_it(broker, standby, members[0], layout)
        check_answers(broker, layout)


def check_another_checkpoint_is_refused(site: Site, owner: Machine) -> None:
    """Check that it ends with a sentence that names the owner, and an exit code of its own."""
    own = ("--data-dir", str(site.folder / "another"), "--take-over-topics")
    with run(site.folder, *site.common, *own) as another:
        assert another.end() == (NOT_OWNER, ""), another.stderr
        assert f"process {owner.process.pid} on {socket.gethostname()}, folder " in another.stderr


def both(one: Machine, other: Machine) -> tuple[Machine, Machine]:
    """Of two that start at the same moment on a new checkpoint, one works at once and the other one waits."""
    wait_until(
        lambda: one.is_in(ServicePhase.READY) or other.is_in(ServicePhase.READY),
        "one that works",
        START_TIMEOUT_S,
    )
    active, standby = (one, other) if one.is_in(ServicePhase.READY) else (other, one)
    standby.wait_for(ServicePhase.STANDBY)
    status = standby.status
    assert status is not None
    runs = (
        f"the coordinator that owns the topics runs: process {active.process.pid} on {socket.gethostname()}"
    )
    wait_until(lambda: runs in (standby.status or status).reason, "the reason to wait")
    return active, standby


class Consumed:
    """Two consumers of one group behind the gateway of the standby, which serves although it only waits."""

    def __init__(self, stack: ExitStack, broker: EmbeddedBroker, gateway: str) -> None:
        self._client_config = broker.client_config
        self.group_id, self._topic = f"group-{uuid4()}", f"orders-{uuid4()}"
        create_topic(self._client_config, self._topic, 4, {})
        self._members = [
            stack.enter_context(
                closing(PythonMember(gateway, self.group_id, self._topic, session_ms=SESSION_MS))
            )
            for _ in range(2)
        ]
        share(*self._members)
        self._produced = 0

    def more(self) -> None:
        """Each of some more records is consumed once."""
        since, self._produced = self._produced, self._produced + RECORDS
        produce(str(self._client_config), self._topic, range(since, self._produced))
        assert consume(RECORDS, *self._members, since=since) == list(range(since, self._produced))


def check_nobody_removed(client_config: ClientConfig, layout: TopicLayout, group_id: str) -> None:
    history = history_of(client_config, layout, group_id, settled=False)
    removed = [(event.at_ms, event.reason) for event in history if event.type is EntryType.MEMBER_REMOVED]
    assert removed == [], [(event.at_ms, event.type, event.reason) for event in history]


@contextmanager
def asleep_between_plan_and_commit(site: Site, machine: Machine) -> Iterator[None]:
    """Stop all processes of a machine while a batch is planned and not committed."""
    try:
        stop_within_a_batch(jvm_of(machine.process.pid), site.checkpoint, machine.signal)
        machine.signal(signal.SIGSTOP)  # the Python workers, too
        yield
    finally:
        machine.signal(signal.SIGCONT)


def check_ends(loser: Machine, owner: Machine) -> None:
    """Check that the one that wakes up names its successor and ends."""
    code, _ = loser.process.end()
    assert code == NOT_OWNER, loser.process.stderr
    said = loser.process.stderr.splitlines()[-1]
    assert said.startswith(f"Error: the topics have another owner: process {owner.process.pid} on ")


def check_lost_requests_end_it(
    broker: EmbeddedBroker, machine: Machine, member: Member, layout: TopicLayout
) -> None:
    """Check that a request is deleted that was answered and that no batch has handled. The report names its
    group.
    """
    topic = layout.requests_topic
    with hold(jvm_of(machine.process.pid)), closing(kafka_clients.admin(broker.client_config)) as admin:
        assert member.heartbeat(1) is ErrorCode.NONE
        ends = {TopicPartition(topic, partition): -1 for partition in range(layout.request_partitions)}
        admin.delete_records(ends, timeout_ms=30_000)
    code, _ = machine.process.end(START_TIMEOUT_S)
    assert code == 1, machine.process.stderr
    assert "were deleted before they were handled" in machine.process.stderr.splitlines()[-1]
    report = msgspec.json.decode((machine.data / "coordinator" / FILE).read_bytes(), type=LostRequests)
    assert member.group_id in {group.group_id for group in report.groups}


def check_answers(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    """Every request has one answer, however often it was written."""
    answers: dict[str, set[bytes]] = defaultdict(set)
    for record in read_answers(broker.client_config, layout):
        for encoded in unpack(record.value):
            answers[msgspec.json.decode(encoded)["request"]].add(bytes(encoded))
    different = {request: found for request, found in answers.items() if len(found) > 1}
    assert not different
    assert len(answers) > GROUPS / BEAT_S
