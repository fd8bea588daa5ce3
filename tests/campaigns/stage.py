"""The stage of a campaign: three brokers, coordinators, gateways, and the load."""

import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Self

import msgspec

from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.service import ServicePhase, ServiceStatus
from streaming.service.status import read_status
from tests.campaigns.keeper import FINAL_CODES, LOST_ITS_TOPICS, Keeper
from tests.campaigns.results import Result, Struck
from tests.e2e.harness import QUICK_JAVA, child_pids, command_of, wait_until
from tests.harness.broker_cluster import ONE_BROKER, BrokerCluster
from tests.harness.ports import gateway_port
from tests.harness.secured_broker import COORDINATOR, GATEWAY, write_properties

ROOT = Path(__file__).parents[2]
# In the command line of a replica.
REPLICA = "streaming.replica"
PREFIX = "campaign"
START_TIMEOUT_S = 180.0
CONSUMER_SESSION_MS = 10_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.min.session.timeout.ms": str(CONSUMER_SESSION_MS),
    "group.consumer.session.timeout.ms": str(CONSUMER_SESSION_MS),
}
REPLAY_TIMEOUT_S = 900.0
REPLAYS, IDENTICAL = "replays", "identical replays"
Outage = tuple[int, int]
"""Its begin and its end, in milliseconds."""


class Stage(ABC):
    """Brokers, coordinators and gateways. A campaign adds its load, and judges what came of it.

    It is started by `start`, and ended by `close` or with this process.
    """

    delay_s = 1.0
    """Up to so long after the progress of the load the next fault strikes: anywhere in a batch."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        step: str = "steady",
        with_standby: bool = False,
        brokers: BrokerCluster | None = None,
    ) -> None:
        """`step` is one of `planted.STEPS`. With `with_standby` there are two coordinators with one
        checkpoint, one of which waits.
        """
        self.folder, self.seed, self.step = folder, seed, step
        self.machines: list[Keeper] = []
        """The coordinator, and the standby if there is one. They take turns."""
        self.keepers: list[Keeper] = []
        """All that is started again when it has ended."""
        self.shared = folder / "shared" if with_standby else None
        self.brokers = brokers or BrokerCluster(folder / "brokers")
        self.gateway: Keeper
        self.data = folder / "coordinator"
        self.outages: set[Outage] = set()
        """All that the coordinator has written to its folder."""
        self._stack = ExitStack()
        self._skipped: list[str] = []

    @abstractmethod
    def start_load(self, stack: ExitStack) -> None:
        """Start all but the brokers. `stack` stops it."""

    @property
    @abstractmethod
    def load_so_far(self) -> str:
        """A few words on the load, for the log."""

    def now(self) -> int:
        """Return the time by the clock of the verdicts."""
        return 0

    @abstractmethod
    def begin(self, struck: Struck, random: Random) -> None:
        """Do what comes before a fault, and add to its note."""

    def end(self, struck: Struck) -> None:  # noqa: B027 - not every campaign measures then
        """Complete the note of a fault after which the load has gone on."""

    @abstractmethod
    def wait_for_progress(self) -> float:
        """Wait until all of the load goes on. Return the seconds. Raise AssertionError if it does not."""

    @abstractmethod
    def judge(self, result: Result) -> None:
        """Stop the load, and count what is wrong."""

    def start(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.brokers)
            self.start_load(stack)
            self._stack = stack.pop_all()
        return self

    def describe(self) -> str:
        """Return what is known of the coordinator and of the load, to find out what went wrong."""
        ends = {keeper.name: keeper.ends[-2:] for keeper in self.keepers}
        return f"status {self.status() if self.machines else None}, ends {ends}"

    def close(self) -> None:
        self._stack.close()

    def replay(self, result: Result) -> None:
        """Judge a second time: replay the log by the core itself, offline."""
        arguments = ["replay", "--all", "--from-topic", "--data-dir", str(self.data)]
        if self.shared is not None:
            arguments += ["--checkpoint", str(self.shared)]
        done = subprocess.run(
            command_line([*arguments, "--bootstrap-servers", self.servers]),
            capture_output=True,
            text=True,
            timeout=REPLAY_TIMEOUT_S,
            env=os.environ | environment(),
            check=False,
        )
        result.numbers |= {REPLAYS: 1, IDENTICAL: int(done.returncode == 0)}
        if done.returncode != 0:
            result.sentences.append((done.stdout + done.stderr)[-20_000:])

    def note_outages(self) -> None:
        """Keep the outages of the newest owner's record, which has the last 100."""
        for path in sorted(self.checkpoint.glob("owners/*.json"), key=lambda path: -int(path.stem)):
            with suppress(FileNotFoundError, json.JSONDecodeError):  # written now, or damaged by a fault
                known = [one["outage"] for one in json.loads(path.read_text())["outages"]]
                self.outages = in_force(self.outages, {(it["after_ms"], it["until_ms"]) for it in known})
                return

    def start_coordinators(self, stack: ExitStack) -> None:
        """Start the coordinator, and the standby if there is one. `stack` stops them."""
        is_pair = self.shared is not None
        # One of a pair that has lost the topics waits for them again. docs/running.md, "A standby".
        final_codes = {*FINAL_CODES} - {LOST_ITS_TOPICS} if is_pair else FINAL_CODES
        for name in ("coordinator", "standby") if is_pair else ("coordinator",):
            command = self.command(data=self.folder / name)
            machine = Keeper(name, self.folder, command, environment=environment(), final_codes=final_codes)
            self.machines.append(machine)
            self.keepers.append(machine)
            stack.callback(machine.stop)
            machine.start()
        wait_until(lambda: self.has_said_ready(self.coordinator), "the coordinator", START_TIMEOUT_S)

    def gateway_address(self) -> Address:
        """Return an address for a gateway. Its port and those of its listeners for all brokers are free."""
        return Address("127.0.0.1", gateway_port(above=1 + max(self.brokers.nodes)))

    def start_gateway(
        self,
        stack: ExitStack,
        name: str,
        address: Address,
        *more: str,
        command: str = "gateway",
        final_codes: Container[int] = FINAL_CODES,
    ) -> Keeper:
        """Start a gateway, which `stack` stops, and wait until it is ready."""
        arguments = [command, "--json", *self._reach(GATEWAY), "--listen", str(address), *more]
        gateway = Keeper(
            name, self.folder, command_line(arguments), environment=environment(), final_codes=final_codes
        )
        self.keepers.append(gateway)
        stack.callback(gateway.stop)
        gateway.start()
        self.wait_until_ready(gateway)
        return gateway

    def wait_until_ready(self, gateway: Keeper) -> None:
        """Wait until a gateway that was started listens."""
        wait_until(lambda: self.has_said_ready(gateway), f"the {gateway.name}", START_TIMEOUT_S)

    @property
    def servers(self) -> str:
        return self.brokers.bootstrap_servers

    @property
    def client_config(self) -> ClientConfig:
        return self.brokers.client_config

    @property
    def checkpoint(self) -> Path:
        return self.shared or self.data / "coordinator"

    @property
    def coordinator(self) -> Keeper:
        """The one that works, the first one if none does."""
        ready = (machine for machine in self.machines if self.phase(machine) is ServicePhase.READY)
        return next(ready, self.machines[0])

    def phase(self, machine: Keeper) -> ServicePhase | None:
        """Return the phase of a coordinator, None while it does not run."""
        status = self.status(machine)
        return None if machine.pid is None or status is None else status.phase

    def command(self, *more: str, data: Path | None = None) -> list[str]:
        """Return the coordinator's command line."""
        arguments = ["run", "--json", "--no-gateway", "--no-page", *self._reach(COORDINATOR)]
        arguments += ["--replication-factor", str(len(self.brokers.nodes))]
        arguments += ["--data-dir", str(data or self.data)]
        for setting in SETTINGS.items():
            arguments += ["-c", "=".join(setting)]
        if self.shared is not None:
            arguments += ["--standby", "--checkpoint", str(self.shared)]
        for record in self._skipped:
            arguments += ["--skip-record", record]
        if self.step != "steady":
            # A replica would answer without the bugs, and be silent after the first difference.
            arguments.append("--no-replica")
        return command_line([*arguments, *more], self.step)

    def skip(self, record: str) -> None:
        """Start the coordinator with this `--skip-record` from now on."""
        self._skipped.append(record)
        for machine in self.machines:
            machine.command = self.command(data=self.folder / machine.name)

    def _reach(self, user: str) -> list[str]:
        """Return the options with which a process reaches the brokers, as this user if they are secured."""
        options = ["--bootstrap-servers", self.servers, "--prefix", PREFIX]
        if self.brokers.security is None:
            return options
        file = self.folder / f"{user}.properties"
        write_properties(file, self.brokers.config_of(user).properties)
        return [*options, "--client-config", str(file)]

    def has_said_ready(self, keeper: Keeper) -> bool:
        return any(line.startswith("{") and '"gateway":' in line for line in keeper.log.splitlines())

    def status(self, machine: Keeper | None = None) -> ServiceStatus | None:
        """Return what a coordinator has written to its `status.json` last."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return read_status(self.folder / (machine or self.coordinator).name / "coordinator/status.json")
        return None

    def driver(self) -> int:
        """Return the process id of the coordinator's Python."""
        assert self.coordinator.pid is not None
        return self.coordinator.pid

    def jvm(self, machine: Keeper | None = None) -> int:
        """Return the process id of Spark's JVM, of the coordinator that works or of another machine."""
        return self._child(machine, "SparkSubmit")

    def replica(self, machine: Keeper | None = None) -> int:
        """Return the process id of the replica, of the coordinator that works or of another machine."""
        return self._child(machine, REPLICA)

    def _child(self, machine: Keeper | None, part: str) -> int:
        """Wait for a child process with this in its command line."""
        found: list[int] = []

        def is_there() -> bool:
            pid = (machine or self.coordinator).pid
            found[:] = [] if pid is None else [p for p in child_pids(pid) if part in command_of(p)]
            return bool(found)

        wait_until(is_there, part, START_TIMEOUT_S)
        return found[0]

    def workers(self) -> list[int]:
        """Return the process ids of Spark's Python workers."""
        daemons = [pid for pid in child_pids(self.jvm()) if "pyspark.daemon" in command_of(pid)]
        return [worker for daemon in daemons for worker in child_pids(daemon)]


def one_broker(folder: Path, overrides: Mapping[str, str] = MappingProxyType({})) -> BrokerCluster:
    """Return a cluster of one broker, for a stage in this folder on which no broker breaks for long."""
    return BrokerCluster(folder / "brokers", overrides={**ONE_BROKER, **overrides}, nodes=[1])


def command_line(arguments: list[str], step: str = "steady") -> list[str]:
    """Return the command line of `group-coordinator`, with a step from `planted`."""
    return [sys.executable, "-W", "ignore", "-m", "tests.campaigns.planted", step, *arguments]


def environment() -> dict[str, str]:
    """Python workers import `planted`. JVMs are started too often to be optimized."""
    return {"PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": QUICK_JAVA}


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def in_force(before: Collection[Outage], newest: Collection[Outage]) -> set[Outage]:
    """Return the outages that are known now, from those known before and those of the newest owner's record.

    A record has the last ones only, and decides about the time from its first outage on: an owner that has
    lost the topics may have written one that nobody else ever knew.
    """
    first_ms = min((after_ms for after_ms, _ in newest), default=None)
    if first_ms is None:
        return set(before)
    return {outage for outage in before if outage[1] <= first_ms} | set(newest)
