"""Measure a failover: two coordinators share a checkpoint, and the active one is killed several times.

The first table has the time from the SIGKILL of the active coordinator, with its JVM and Python workers, to
the claim of the standby (its record of ownership), and to the answer to a request that is appended right
after the SIGKILL. The answer must have no error, which proves that the member's session has survived. The
killed coordinator is the next standby.

The second table has the cost of the guard of a shared checkpoint, which checks that the coordinator still
owns its topics. It compares single requests to a coordinator with `--checkpoint` and to one with the
checkpoint in its own folder, and times checks of the guard alone in this process.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load.requests import heartbeat_request
from bench.load.topics import TopicsClient
from bench.report import say
from bench.stats import percentile
from cli.processes.child import Child, Children
from embedded.broker import EmbeddedBroker
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.claims import Claims
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ServicePhase
from kafka_why.topic_reader import TopicReader
from streaming.query.owner_guard import OwnerGuard
from streaming.service.status import read_status

START_TIMEOUT_S = 180.0
PREFIX = "failover"
# A standby rehearses for some seconds after its start. The active coordinator is not killed before its end.
REHEARSAL_S = 15.0
_POLL_S = 0.05
Figures = dict[str, list[float]]
"""By the name of a row of a table: the times, in the unit of its title."""


def main() -> None:
    """Kill active coordinators, send requests with and without the guard, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--takeovers", type=int, default=5)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--turns", type=int, default=6, help="of the guard's table; 0: leave it out")
    parser.add_argument("--requests", type=int, default=20, help="of each turn of the guard's table")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        EmbeddedBroker(Path(name) / "broker") as broker,
    ):
        machines = _Machines(Path(name), broker.bootstrap_servers)
        if args.takeovers:
            print(
                table("seconds from SIGKILL to", takeovers(machines, args.takeovers, args.groups)),
                flush=True,
            )
        if args.turns:
            print(table("milliseconds of a request", guarded(machines, args.turns, args.requests)))


def takeovers(machines: "_Machines", times: int, groups: int) -> Figures:
    """Kill the active coordinator `times` times. Return the seconds of each takeover."""
    takeovers_s: Figures = {"the standby's claim": [], "the first answer": []}
    with machines.running() as children:
        shared = ("--standby", "--checkpoint", str(machines.folder / "shared"))
        active = machines.start(children, "one", PREFIX, *shared, until=ServicePhase.READY)
        with TopicsClient(machines.servers, PREFIX, packed=False) as client:
            members = client.form_groups([f"group-{i}" for i in range(groups)])
            heartbeats = client.records([heartbeat_request(member) for member in members])
            for number in range(times):
                say(f"takeover {number + 1} of {times}")
                standby_name = ("other", "one")[number % 2]  # the one that is not active
                standby = machines.start(children, standby_name, PREFIX, *shared, until=ServicePhase.STANDBY)
                time.sleep(REHEARSAL_S)
                for heartbeat in heartbeats:
                    client.time_one(heartbeat)
                active.kill()
                killed_s = time.time()
                takeovers_s["the first answer"].append(client.time_one(heartbeats[number % groups]))
                takeovers_s["the standby's claim"].append(machines.claimed_s(PREFIX) - killed_s)
                active = standby
    return takeovers_s


def guarded(machines: "_Machines", turns: int, requests: int) -> Figures:
    """Send single requests to both coordinators in turns. Return the median of each turn in ms."""
    shared = ("--checkpoint", str(machines.folder / "guarded"))
    options: dict[str, tuple[str, ...]] = {"with the guard": shared, "without": ()}
    medians_ms: Figures = {name: [] for name in (*options, "a check alone")}
    guard = OwnerGuard(ClientConfig(machines.servers), TopicLayout.named("guard-0").owner_topic, epoch=1)
    with machines.running() as children:
        for number, name in enumerate(options):
            machines.start(
                children, f"guard-{number}", f"guard-{number}", *options[name], until=ServicePhase.READY
            )
        clients = [TopicsClient(machines.servers, f"guard-{i}", packed=False) for i in range(len(options))]
        heartbeats = [
            client.records([heartbeat_request(client.form_groups(["group"])[0])])[0] for client in clients
        ]
        for turn in range(turns + 1):
            say(f"turn {turn} of {turns}")
            for name, client, heartbeat in zip(options, clients, heartbeats, strict=True):
                times_ms = [client.time_one(heartbeat) * 1000 for _ in range(requests)]
                if turn:  # the first one warms up
                    medians_ms[name].append(percentile(times_ms, 0.5))
            medians_ms["a check alone"].append(
                percentile([duration_ms(guard.check) for _ in range(requests)], 0.5)
            )
        for client in clients:
            client.close()
    return medians_ms


def duration_ms(call: Callable[[], None]) -> float:
    """Return the duration of a call in ms."""
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1000


def table(title: str, figures: Figures) -> str:
    """Return a table of the median, the shortest and the longest time."""
    lines = [f"{title:<32}{'median':>8}{'least':>8}{'longest':>9}"]
    for name, values in figures.items():
        lines.append(f"  {name:<30}{percentile(values, 0.5):>8.1f}{min(values):>8.1f}{max(values):>9.1f}")
    return "\n".join(lines)


class _Machines:
    """Starts coordinators, each with its own data folder, as on machines that share one folder besides."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder = folder
        self.servers = servers

    @contextmanager
    def running(self) -> Iterator[Children]:
        with Children(self.folder) as children:
            yield children

    def start(self, children: Children, name: str, prefix: str, *options: str, until: ServicePhase) -> Child:
        """Start a coordinator and wait until its phase is `until`. Raises ChildFailed."""
        data = self.folder / f"data-{name}"
        status = data / "coordinator" / "status.json"
        status.unlink(missing_ok=True)
        arguments = ("run", "--json", "--no-gateway", "--bootstrap-servers", self.servers, "--prefix", prefix)
        settings = ("-c", "group.initial.rebalance.delay.ms=0", "--data-dir", str(data))
        child = children.start(name, *arguments, *settings, *options)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not status.exists() or read_status(status).phase is not until:
            if time.monotonic() > deadline_s or not child.is_running:
                raise child.failure(f"it is not {until}")
            time.sleep(_POLL_S)
        return child

    def claimed_s(self, prefix: str) -> float:
        """Return when the present owner claimed the topics, in seconds since 1970."""
        claims = Claims()
        with TopicReader(ClientConfig(self.servers)) as reader:
            for record in reader.read_all(TopicLayout.named(prefix).owner_topic):
                claims.apply(record.offset, record.key, record.value)
        claim = claims.in_force()
        assert claim is not None
        return claim.since_ms / 1000


if __name__ == "__main__":
    main()
