"""What the faults happen to: three brokers, the coordinator, a gateway, and the load."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import pytest
from pyspark.sql import SparkSession

from clients.coordinator_client import CoordinatorClient
from connections.address import Address
from connections.client_config import ClientConfig
from records.layout import TopicLayout
from state.kafka.requests import OffsetFetch
from streaming.query.session import Session
from tests.e2e.harness import child_pids, command_of, create_topic, wait_until
from tests.faults.campaign.judge.verdicts import Verdict
from tests.faults.campaign.keeper import FINAL_CODES, LOST_ITS_TOPICS, Keeper
from tests.faults.campaign.load.classic import PARTITIONS, TOPIC
from tests.faults.campaign.load.running import PROTOCOLS, TRANSACTIONAL, Load
from tests.faults.campaign.outages import in_force
from tests.harness.broker_cluster import BrokerCluster
from tests.harness.ports import gateway_port
from tests.harness.secured_broker import COORDINATOR, GATEWAY, write_properties
from tests.harness.spark_cluster import EXECUTOR_SETTINGS, HOST, SparkCluster

ROOT = Path(__file__).parents[3]
# In the command line of a replica.
REPLICA = "streaming.replica"
PREFIX = "campaign"
START_TIMEOUT_S = 180.0
RECOVERY_TIMEOUT_S = 300.0
CLIENT_EXPIRY_MS = 10_000
CONSUMER_SESSION_MS = 10_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.min.session.timeout.ms": str(CONSUMER_SESSION_MS),
    "group.consumer.session.timeout.ms": str(CONSUMER_SESSION_MS),
    "rocketmq.channel.expired.timeout.ms": str(CLIENT_EXPIRY_MS),
    "rocketmq.scan.interval.ms": "1000",
}

BROKER_SETTINGS = {
    # Faults by retention need not wait 5 minutes for it.
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
}


class DidNotRecover(AssertionError):
    """Groups were not answered again in time."""


@dataclass(frozen=True)
class Status:
    """What `status.json` says."""

    phase: str = ""
    reason: str = ""


class MeasuredLoss(NamedTuple):
    """Measurements of a coordinator that lost requests, in seconds from the loss.

    `silence_s` is until the last acknowledgement of a request that no batch handled, `end_s` until the end of
    the process, or None if it went on.
    """

    silence_s: float
    end_s: float | None


class CampaignCluster:
    """Started by `start`, and ended by `close` or with this process."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        step: str = "steady",
        share: float = 1.0,
        groups: Mapping[str, int] = MappingProxyType({}),
        on_cluster: bool = False,
        with_standby: bool = False,
        with_load: bool = True,
    ) -> None:
        """`step` is one of `planted.STEPS`, `share` and `groups` are as in `Load`. With `on_cluster` the
        coordinator's executors are processes of a standalone Spark cluster of two workers. With
        `with_standby` there are two coordinators with one checkpoint, one of which waits. Without `with_load`
        there are the brokers alone, for faults that start all else themselves.
        """
        self.machines: list[Keeper] = []
        """The coordinator, and the standby if there is one. They take turns."""
        self.shared = folder / "shared" if with_standby else None
        self.folder = folder
        self.cluster = SparkCluster(folder / "spark-cluster") if on_cluster else None
        self.layout = TopicLayout.named(PREFIX)
        self.brokers = BrokerCluster(folder / "brokers", overrides=BROKER_SETTINGS)
        self.data = folder / "coordinator"
        self.outages: set[tuple[int, int]] = set()
        """(after, until) in ms: all that the coordinator has written to its folder."""
        self.verdicts: list[Verdict] = []
        """What was wrong on topics of a fault's own."""
        self.losses: list[MeasuredLoss] = []
        """Measurements of coordinators that lost requests."""
        self.has_load = with_load
        self._session: Session | None = None
        self._seed, self._step, self._share = seed, step, share
        self._groups = groups if with_load else dict.fromkeys(PROTOCOLS, 0)
        self._stack = ExitStack()
        self._skipped: list[str] = []

    def start(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.brokers)
            if self.cluster is not None:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("PYTHONPATH", str(ROOT))  # executors' workers import `planted`
                    stack.enter_context(self.cluster)
            create_topic(self.client_config, TOPIC, PARTITIONS, {})
            gateway = Address("127.0.0.1", gateway_port(above=1 + max(self.brokers.nodes)))
            self.load = Load(
                self.servers, self.layout, gateway, self._seed, share=self._share, groups=self._groups
            )
            if self.has_load:
                self._start_load(stack, gateway)
            self._stack = stack.pop_all()
        return self

    def _start_load(self, stack: ExitStack, gateway: Address) -> None:
        """Start a coordinator, its gateway, and the groups that load them. `stack` stops them."""
        self.start_coordinators(stack)
        self.gateway = self.start_gateway(stack, "gateway", gateway)
        self.load.start()
        stack.callback(self.load.stop)
        self.wait_until_recovered(time.monotonic())

    def start_coordinators(self, stack: ExitStack) -> None:
        """Start the coordinator, and the standby if there is one. `stack` stops them."""
        is_pair = self.shared is not None
        # One of a pair that has lost the topics waits for them again. docs/running.md, "A standby".
        final_codes = {*FINAL_CODES} - {LOST_ITS_TOPICS} if is_pair else FINAL_CODES
        for name in ("coordinator", "standby") if is_pair else ("coordinator",):
            command = self.command(data=self.folder / name)
            machine = Keeper(name, self.folder, command, environment=environment(), final_codes=final_codes)
            self.machines.append(machine)
            stack.callback(machine.stop)
            machine.start()
        wait_until(lambda: self.has_said_ready(self.coordinator), "the coordinator", START_TIMEOUT_S)

    def start_gateway(self, stack: ExitStack, name: str, address: Address, *more: str) -> Keeper:
        """Start a gateway, which `stack` stops, and wait until it is ready."""
        arguments = ["gateway", "--json", *self._reach(GATEWAY), "--listen", str(address), *more]
        gateway = Keeper(name, self.folder, command_line(arguments), environment=environment())
        stack.callback(gateway.stop)
        gateway.start()
        wait_until(lambda: self.has_said_ready(gateway), f"the {name}", START_TIMEOUT_S)
        return gateway

    def close(self) -> None:
        self._stack.close()

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
        ready = (machine for machine in self.machines if self.phase(machine) == "ready")
        return next(ready, self.machines[0])

    def phase(self, machine: Keeper) -> str:
        """What the `status.json` of a coordinator says, "" while it does not run."""
        return "" if machine.pid is None else self._status(machine).phase

    def command(self, *more: str, data: Path | None = None) -> list[str]:
        """The coordinator's command line."""
        arguments = ["run", "--json", "--no-gateway", *self._reach(COORDINATOR)]
        arguments += ["--replication-factor", str(len(self.brokers.nodes))]
        arguments += ["--data-dir", str(data or self.data)]
        for setting in SETTINGS.items():
            arguments += ["-c", "=".join(setting)]
        if self.shared is not None:
            arguments += ["--standby", "--checkpoint", str(self.shared)]
        if self.cluster is not None:
            arguments += ["--master", self.cluster.master, "--driver-host", HOST, "--state-partitions", "2"]
            for setting in EXECUTOR_SETTINGS.items():
                arguments += ["--spark-conf", "=".join(setting)]
        for record in self._skipped:
            arguments += ["--skip-record", record]
        if self._step != "steady":
            # A replica would answer without the bugs, and be silent after the first difference.
            arguments.append("--no-replica")
        return command_line([*arguments, *more], self._step)

    def skip(self, record: str) -> None:
        """Start the coordinator with this `--skip-record` from now on."""
        self._skipped.append(record)
        for machine in self.machines:
            machine.command = self.command(data=self.folder / machine.name)

    def _reach(self, user: str) -> list[str]:
        """The options with which a process reaches the brokers, as this user if they are secured."""
        options = ["--bootstrap-servers", self.servers, "--prefix", PREFIX]
        if self.brokers.security is None:
            return options
        file = self.folder / f"{user}.properties"
        write_properties(file, self.brokers.config_of(user).properties)
        return [*options, "--client-config", str(file)]

    def has_said_ready(self, keeper: Keeper) -> bool:
        return any(line.startswith("{") and '"gateway":' in line for line in keeper.log.splitlines())

    def status(self) -> Status:
        return self._status(self.coordinator)

    def _status(self, machine: Keeper) -> Status:
        path = self.folder / machine.name / "coordinator" / "status.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return Status()
        return Status(content["phase"], content["reason"])

    def note_outages(self) -> None:
        """Keep the outages of the newest owner's record, which has the last 100."""
        for path in sorted(self.checkpoint.glob("owners/*.json"), key=lambda path: -int(path.stem)):
            try:
                known = json.loads(path.read_text())["outages"]
            except (FileNotFoundError, json.JSONDecodeError):
                continue  # written now, or damaged by a fault
            newest = {(one["outage"]["after_ms"], one["outage"]["until_ms"]) for one in known}
            self.outages = in_force(self.outages, newest)
            return

    def spark(self) -> SparkSession:
        """A Spark in this process, for faults that need topics of their own. Started at the first call."""
        if self._session is None:
            os.environ["PYTHONPATH"] = str(ROOT)
            self._session = Session(log_path=self.folder / "spark.log")
            self._stack.callback(self._session.stop)
        return self._session.spark

    def pause(self, seconds: float) -> None:
        """Let the load go on for a time."""
        time.sleep(seconds)

    def driver(self) -> int:
        """The process id of the coordinator's Python."""
        assert self.coordinator.pid is not None
        return self.coordinator.pid

    def jvm(self, machine: Keeper | None = None) -> int:
        """The process id of Spark's JVM, of the coordinator that works or of another machine."""
        found: list[int] = []

        def is_there() -> bool:
            pid = (machine or self.coordinator).pid
            found[:] = [] if pid is None else [p for p in child_pids(pid) if "SparkSubmit" in command_of(p)]
            return bool(found)

        wait_until(is_there, "Spark's JVM", START_TIMEOUT_S)
        return found[0]

    def replica(self, machine: Keeper | None = None) -> int:
        """The process id of the replica, of the coordinator that works or of another machine."""
        found: list[int] = []

        def is_there() -> bool:
            pid = (machine or self.coordinator).pid
            found[:] = [] if pid is None else [p for p in child_pids(pid) if REPLICA in command_of(p)]
            return bool(found)

        wait_until(is_there, "the replica", START_TIMEOUT_S)
        return found[0]

    def workers(self) -> list[int]:
        """The process ids of Spark's Python workers."""
        jvms = [self.jvm()] if self.cluster is None else self.executors()
        daemons = [pid for jvm in jvms for pid in child_pids(jvm) if "pyspark.daemon" in command_of(pid)]
        return [worker for daemon in daemons for worker in child_pids(daemon)]

    def executors(self) -> list[int]:
        """The process ids of the executors on the Spark cluster."""
        assert self.cluster is not None
        workers = range(len(self.cluster.worker_pids))
        return [pid for number in workers for pid in self.cluster.executors(number)]

    def wait_until_handled(self, timeout_s: float) -> None:
        """Wait until a request that is sent now is answered, so that all before it are handled.

        One of each group, because a request that waits for other members is answered only with them; and the
        judge then sees what a client fetches last.
        """
        with CoordinatorClient(
            self.client_config,
            self.layout,
            client_id="last",
            request_timeout_ms=int(timeout_s * 1000),
        ) as client:
            offset_groups = {group for group, _ in self.load.meter.committed}
            offset_groups |= set(self.load.groups[TRANSACTIONAL])
            fetches = [
                client.send(OffsetFetch(**client.header(group, 5), topics=None))
                for group in sorted(offset_groups | set(self.load.groups["classic, on the topics"]))
            ]
            for fetch in fetches:
                fetch.result(timeout_s)

    def wait_until_recovered(self, since_s: float, timeout_s: float = RECOVERY_TIMEOUT_S) -> None:
        """Wait until each group has the answer to a request that it sent after this time (monotonic)."""
        groups = self.load.all_groups
        behind = self.load.meter.wait_for_answers(groups, since_s, timeout_s)
        if self.load.failure is not None:
            raise self.load.failure
        if behind:
            raise DidNotRecover(
                f"{len(behind)} groups, as {behind[:3]}, have no answer after {timeout_s:.0f} s; "
                f"status {self.status()}; the coordinator's ends {self.coordinator.ends[-3:]}"
            )


def command_line(arguments: list[str], step: str = "steady") -> list[str]:
    """The command line of `group-coordinator`, with a step from `planted`."""
    return [sys.executable, "-W", "ignore", "-m", "tests.faults.campaign.planted", step, *arguments]


def environment() -> dict[str, str]:
    """Python workers import `planted`."""
    return {"PYTHONPATH": str(ROOT)}


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
