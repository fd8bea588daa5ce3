"""What happens to `run` and to clients that stay attached when the disk is full, or the broker dies.

One `run` with its own broker lives through all of it, and ends with the broker that does not stay up.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

from cli.demo.load import Load, consumed
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ServicePhase, ServiceStatus
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
        """Return the generation of a group that is Stable by its latest view, None if it is not."""
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

    def catch_up(self) -> int:
        """Wait until all is consumed that was produced before this call. Return how many of these records
        were consumed more than once. One that the producer gave up may be there or not: it does not count.
        """
        produced = set(self.load.acknowledged)
        wait_until(lambda: produced <= self.consumed().keys(), "all records", CATCH_UP_TIMEOUT_S)
        counts = self.consumed()
        return sum(1 for record in produced if counts[record] > 1)


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
ARGUMENTS = ("--json", "--no-page", "-c", "group.initial.rebalance.delay.ms=0")


@dataclass(frozen=True)
class Service:
    """A `run` that is ready. `data` is its folder, also after it: it may be in a mount of its own."""

    running: Run
    ready: dict[str, Any]
    data: Path

    @property
    def status(self) -> ServiceStatus | None:
        """None where there is no file, and while it is written, which on a full disk is done in place."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return read_status(self.data / "coordinator" / "status.json")
        return None

    def wait_for_metric(self, line: str) -> None:
        """Wait until the metrics have this line. A busy machine may let a request for them time out."""

        def has_line() -> bool:
            with suppress(OSError), urlopen(self.ready["metrics"], timeout=10) as response:
                return line.encode() in response.read().splitlines()
            return False

        wait_until(has_line, line, START_TIMEOUT_S)

    def wait_until_well(self) -> None:
        def is_well() -> bool:
            status = self.status
            return status is not None and status.phase is ServicePhase.READY and status.alarm is None

        wait_until(is_well, "a status that is ready without an alarm", START_TIMEOUT_S)

    def pid_of(self, part: str) -> int:
        """Return the process under it with this in its command line, and not its parent's."""
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


# A file system of its own, in a namespace where every user may mount one.
OWN_DISK = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
OWN_DISK_SCRIPT = 'mount -t tmpfs -o size=160m tmpfs "$0" && exec "$@"'


def fill(ballast: Path) -> None:
    """Fill the file system of a file to the last byte."""
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(bytes(65_536)):
            pass


@pytest.mark.timeout(900)
def test_clients_recover_from_full_disks_and_a_dead_broker(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    within = (*OWN_DISK, OWN_DISK_SCRIPT, str(disk))
    has_own_disk = subprocess.run([*within, "true"], check=False).returncode == 0
    with ExitStack() as stack:
        command = run(tmp_path, *ARGUMENTS, "--data-dir", str(disk), within=within if has_own_disk else ())
        running = stack.enter_context(command)
        ready = running.ready()
        data = os.open(f"/proc/{running.pid}/root{disk}", os.O_RDONLY)
        stack.callback(os.close, data)
        service = Service(running, ready, Path(f"/proc/self/fd/{data}"))
        with attached(ready["gateway"], ready["broker"], tmp_path) as clients:
            no_file_of_the_coordinator_grows(service, clients)
            the_broker_dies(service, clients)
            if has_own_disk:
                the_disk_is_full(service, clients)
            assert service.removed(clients) == []
        no_broker_stays(service)
    if not has_own_disk:
        pytest.skip("this machine lets users mount no file system (`unshare --user --mount`)")


def no_file_of_the_coordinator_grows(service: Service, clients: Attached) -> None:
    """It is an alarm, and clients go on when there is space."""
    with no_file_grows(service.running.pid, service.pid_of(SPARK)):
        service.wait_for_metric("group_coordinator_alarm 1.0")
        service.wait_for_metric('group_coordinator_phase{phase="restarting"} 1.0')
        assert service.status is None, "a status that says `ready` is not left behind"
        clients.wait_for_more()
    service.wait_until_well()
    clients.wait_for_more()
    assert clients.catch_up() == 0


def the_broker_dies(service: Service, clients: Attached) -> None:
    """Another one is started on its data and its port."""
    os.kill(service.pid_of(BROKER), signal.SIGKILL)
    wait_until(
        lambda: any(BROKER in command_of(pid) for pid in all_children(service.running.pid)),
        "another broker",
        START_TIMEOUT_S,
    )
    clients.wait_for_more()
    service.wait_until_well()
    clients.catch_up()
    wait_until(lambda: not has_zombie(service.running.pid), "the end of the dead broker, which is reaped")


def the_disk_is_full(service: Service, clients: Attached) -> None:
    """The broker dies of it, and cannot be started while it lasts."""
    ballast = service.data / "ballast"

    def has_alarm(part: str) -> bool:
        """Return True if the status, with a phase that fits, has an alarm with this in it."""
        fill(ballast)  # Spark and the broker delete files of their own meanwhile
        status = service.status
        if status is None or status.phase is not ServicePhase.RESTARTING:
            return False
        return part in (status.alarm or "")

    try:
        wait_until(lambda: has_alarm("the disk is full: "), "the alarm", START_TIMEOUT_S)
        waits = "the embedded broker waits for space"
        wait_until(lambda: waits in service.running.stderr, "its log line", START_TIMEOUT_S)
        wait_until(lambda: has_alarm("No space left on device"), "the alarm with its reason", START_TIMEOUT_S)
    finally:
        ballast.unlink()
    service.wait_until_well()
    clients.wait_for_more()
    clients.catch_up()


def no_broker_stays(service: Service) -> None:
    """The command ends."""
    running = service.running
    (service.data / "broker" / "log" / "meta.properties").write_text("damaged")
    with descendants(running.pid) as left:
        os.kill(service.pid_of(BROKER), signal.SIGKILL)
        code = running.end(GIVE_UP_TIMEOUT_S)
        wait_until(lambda: left.running() == [], "the end of its processes")
    *_, last = running.stderr.splitlines()
    assert code == (1, ""), last
    assert last.startswith("Error: the embedded broker was started again 5 times and does not stay up: ")
    assert last.endswith(f" (its log is {service.ready['data_dir']}/broker/broker.log)")
    status = service.status
    assert status is not None
    assert (status.phase, status.alarm) == (ServicePhase.STOPPED, None)
    assert f"Error: {status.reason}" == last


def has_zombie(parent: int) -> bool:
    """Return True if a process under this one has ended and is not reaped. Others may end meanwhile."""
    for pid in child_pids(parent):
        with suppress(OSError):
            if b"Z (zombie)" in Path(f"/proc/{pid}/status").read_bytes():
                return True
    return False
