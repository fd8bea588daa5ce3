"""The systems that are measured, each in processes of its own: broker, coordinator, gateway and floor.

While one system is measured, the processes of the others are paused (SIGSTOP). So each system has the machine
to itself, although the turns of all alternate within one run. The broker always runs, because all need it.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kafka import TopicPartition
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError

from bench.load.requests import PARTITIONS, TOPIC
from bench.load.topics import TopicsClient
from cli.processes.child import Child, Children, family
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig

START_TIMEOUT_S = 240.0
PREFIX = "bench"
COORDINATOR, GATEWAY, SECOND_GATEWAY, FLOOR = "coordinator", "gateway", "second-gateway", "floor"
ON_TOPICS, BEHIND_GATEWAY, KAFKAS_OWN = (COORDINATOR,), (COORDINATOR, GATEWAY), ()
"""The systems that handle a request on the topics, through the gateway, and to the broker's coordinator."""

# The optimizing compiler, as a broker in production has it.
_BROKER_JAVA = ("-XX:TieredStopAtLevel=4", "-Xmx1g")
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_INITIAL_DELAY = "group.initial.rebalance.delay.ms"


@dataclass(frozen=True)
class RunningSystems:
    """The addresses of the systems, and their processes."""

    servers: str
    gateway: str
    folder: Path  # the coordinator's data folder
    broker_pid: int
    packed: bool  # the client on the topics writes packs, several requests in one record
    pids: dict[str, int] = field(default_factory=dict)  # by name, without the broker, which is never paused

    @property
    def kafkas(self) -> Address:
        """The address of the broker's own coordinator."""
        return Address.parse(self.servers)

    @property
    def ours(self) -> Address:
        """The address of this project's coordinator: the gateway's."""
        return Address.parse(self.gateway)

    @contextmanager
    def run_only(self, names: Collection[str]) -> Iterator[None]:
        """Pause all systems except these until the block ends.

        A coordinator that was paused starts another replica, which takes seconds. This method waits for the
        replica's first answers before the block begins.
        """
        others = [pid for name, pid in self.pids.items() if name not in names]
        for pid in others:
            _signal(pid, signal.SIGSTOP)
        try:
            if COORDINATOR in names:
                with TopicsClient(self.servers, PREFIX, packed=False) as client:
                    client.wait_for_replica()
            yield
        finally:
            for pid in others:
                _signal(pid, signal.SIGCONT)

    def cpu_s(self, system: str) -> float:
        """Return the processor time of a system so far, in seconds."""
        return cpu_s(self.pids[system])

    def memory_bytes(self, system: str) -> int:
        """Return the resident memory of a system's processes. A page that n processes share counts 1/n."""
        total_kib = 0
        for pid in family(self.pids[system]):
            with suppress(OSError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total_kib += int(rollup.partition("\nPss:")[2].split()[0])
        return total_kib * 1024

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint of the coordinator."""
        return self.folder / "coordinator" / "spark"

    def state_bytes(self) -> int:
        """Return the size of the state's files in the checkpoint."""
        return sum(size_of(path) for path in (self.checkpoint / "state").rglob("*"))

    def last_batch(self) -> int:
        """Return the number of the last committed batch."""
        return max(
            (int(p.name) for p in (self.checkpoint / "commits").iterdir() if p.name.isdigit()), default=-1
        )

    def written(self, first: int, last: int) -> tuple[int, int]:
        """Return the bytes of state that the batches from `first` to `last` wrote, and the number of batches.

        Batches whose files Spark has removed meanwhile count in neither.
        """
        batches, size = set(), 0
        for path in (self.checkpoint / "state").rglob("*"):
            # The state store writes the version after batch n to <n + 1>.changelog, a snapshot to .zip.
            version = path.name.split(".")[0].split("_")[0]
            if (
                version.isdigit()
                and path.suffix in (".changelog", ".zip")
                and first < int(version) <= last + 1
            ):
                batches.add(int(version))
                size += size_of(path)
        return size, len(batches)

    def batch_ms(self, first: int) -> list[float]:
        """Return the durations of the batches after `first`, from the plan in Spark's log to the commit."""
        durations = []
        for commit in (self.checkpoint / "commits").iterdir():
            if commit.name.isdigit() and int(commit.name) > first:
                with suppress(OSError):
                    began_s = (self.checkpoint / "offsets" / commit.name).stat().st_mtime
                    durations.append((commit.stat().st_mtime - began_s) * 1e3)
        return durations


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its descendants so far, in seconds."""
    return sum(own_cpu_s(member) for member in family(pid))


def own_cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, including its children that have ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(ticks) for ticks in fields[11:15]) / _CLOCK_TICKS_PER_S
    return 0.0


def cores_of(pid: int, seconds: float) -> float:
    """Return the cores that a process and its descendants use for `seconds`."""
    before_s = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / seconds


class SystemProcesses:
    """The systems as children of this process. The constructor starts them."""

    def __init__(self, folder: Path, initial_delay_ms: int, *, packed: bool) -> None:
        self._folder = folder
        self._delay = f"{_INITIAL_DELAY}={initial_delay_ms}"
        self._starts = 0
        self._pids: dict[str, int] = {}
        self._stack = ExitStack()
        folder.mkdir(parents=True)
        broker = EmbeddedBroker(
            folder / "broker",
            overrides={_INITIAL_DELAY: str(initial_delay_ms)},
            java_options=_BROKER_JAVA,
        )
        try:
            self._stack.enter_context(broker)
            self.servers = broker.bootstrap_servers
            prepare(self.servers)
            self._children = self._stack.enter_context(Children(folder))
            self.start_coordinator()
            address = self._start_gateway(self._children, GATEWAY, reply_partition=1)
            assert broker.pid is not None
            self.running = RunningSystems(
                self.servers, address, folder / "data", broker.pid, packed, self._pids
            )
        except BaseException:
            self._stack.close()
            raise

    def start_coordinator(self) -> None:
        """Start the coordinator on its folder, and wait until it is ready."""
        self._starts += 1  # each start has its own log, because `_ready` waits for a line in it
        self._coordinator = self._children.start(
            f"{COORDINATOR}-{self._starts}", "run", "--bootstrap-servers", self.servers, "--prefix", PREFIX,
            "--data-dir", str(self._folder / "data"), "--no-gateway", "-c", self._delay, "--json",
        )  # fmt: skip
        _ready(self._coordinator)
        self._pids[COORDINATOR] = self._coordinator.pid

    def stop_coordinator(self) -> None:
        """Stop the coordinator gracefully."""
        self._coordinator.stop()

    def _start_gateway(self, children: Children, name: str, reply_partition: int) -> str:
        """Start a gateway, and return its address when it is ready."""
        gateway = children.start(
            name, "gateway", "--bootstrap-servers", self.servers, "--prefix", PREFIX,
            "--listen", "127.0.0.1:0", "--reply-partition", str(reply_partition), "--json",
        )  # fmt: skip
        address: str = json.loads(_ready(gateway))["gateway"]
        self._pids[name] = gateway.pid
        return address

    @contextmanager
    def second_gateway(self) -> Iterator[Address]:
        """Run another gateway beside the other systems until the block ends, and yield its address."""
        with Children(self._folder) as children:
            try:
                yield Address.parse(self._start_gateway(children, SECOND_GATEWAY, reply_partition=2))
            finally:
                self._pids.pop(SECOND_GATEWAY, None)

    @contextmanager
    def floor(self) -> Iterator[RunningSystems]:
        """Run the floor (a query that only copies records) beside the other systems until the block ends."""
        with Children(self._folder) as children:
            arguments = ["-m", "bench.floor", self.servers, FLOOR, str(self._folder / FLOOR)]
            child = children.start(FLOOR, *arguments, program=Path(sys.executable))
            _ready(child)
            self._pids[FLOOR] = child.pid
            try:
                yield self.running
            finally:
                del self._pids[FLOOR]

    def close(self) -> None:
        """End all systems."""
        self._stack.close()


def _ready(child: Child) -> str:
    """Wait for the line of JSON that a command prints when it is ready, and return the line."""
    return child.wait_for_line(lambda line: line.startswith(('{"broker"', '{"gateway"')), START_TIMEOUT_S)


def prepare(servers: str) -> None:
    """Create the topic of the commits if it is missing, and start the broker's own coordinator.

    The broker starts its coordinator when the first client asks for one.
    """
    with closing(kafka_clients.admin(ClientConfig(servers))) as admin, suppress(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])
    with closing(kafka_clients.group_consumer(ClientConfig(servers), "wake")) as consumer:
        consumer.committed(TopicPartition(TOPIC, 0))


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process and its descendants."""
    for member in family(pid):
        with suppress(ProcessLookupError):
            os.kill(member, number)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it was removed meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
