"""What happens to `run` and to clients that stay attached when the disk is full, or the broker dies.

All but the first share one `run` with its own broker, which the last one ends.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from cli.demo.load import Load, consumed
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.states import GroupState
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service.status import ServicePhase, ServiceStatus
from streaming.service.status import read_status
from tests.e2e.harness import START_TIMEOUT_S, child_pids, command_of, history_of, snapshots_of, wait_until
from tests.harness.run_command import BROKER, SPARK, Run, descendants, no_file_grows, run

PARTITIONS = 4
CONSUMERS = 2
RECORDS_PER_S = 20.0
CATCH_UP_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Attached:
    """Processes of kafka-python's consumer in one group, and a producer of numbered records."""

    group_id: str
    broker: ClientConfig
    load: Load
    files: list[Path]
    consumers: list[subprocess.Popen[bytes]]

    def consumed(self) -> Counter[str]:
        """Return the number of times that each record was consumed."""
        return consumed(self.files)

    def wait_until_settled(self) -> None:
        """Wait until each consumer has consumed records in the group's present generation.

        Records alone do not show it. A consumer of kafka-python joins again if its round ended between two of
        its polls, and it may have records of the generation before.
        """

        def has_settled() -> bool:
            generation = self._stable_generation()
            if generation is None:
                return False
            self.wait_for_more()
            return self._stable_generation() == generation

        wait_until(has_settled, "records at each consumer in one generation", CATCH_UP_TIMEOUT_S)

    def _stable_generation(self) -> int | None:
        """The generation of a group that is Stable by its latest view, None if it is not."""
        views = snapshots_of(self.broker, TopicLayout.named(), self.group_id, settled=False)
        return views[-1].generation if views and views[-1].state == GroupState.STABLE else None

    def wait_for_more(self) -> None:
        """Wait until each consumer has consumed some of the records that are produced from now on."""
        before = self.sizes()

        def came() -> bool:
            for consumer, file in zip(self.consumers, self.files, strict=True):
                assert consumer.poll() is None, file.with_suffix(".log").read_text()[-2_000:]
            return all(now > then for now, then in zip(self.sizes(), before, strict=True))

        wait_until(came, "records at each consumer", CATCH_UP_TIMEOUT_S)

    def sizes(self) -> list[int]:
        """Return the size in bytes of each consumer's file of consumed records."""
        return [file.stat().st_size if file.exists() else 0 for file in self.files]

    def finish(self) -> tuple[int, int, int]:
        """Stop the load and wait for the rest: records produced, consumed, consumed more than once.

        A record that the producer gave up may be there or not: it does not count.
        """
        self.load.stop()
        produced = self.load.acknowledged
        wait_until(lambda: produced <= self.consumed().keys(), "all records", CATCH_UP_TIMEOUT_S)
        counts = self.consumed()
        again = sum(1 for record in produced if counts[record] > 1)
        return len(produced), len(produced & counts.keys()), again


@contextmanager
def attached(gateway: str, broker: str, folder: Path) -> Iterator[Attached]:
    """Consumers that share a topic of their own through the gateway of a coordinator with the default topics.
    Each has partitions.
    """
    name = f"attached-{uuid.uuid4()}"
    load = Load(ClientConfig(broker), name, PARTITIONS, RECORDS_PER_S)
    files = [folder / f"{name}-{i}.jsonl" for i in range(CONSUMERS)]
    consumers = []
    load.start()
    try:
        for i, file in enumerate(files):
            module = [sys.executable, "-W", "ignore", "-m", "cli.demo.consumer"]
            command = [*module, gateway, name, name, f"consumer-{i}", str(file)]
            with (folder / f"{name}-{i}.log").open("wb") as log:
                consumers.append(subprocess.Popen(command, stderr=log, stdout=log, env=os.environ))
        running = Attached(name, ClientConfig(broker), load, files, consumers)
        running.wait_until_settled()
        yield running
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.wait()
        load.stop()


pytestmark = pytest.mark.e2e

# All attempts, then the end of Spark's query, which waits for Kafka's clients to give up a call: a minute.
GIVE_UP_TIMEOUT_S = 180.0
ARGUMENTS = ("--json", "-c", "group.initial.rebalance.delay.ms=0")


@dataclass(frozen=True)
class Service:
    """A `run` that is ready. `root` leads to its files, which may be in a mount of its own."""

    running: Run
    ready: dict[str, Any]
    root: Path

    @property
    def status_path(self) -> Path:
        return self.root / str(self.ready["data_dir"]).lstrip("/") / "coordinator" / "status.json"

    @property
    def status(self) -> ServiceStatus | None:
        """None where there is no file."""
        try:
            return read_status(self.status_path)
        except FileNotFoundError:
            return None

    def has_alarm(self, part: str) -> bool:
        """Whether the status, with a phase that fits, has an alarm with this in it."""
        status = self.status
        return status is not None and status.phase is ServicePhase.RESTARTING and part in (status.alarm or "")

    def metric(self, line: str) -> bool:
        """Whether the metrics have this line."""
        with urlopen(self.ready["metrics"], timeout=10) as response:
            return line.encode() in response.read().splitlines()

    def wait_until_well(self) -> None:
        def is_well() -> bool:
            status = self.status
            return status is not None and status.phase is ServicePhase.READY and status.alarm is None

        wait_until(is_well, "a status that is ready without an alarm", START_TIMEOUT_S)

    def pid_of(self, part: str) -> int:
        """The process under it with this in its command line, and not its parent's."""
        found = [pid for pid in all_children(self.running.pid) if part in command_of(pid)]
        return found[-1]

    def removed(self, clients: Attached) -> list[str]:
        """Why members of the clients' group, none of which leaves, were removed."""
        history = history_of(ClientConfig(self.ready["broker"]), TopicLayout.named(), clients.group_id)
        return [entry.reason for entry in history if entry.type is EntryType.MEMBER_REMOVED]


def all_children(pid: int) -> Iterator[int]:
    for child in child_pids(pid):
        yield child
        yield from all_children(child)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    with run(folder, *ARGUMENTS, "--data-dir", str(folder / "data")) as running:
        yield Service(running, running.ready(), Path("/"))


# A file system of its own, in a namespace where every user may mount one.
OWN_DISK = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
OWN_DISK_SCRIPT = 'mount -t tmpfs -o size=96m tmpfs "$0" && exec "$@"'


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the file system of a folder to the last byte."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(65_536)):
            pass
    try:
        yield
    finally:
        ballast.unlink()


@pytest.mark.timeout(900)
def test_coordinator_and_broker_go_on_when_their_disk_was_full(tmp_path: Path) -> None:
    """The broker dies of it, and cannot be started while it lasts."""
    disk = tmp_path / "disk"
    disk.mkdir()
    within = (*OWN_DISK, OWN_DISK_SCRIPT, str(disk))
    if subprocess.run([*within, "true"], check=False).returncode != 0:
        pytest.skip("this machine lets users mount no file system (`unshare --user --mount`)")
    with run(tmp_path, *ARGUMENTS, "--data-dir", str(disk), within=within) as running:
        service = Service(running, running.ready(), Path(f"/proc/{running.pid}/root"))
        with attached(service.ready["gateway"], service.ready["broker"], tmp_path) as clients:
            with full(service.root / disk.relative_to("/")):
                wait_until(lambda: service.has_alarm("the disk is full: "), "the alarm")
                wait_until(lambda: "the embedded broker waits for space" in running.stderr, "its log line")
                wait_until(lambda: service.has_alarm("No space left on device"), "the alarm with its reason")
            service.wait_until_well()
            clients.wait_for_more()
            produced, consumed, _ = clients.finish()
            assert consumed == produced
            assert service.removed(clients) == []


@pytest.mark.timeout(600)
def test_a_full_disk_is_an_alarm_and_clients_go_on_when_there_is_space(
    service: Service, tmp_path: Path
) -> None:
    service.wait_until_well()
    with attached(service.ready["gateway"], service.ready["broker"], tmp_path) as clients:
        with no_file_grows(service.running.pid, service.pid_of(SPARK)):
            wait_until(lambda: service.metric("group_coordinator_alarm 1.0"), "the alarm")
            wait_until(lambda: service.metric('group_coordinator_phase{phase="restarting"} 1.0'), "the phase")
            assert service.status is None, "a status that says `ready` is not left behind"
            clients.wait_for_more()
        service.wait_until_well()
        clients.wait_for_more()
        produced, consumed, again = clients.finish()
        assert (consumed, again) == (produced, 0)
        assert service.removed(clients) == []


@pytest.mark.timeout(600)
def test_a_dead_broker_is_started_again_and_clients_go_on(service: Service, tmp_path: Path) -> None:
    service.wait_until_well()
    with attached(service.ready["gateway"], service.ready["broker"], tmp_path) as clients:
        dead = service.pid_of(BROKER)
        os.kill(dead, signal.SIGKILL)
        wait_until(
            lambda: any(BROKER in command_of(pid) for pid in all_children(service.running.pid)),
            "another broker",
        )
        clients.wait_for_more()
        service.wait_until_well()
        produced, consumed, _ = clients.finish()
        assert consumed == produced
        assert service.removed(clients) == []
    wait_until(lambda: not has_zombie(service.running.pid), "the end of the dead broker, which is reaped")


def test_a_broker_that_does_not_stay_up_ends_the_command(service: Service) -> None:
    service.wait_until_well()
    running, data = service.running, Path(service.ready["data_dir"])
    (data / "broker" / "log" / "meta.properties").write_text("damaged")
    with descendants(running.pid) as left:
        os.kill(service.pid_of(BROKER), signal.SIGKILL)
        assert running.end(GIVE_UP_TIMEOUT_S) == (1, "")
        wait_until(lambda: left.running() == [], "the end of its processes")
    *_, last = running.stderr.splitlines()
    assert last.startswith("Error: the embedded broker was started again 5 times and does not stay up: ")
    status = service.status
    assert status is not None
    assert (status.phase, status.alarm) == (ServicePhase.STOPPED, None)
    assert f"Error: {status.reason}" == last


def has_zombie(parent: int) -> bool:
    """Whether a process under this one has ended and is not reaped. Others may end meanwhile."""
    for pid in child_pids(parent):
        with suppress(OSError):
            if b"Z (zombie)" in Path(f"/proc/{pid}/status").read_bytes():
                return True
    return False
