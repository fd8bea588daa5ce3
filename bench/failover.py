"""Measure a failover: two coordinators on one checkpoint, of which the active one is killed again and again.

The first table has the time from the SIGKILL of the active one, with its JVM and Python workers, to the claim
of the standby and to the answer to a request that is appended right after the SIGKILL. The killed one is
started again as the standby of the next turn. The answer must have no error, so the member's session has
survived. The second table has what the guard of a shared checkpoint costs: requests one at a time, in turn
to a coordinator whose checkpoint is in its own folder, and to one with `--checkpoint` on the same disk, and
checks of the guard alone, in this process.
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
# A standby rehearses for some seconds. Nobody kills two coordinators that soon after each other.
REHEARSED_S = 15.0
_LOOK_S = 0.05
Figures = dict[str, list[float]]


def main() -> None:
    """Kill the active coordinator some times, send requests with and without the guard, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--takeovers", type=int, default=5)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--turns", type=int, default=6, help="of the guard's table; 0: leave it out")
    parser.add_argument("--requests", type=int, default=20, help="of each turn of the guard's table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        EmbeddedBroker(Path(name) / "broker") as broker,
    ):
        machines = _Machines(Path(name), broker.bootstrap_servers)
        if given.takeovers:
            print(
                table("seconds from SIGKILL to", takeovers(machines, given.takeovers, given.groups)),
                flush=True,
            )
        if given.turns:
            print(table("milliseconds of a request", guarded(machines, given.turns, given.requests)))


def takeovers(machines: "_Machines", times: int, groups: int) -> Figures:
    """Kill the active coordinator so many times. Returns seconds."""
    found: Figures = {"the standby's claim": [], "the first answer": []}
    with machines.running() as children:
        shared = ("--standby", "--checkpoint", str(machines.folder / "shared"))
        active = machines.start(children, "one", PREFIX, *shared, until=ServicePhase.READY)
        with TopicsClient(machines.servers, PREFIX, packed=False) as client:
            members = client.form([f"group-{i}" for i in range(groups)])
            heartbeats = client.records([heartbeat_request(member) for member in members])
            for number in range(times):
                say(f"takeover {number + 1} of {times}")
                standby = ("other", "one")[number % 2]
                following = machines.start(children, standby, PREFIX, *shared, until=ServicePhase.STANDBY)
                time.sleep(REHEARSED_S)
                for heartbeat in heartbeats:
                    client.one(heartbeat)
                active.kill()
                killed_s = time.time()
                found["the first answer"].append(client.one(heartbeats[number % groups]))
                found["the standby's claim"].append(machines.claimed_s(PREFIX) - killed_s)
                active = following
    return found


def guarded(machines: "_Machines", turns: int, requests: int) -> Figures:
    """Send requests one at a time to both coordinators in turn. Returns the medians of the turns in ms."""
    shared = ("--checkpoint", str(machines.folder / "guarded"))
    options: dict[str, tuple[str, ...]] = {"with the guard": shared, "without": ()}
    found: Figures = {name: [] for name in (*options, "a check alone")}
    guard = OwnerGuard(ClientConfig(machines.servers), TopicLayout.named("guard-0").owner_topic, epoch=1)
    with machines.running() as children:
        for number, name in enumerate(options):
            machines.start(
                children, f"guard-{number}", f"guard-{number}", *options[name], until=ServicePhase.READY
            )
        clients = [TopicsClient(machines.servers, f"guard-{i}", packed=False) for i in range(len(options))]
        heartbeats = [client.records([heartbeat_request(client.form(["group"])[0])])[0] for client in clients]
        for turn in range(turns + 1):
            say(f"turn {turn} of {turns}")
            for name, client, heartbeat in zip(options, clients, heartbeats, strict=True):
                taken = [client.one(heartbeat) * 1000 for _ in range(requests)]
                if turn:  # the first one warms up
                    found[name].append(percentile(taken, 0.5))
            found["a check alone"].append(percentile([timed_ms(guard.check) for _ in range(requests)], 0.5))
        for client in clients:
            client.close()
    return found


def timed_ms(call: Callable[[], None]) -> float:
    """Return the duration of a call in ms."""
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1000


def table(title: str, figures: Figures) -> str:
    """Return the median, the least and the longest time."""
    lines = [f"{title:<32}{'median':>8}{'least':>8}{'longest':>9}"]
    for name, values in figures.items():
        lines.append(f"  {name:<30}{percentile(values, 0.5):>8.1f}{min(values):>8.1f}{max(values):>9.1f}")
    return "\n".join(lines)


class _Machines:
    """Coordinators with folders of their own. They stand for several machines, which share a folder."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder = folder
        self.servers = servers

    @contextmanager
    def running(self) -> Iterator[Children]:
        with Children(self.folder) as children:
            yield children

    def start(self, children: Children, name: str, prefix: str, *options: str, until: ServicePhase) -> Child:
        """Start a coordinator and wait for its phase. Raises TimeoutError."""
        data = self.folder / f"data-{name}"
        status = data / "coordinator" / "status.json"
        status.unlink(missing_ok=True)
        arguments = ("run", "--json", "--no-gateway", "--bootstrap-servers", self.servers, "--prefix", prefix)
        settings = ("-c", "group.initial.rebalance.delay.ms=0", "--data-dir", str(data))
        child = children.start(name, *arguments, *settings, *options)
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while not status.exists() or read_status(status).phase is not until:
            if time.monotonic() > give_up_s or not child.is_running:
                raise child.failure(f"it is not {until}")
            time.sleep(_LOOK_S)
        return child

    def claimed_s(self, prefix: str) -> float:
        """Return the time of the claim in force, by this machine's clock."""
        claims = Claims()
        with TopicReader(ClientConfig(self.servers)) as reader:
            for record in reader.read_all(TopicLayout.named(prefix).owner_topic):
                claims.apply(record.offset, record.key, record.value)
        in_force = claims.in_force()
        assert in_force is not None
        return in_force.since_ms / 1000


if __name__ == "__main__":
    main()
