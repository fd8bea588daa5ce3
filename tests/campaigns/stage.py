"""The stage of a campaign: three brokers, coordinators, gateways, and the load."""

import json
import os
import signal
import subprocess
import sys
import time
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
from streaming.query.session import WORKER_DAEMON
from streaming.service.status import read_status
from tests.campaigns.restarting_process import FINAL_CODES, LOST_ITS_TOPICS, RestartingProcess
from tests.campaigns.results import Result, StruckFault
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
"""The beginning and the end of an outage, in milliseconds."""


class Stage(ABC):
    """Brokers, coordinators and gateways. A campaign adds its load, and judges the outcome.

    `start` starts the stage. It ends with `close`, or with this process.
    """

    delay_s = 1.0
    """The longest random pause before a fault, which can therefore strike anywhere in a batch."""
    settings: Mapping[str, str] = MappingProxyType({})
    """Settings of groups in addition to SETTINGS."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        step: str = "steady",
        with_standby: bool = False,
        brokers: BrokerCluster | None = None,
    ) -> None:
        """`step` is one of `planted.STEPS`. `with_standby` adds a coordinator on the same checkpoint."""
        self.folder, self.seed, self.step = folder, seed, step
        self.coordinators: list[RestartingProcess] = []
        """The coordinator, and the standby if there is one. Any of them may be the active one."""
        self.processes: list[RestartingProcess] = []
        """All processes that are restarted when they end."""
        self.shared = folder / "shared" if with_standby else None
        self.brokers = brokers or BrokerCluster(folder / "brokers")
        self.gateway: RestartingProcess
        self.data = folder / "coordinator"
        self.outages: set[Outage] = set()
        """All that the coordinator has written to its folder."""
        self._stack = ExitStack()
        self._skipped: list[str] = []

    @abstractmethod
    def start_load(self, stack: ExitStack) -> None:
        """Start everything but the brokers. `stack` stops it."""

    @property
    @abstractmethod
    def load_so_far(self) -> str:
        """A few words on the load, for the log."""

    def now(self) -> int:
        """Return the current time of the verdicts' clock."""
        return time.monotonic_ns()

    @abstractmethod
    def before_fault(self, struck: StruckFault, random: Random) -> None:
        """Prepare for a fault, and add figures to its record."""

    def after_fault(self, struck: StruckFault) -> None:  # noqa: B027 - not every campaign measures then
        """Complete the record of a fault after which the load has made progress."""

    @abstractmethod
    def wait_for_progress(self) -> float:
        """Wait until all of the load makes progress. Return the seconds. Raises AssertionError."""

    @abstractmethod
    def judge(self, result: Result) -> None:
        """Stop the load, and count the violations."""

    def start(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.brokers)
            self.start_load(stack)
            self._stack = stack.pop_all()
        return self

    def describe(self) -> str:
        """Return the state of the coordinator and of the load, for the report of a failure."""
        ends = {process.name: process.ends[-2:] for process in self.processes}
        return f"status {self.status() if self.coordinators else None}, ends {ends}"

    def close(self) -> None:
        self._stack.close()

    def replay(self, result: Result) -> None:
        """Judge in a second way: let the command `replay` compare the log with the core's decisions."""
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
        """Update `outages` from the newest owner's record, which has the last 100.

        Outages before the record's first one stay. Later ones that the record lacks are dropped (`in_force`).
        """
        for path in sorted(self.checkpoint.glob("owners/*.json"), key=lambda path: -int(path.stem)):
            with suppress(FileNotFoundError, json.JSONDecodeError):  # written now, or damaged by a fault
                known = [one["outage"] for one in json.loads(path.read_text())["outages"]]
                self.outages = in_force(self.outages, {(it["after_ms"], it["until_ms"]) for it in known})
                return

    def start_coordinators(self, stack: ExitStack) -> None:
        """Start the coordinator, and the standby if there is one. `stack` stops them."""
        is_pair = self.shared is not None
        # In a pair, a coordinator that has lost the topics is restarted. docs/running.md, "A standby".
        final_codes = {*FINAL_CODES} - {LOST_ITS_TOPICS} if is_pair else FINAL_CODES
        for name in ("coordinator", "standby") if is_pair else ("coordinator",):
            command = self.command(data=self.folder / name)
            process = RestartingProcess(
                name, self.folder, command, environment=environment(), final_codes=final_codes
            )
            self.coordinators.append(process)
            self.processes.append(process)
            stack.callback(process.stop)
            process.start()
        wait_until(lambda: self.has_said_ready(self.coordinator), "the coordinator", START_TIMEOUT_S)

    def gateway_address(self) -> Address:
        """Return an address for a gateway at which its port and those for all brokers are free."""
        return Address("127.0.0.1", gateway_port(above=1 + max(self.brokers.nodes)))

    def start_gateway(
        self,
        stack: ExitStack,
        name: str,
        address: Address,
        *more: str,
        command: str = "gateway",
        final_codes: Container[int] = FINAL_CODES,
    ) -> RestartingProcess:
        """Start a gateway, which `stack` stops, and wait until it is ready."""
        arguments = [command, "--json", *self._reach(GATEWAY), "--listen", str(address), *more]
        gateway = RestartingProcess(
            name, self.folder, command_line(arguments), environment=environment(), final_codes=final_codes
        )
        self.processes.append(gateway)
        stack.callback(gateway.stop)
        gateway.start()
        self.wait_until_ready(gateway)
        return gateway

    def wait_until_ready(self, gateway: RestartingProcess) -> None:
        """Wait until a started gateway listens."""
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
    def coordinator(self) -> RestartingProcess:
        """The active coordinator, or the first one if none is active."""
        ready = (process for process in self.coordinators if self.phase(process) is ServicePhase.READY)
        return next(ready, self.coordinators[0])

    def phase(self, process: RestartingProcess) -> ServicePhase | None:
        """Return the phase of a coordinator, or None if it does not run or has not written its status yet."""
        status = self.status(process)
        if process.pid is None or status is None or status.since_ms < process.started_ms:
            return None  # the status file may be that of an earlier process
        return status.phase

    def command(self, *more: str, data: Path | None = None) -> list[str]:
        """Return the coordinator's command line."""
        arguments = ["run", "--json", "--no-gateway", "--no-page", *self._reach(COORDINATOR)]
        arguments += ["--replication-factor", str(len(self.brokers.nodes))]
        arguments += ["--data-dir", str(data or self.data)]
        for setting in (*SETTINGS.items(), *self.settings.items()):
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
        """Start coordinators with this `--skip-record` from now on."""
        self._skipped.append(record)
        for process in self.coordinators:
            process.command = self.command(data=self.folder / process.name)

    def _reach(self, user: str) -> list[str]:
        """Return the options to reach the brokers, as this user if they are secured."""
        options = ["--bootstrap-servers", self.servers, "--prefix", PREFIX]
        if self.brokers.security is None:
            return options
        file = self.folder / f"{user}.properties"
        write_properties(file, self.brokers.config_of(user).properties)
        return [*options, "--client-config", str(file)]

    def has_said_ready(self, process: RestartingProcess) -> bool:
        return any(line.startswith("{") and '"gateway":' in line for line in process.log.splitlines())

    def status(self, process: RestartingProcess | None = None) -> ServiceStatus | None:
        """Return the content of a coordinator's `status.json`, or None if it cannot be read."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return read_status(self.folder / (process or self.coordinator).name / "coordinator/status.json")
        return None

    def driver_pid(self) -> int:
        """Wait until the active coordinator's Python runs, and return its process id."""
        return self.coordinator.wait_until_started()

    def jvm_pid(self, process: RestartingProcess | None = None) -> int:
        """Return the process id of Spark's JVM, by default of the active coordinator."""
        return self._child_pid(process, "SparkSubmit")

    def replica_pid(self, process: RestartingProcess | None = None) -> int:
        """Return the process id of the replica, by default of the active coordinator's."""
        return self._child_pid(process, REPLICA)

    def _child_pid(self, process: RestartingProcess | None, part: str) -> int:
        """Wait for a child process with `part` in its command line, and return its process id."""
        found: list[int] = []

        def is_there() -> bool:
            pid = (process or self.coordinator).pid
            found[:] = [] if pid is None else [p for p in child_pids(pid) if part in command_of(p)]
            return bool(found)

        wait_until(is_there, part, START_TIMEOUT_S)
        return found[0]

    def worker_pids(self) -> list[int]:
        """Return the process ids of Spark's Python workers."""
        daemons = [pid for pid in child_pids(self.jvm_pid()) if WORKER_DAEMON in command_of(pid)]
        return [worker for daemon in daemons for worker in child_pids(daemon)]


def one_broker(folder: Path, overrides: Mapping[str, str] = MappingProxyType({})) -> BrokerCluster:
    """Return a cluster of one broker for a stage in this folder, for campaigns that do not break brokers."""
    return BrokerCluster(folder / "brokers", overrides={**ONE_BROKER, **overrides}, nodes=[1])


def command_line(arguments: list[str], step: str = "steady") -> list[str]:
    """Return the command line of `group-coordinator`, with a step from `planted`."""
    return [sys.executable, "-W", "ignore", "-m", "tests.campaigns.planted", step, *arguments]


def environment() -> dict[str, str]:
    """Return variables with which Python workers can import `planted`, and JVMs start quickly."""
    return {"PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": QUICK_JAVA}


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def in_force(before: Collection[Outage], newest: Collection[Outage]) -> set[Outage]:
    """Return the outages in force, from those known before and those of the newest owner's record.

    The record has only the last outages. It replaces those known before from its first outage on, because an
    owner that has lost the topics may have written one that no later owner has.
    """
    first_ms = min((after_ms for after_ms, _ in newest), default=None)
    if first_ms is None:
        return set(before)
    return {outage for outage in before if outage[1] <= first_ms} | set(newest)
