"""The systems that are measured, each in processes of its own: broker, coordinator, gateway and floor.

While one system is measured, the processes of the others stand still (SIGSTOP), so the machine is its alone,
and yet the turns of all can alternate within one run. The broker always runs, because all need it.
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
from cli.processes.child import Child, Children, family
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig

START_TIMEOUT_S = 240.0
PREFIX = "bench"
COORDINATOR, GATEWAY, FLOOR = "coordinator", "gateway", "floor"
ON_TOPICS, BEHIND_GATEWAY, KAFKAS_OWN = (COORDINATOR,), (COORDINATOR, GATEWAY), ()
"""The systems that work for a request on the topics, through the gateway, and to the broker's coordinator."""

# The optimizing compiler, as a broker in production has it.
_BROKER_JAVA = ("-XX:TieredStopAtLevel=4", "-Xmx1g")
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_INITIAL_DELAY = "group.initial.rebalance.delay.ms"


@dataclass(frozen=True)
class RunningSystems:
    """The addresses of the systems, and their processes. `folder` is that of the coordinator's data.

    `packed` is whether the client on the topics writes packs.
    """

    servers: str
    gateway: str
    folder: Path
    broker_pid: int
    packed: bool
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def kafkas(self) -> Address:
        return Address.parse(self.servers)

    @property
    def ours(self) -> Address:
        return Address.parse(self.gateway)

    @contextmanager
    def alone(self, systems: Collection[str]) -> Iterator[None]:
        """Let only these systems run, then all again."""
        others = [pid for name, pid in self.pids.items() if name not in systems]
        for pid in others:
            _signal(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                _signal(pid, signal.SIGCONT)

    def cpu_s(self, system: str) -> float:
        """Return the processor time of a system so far, in seconds."""
        return cpu_s(self.pids[system])

    def memory_bytes(self, system: str) -> int:
        """Return the resident memory of a system's processes. A page that n of them share counts 1/n for
        each.
        """
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
        """Return the bytes of state that the batches from `first` to `last` wrote, and how many batches they
        are of.

        Spark removes the files of batches that are long past, so both may be of fewer batches.
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
        """Return the durations of the batches after `first`, from the begin as Spark notes it to
        the commit.
        """
        durations = []
        for commit in (self.checkpoint / "commits").iterdir():
            if commit.name.isdigit() and int(commit.name) > first:
                with suppress(OSError):
                    began_s = (self.checkpoint / "offsets" / commit.name).stat().st_mtime
                    durations.append((commit.stat().st_mtime - began_s) * 1e3)
        return durations


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its descendants so far, in seconds."""
    total = 0
    for one in family(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(ticks) for ticks in fields[11:15])  # with the children that have ended
    return total / _CLOCK_TICKS_PER_S


def cores_of(pid: int, seconds: float) -> float:
    """Return the cores that a process and its descendants use for `seconds`."""
    before_s = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / seconds


class Running:
    """The systems as children of this process."""

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
            gateway = self._children.start(
                GATEWAY, "gateway", "--bootstrap-servers", self.servers, "--prefix", PREFIX,
                "--listen", "127.0.0.1:0", "--reply-partition", "1", "--json",
            )  # fmt: skip
            address = json.loads(_ready(gateway))["gateway"]
            self._pids[GATEWAY] = gateway.pid
            assert broker.pid is not None
            self.world = RunningSystems(
                self.servers, address, folder / "data", broker.pid, packed, self._pids
            )
        except BaseException:
            self._stack.close()
            raise

    def start_coordinator(self) -> None:
        """Start the coordinator on its folder, and wait until it commits batches."""
        self._starts += 1  # a log of its own for each, because the end of the wait is a line in it
        self._coordinator = self._children.start(
            f"{COORDINATOR}-{self._starts}", "run", "--bootstrap-servers", self.servers, "--prefix", PREFIX,
            "--data-dir", str(self._folder / "data"), "--no-gateway", "-c", self._delay, "--json",
        )  # fmt: skip
        _ready(self._coordinator)
        self._pids[COORDINATOR] = self._coordinator.pid

    def stop_coordinator(self) -> None:
        """Stop the coordinator in order."""
        self._coordinator.stop()

    @contextmanager
    def floor(self) -> Iterator[RunningSystems]:
        """Run the floor beside the other systems."""
        with Children(self._folder) as children:
            arguments = ["-m", "bench.floor", self.servers, FLOOR, str(self._folder / FLOOR)]
            child = children.start(FLOOR, *arguments, program=Path(sys.executable))
            _ready(child)
            self._pids[FLOOR] = child.pid
            try:
                yield self.world
            finally:
                del self._pids[FLOOR]

    def close(self) -> None:
        """End all systems."""
        self._stack.close()


def _ready(child: Child) -> str:
    """Wait for the line of JSON with which a command says that it is ready."""
    return child.wait_for_line(lambda line: line.startswith(('{"broker"', '{"gateway"')), START_TIMEOUT_S)


def prepare(servers: str) -> None:
    """Make the topic of the commits if it is missing, and wake the broker's own coordinator.

    It starts when the first client looks for it.
    """
    with closing(kafka_clients.admin(ClientConfig(servers))) as admin, suppress(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])
    with closing(kafka_clients.group_consumer(ClientConfig(servers), "wake")) as consumer:
        consumer.committed(TopicPartition(TOPIC, 0))


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process and its descendants."""
    for one in family(pid):
        with suppress(ProcessLookupError):
            os.kill(one, number)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it was removed meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
