"""What executors and partitions of the state cost: `python -m bench.cluster`.

Coordinators that differ in where Spark runs and in partitions, on one broker and one machine. A round is a
heartbeat from each of GROUPS groups, all sent at once, until the last answer. The coordinators take turns of
TURN_S, and those that wait are stopped (SIGSTOP). The table has the times of a round, and the memory of the
processes after the last one. The tables in docs/running.md, "On a Spark cluster", come from here.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from bench.stats import percentile
from cli.logs import configure_logs
from cli.processes.family import family
from cli.signals import exit_on_signals
from clients.coordinator_client import CoordinatorClient, layout_on
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from tests.e2e.harness import Member, command_of, stable_member
from tests.harness.spark_cluster import EXECUTOR_SETTINGS, SparkCluster

GROUPS = 40
ROUNDS_OF_TURNS = 5
TURN_S = 4.0
WORKERS = 2
_TIMEOUT_MS = 240_000
_SESSION_MS = 600_000
_KINDS = {
    "SparkSubmit": "driver's JVM",
    "CoarseGrainedExecutorBackend": "executor's JVM",
    "deploy.worker.Worker": "worker's JVM",
    "pyspark.daemon": "Python workers",
}


@dataclass(frozen=True)
class Variant:
    """Where Spark runs, and the numbers of partitions."""

    on_cluster: bool
    request_partitions: int
    state_partitions: int

    def __str__(self) -> str:
        where = f"{WORKERS} executors of 1 core" if self.on_cluster else "local"
        return f"{where}, {self.request_partitions} of requests, {self.state_partitions} of state"


VARIANTS = [Variant(False, 1, 1), Variant(False, 4, 2), Variant(True, 4, 1), Variant(True, 4, 2)]


@dataclass
class Running:
    """A coordinator with its Spark, and members of groups. It is stopped unless `awake`."""

    roots: list[int]
    members: list[Member] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)

    def round(self, pool: ThreadPoolExecutor) -> float:
        began_s = time.monotonic()
        list(pool.map(lambda member: member.heartbeat(1), self.members))
        return time.monotonic() - began_s

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        for root in self.roots:
            for pid in family(root):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def memory_mib(self) -> dict[str, int]:
        """The resident memory of all processes of a kind."""
        found: dict[str, int] = {}
        for pid in {pid for root in self.roots for pid in family(root)}:
            command = command_of(pid)
            kind = next((name for part, name in _KINDS.items() if part in command), None)
            if kind is not None:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                found[kind] = found.get(kind, 0) + pages * os.sysconf("SC_PAGE_SIZE") // 2**20
        return found


def start(stack: ExitStack, variant: Variant, servers: str, folder: Path) -> Running:
    """Start a coordinator and form its groups."""
    folder.mkdir()
    prefix = folder.name
    command = [sys.executable, "-c", "from cli import main; main()", "run", "--json", "--no-gateway"]
    command += ["--bootstrap-servers", servers, "--prefix", prefix, "--data-dir", str(folder / "data")]
    command += ["--request-partitions", str(variant.request_partitions)]
    command += ["--state-partitions", str(variant.state_partitions)]
    command += ["-c", "group.initial.rebalance.delay.ms=0"]
    roots = []
    if variant.on_cluster:
        cluster = stack.enter_context(SparkCluster(folder / "spark", WORKERS))
        command += ["--master", cluster.master]
        command += [f"--spark-conf={name}={value}" for name, value in EXECUTOR_SETTINGS.items()]
        roots = cluster.worker_pids
    with (folder / "stderr").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    if not (line := process.stdout.readline()):
        raise click.ClickException((folder / "stderr").read_text()[-2_000:])
    json.loads(line)
    running = Running([process.pid, *roots])
    stack.callback(running.signal, signal.SIGCONT)
    client = CoordinatorClient(
        ClientConfig(servers),
        layout_on(ClientConfig(servers), prefix),
        client_id="bench",
        request_timeout_ms=_TIMEOUT_MS,
    )
    stack.enter_context(closing(client))
    with ThreadPoolExecutor(GROUPS) as pool:
        joined = pool.map(lambda n: stable_member(client, f"group-{n}", _SESSION_MS), range(GROUPS))
        running.members = list(joined)
    running.signal(signal.SIGSTOP)
    return running


def measure(running: list[Running]) -> None:
    """Let each take its turns. The first turn of each warms it up."""
    with ThreadPoolExecutor(GROUPS) as pool:
        for turn in range(1 + ROUNDS_OF_TURNS):
            for one in running:
                with one.awake():
                    one.round(pool)  # what has waited is handled
                    until_s = time.monotonic() + TURN_S
                    while time.monotonic() < until_s:
                        took_s = one.round(pool)
                        one.rounds_s += [took_s] if turn else []


def main() -> None:
    configure_logs()
    exit_on_signals()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        servers = broker.client_config
        running = []
        for n, variant in enumerate(VARIANTS):
            click.echo(f"starting: {variant}", err=True)
            running.append(start(stack, variant, str(servers), folder / f"bench-{n}"))
        measure(running)
        click.echo("| Spark, partitions | round p50 | p90 | of the first | resident memory |")
        click.echo("|---|---|---|---|---|")
        first_s = percentile(running[0].rounds_s, 0.5)
        for variant, one in zip(VARIANTS, running, strict=True):
            p50_s, p90_s = (percentile(one.rounds_s, q) for q in (0.5, 0.9))
            memory = ", ".join(f"{kind} {size} MiB" for kind, size in sorted(one.memory_mib().items()))
            click.echo(
                f"| {variant} | {1000 * p50_s:.0f} ms | {1000 * p90_s:.0f} ms | {p50_s / first_s:.2f} | "
                f"{memory} |"
            )


if __name__ == "__main__":
    main()
