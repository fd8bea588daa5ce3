"""The brokers, the coordinator and the gateway that all tests of a session share.

pytest's process starts each of them when the first test asks for it, and stops them at the end. xdist's
workers run tests in processes of their own: they ask pytest's process over a socket. What pytest's process
started ends with it, also if it is killed.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest

from cli.processes.child import Children
from embedded.broker import EmbeddedBroker, Ports
from tests.harness import form
from tests.harness.broker_cluster import NODES, ONE_BROKER, BrokerCluster
from tests.harness.rocketmq_clients import RocketMqAt, address_of, embedded_rocketmq
from tests.harness.secured_broker import ADMIN, COORDINATOR, ClusterSecurity, write_properties

SERVICES = ("broker", "coordinator", "rocketmq")
"""The services that tests may ask for."""

PREFIX = "shared"
"""The prefix of the shared coordinator's topics."""

# What suits most stories: several members started together are in the first generation, a member of the
# consumer or the streams protocol sees soon what changed, and one that is silent is found soon.
# librdkafka gives up a heartbeat of such a member after one interval, so the interval is longer than a batch.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.heartbeat.interval.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "15000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.session.timeout.ms": "10000",
    "group.streams.min.session.timeout.ms": "2000",
}
START_TIMEOUT_S = 240.0
T = TypeVar("T")
# Half of the batches of the default, 100 ms, and a third less processor time while groups have members.
TICK_INTERVAL_MS = 250
# The optimizing compiler would double the processor time of Spark's start, which is most of a short life.
QUICK_JAVA = "-XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class BrokerAt:
    """A running broker: its folder, its ports and the settings with which clients log in."""

    folder: Path
    ports: Ports
    client_properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def handle(self) -> EmbeddedBroker:
        """Return a handle with the broker's address. Its owner starts and stops the broker."""
        return EmbeddedBroker(self.folder, ports=self.ports, client_properties=self.client_properties)


@dataclass(frozen=True)
class Coordinated:
    """A running coordinator. `gateway` is the address of the gateway in front of it.

    `pid` is the coordinator's process id, and `ready` the JSON object that it printed when it was ready.
    """

    gateway: str
    pid: int
    ready: Mapping[str, str]


class Services(Protocol):
    """The services that tests may share."""

    def broker(self) -> BrokerAt:
        """Return a real broker."""

    def coordinator(self) -> Coordinated:
        """Return a coordinator on that broker, its topics named by `PREFIX`, with a gateway."""

    def rocketmq(self) -> RocketMqAt:
        """Return a real name server and broker of RocketMQ."""


class Owner:
    """Starts the requested services, each once, in a folder. `close` stops them.

    With `security` the broker is one of `nodes` with TLS, to which tests log in as its administrator and the
    coordinator as a user of its own, by SCRAM. `arguments` are further ones for the coordinator.
    """

    def __init__(
        self,
        folder: Path,
        security: ClusterSecurity | None = None,
        arguments: Sequence[str] = (),
        nodes: Sequence[int] = NODES,
    ) -> None:
        self._folder = folder
        self._security = security
        self._arguments = arguments
        self._nodes = nodes
        self._stack = ExitStack()
        self._broker = _Once(self._start_broker)
        self._coordinator = _Once(self._start_coordinator)
        self._rocketmq = _Once(self._start_rocketmq)

    def broker(self) -> BrokerAt:
        return self._broker.get()

    def coordinator(self) -> Coordinated:
        return self._coordinator.get()

    def rocketmq(self) -> RocketMqAt:
        return self._rocketmq.get()

    def close(self) -> None:
        self._stack.close()

    def _start_broker(self) -> BrokerAt:
        if self._security is not None:
            return self._start_cluster(self._security)
        broker = self._stack.enter_context(EmbeddedBroker(self._folder / "broker"))
        assert broker.ports is not None
        return BrokerAt(broker.data_dir, broker.ports)

    def _start_rocketmq(self) -> RocketMqAt:
        return address_of(self._stack.enter_context(embedded_rocketmq(self._folder / "rocketmq")))

    def _start_cluster(self, security: ClusterSecurity) -> BrokerAt:
        settings = ONE_BROKER if len(self._nodes) == 1 else {}
        brokers = BrokerCluster(
            self._folder / "brokers", overrides=settings, nodes=self._nodes, security=security
        )
        cluster = self._stack.enter_context(brokers)
        _, port = cluster.address(cluster.nodes[0]).split(":")
        ports = Ports(client=int(port), controller=0)
        return BrokerAt(cluster.data_dir, ports, security.client_properties(ADMIN, "SCRAM-SHA-512"))

    def _start_coordinator(self) -> Coordinated:
        broker = self.broker().handle()
        settings = self._folder / "client.properties"
        security = self._security
        properties = security.client_properties(COORDINATOR, "SCRAM-SHA-512") if security else {}
        write_properties(settings, properties)
        logs = self._folder / "coordinator-logs"
        logs.mkdir()
        arguments = ["run", "--json", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
        arguments += ["--client-config", str(settings), *self._arguments]
        arguments += ["--data-dir", str(self._folder / "data"), "--tick-interval-ms", str(TICK_INTERVAL_MS)]
        arguments += ["--topic-interval-ms", "500", *form.arguments()]
        for setting in SETTINGS.items():
            arguments += ["-c", "=".join(setting)]
        children = self._stack.enter_context(Children(logs))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
            child = children.start("coordinator", *arguments)
        ready = json.loads(child.wait_for_line(lambda line: "requests_topic" in line, START_TIMEOUT_S))
        return Coordinated(gateway=ready["gateway"], pid=child.pid, ready=ready)


class _Once(Generic[T]):
    """The result of `make`, called when the first thread asks. Its error is raised to all that ask."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._results: list[T] = []  # none before the first call of `make`
        self._error: Exception | None = None

    def get(self) -> T:
        with self._lock:
            if self._error is not None:
                raise self._error
            if not self._results:
                try:
                    self._results.append(self._make())
                except Exception as error:
                    self._error = error
                    raise
            return self._results[0]


class Server:
    """Lets other processes of this user request services of an owner, over a socket in a folder."""

    def __init__(self, owner: Owner, folder: Path) -> None:
        self._owner = owner
        self.socket = str(folder / "socket")
        self._listener = Listener(self.socket, family="AF_UNIX")
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="shared services", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        with suppress(OSError):
            Remote(self.socket).ask("nothing")  # so that `accept` returns
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        while not self._is_closing:
            connection = self._listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            service = connection.recv()
            try:
                answer = getattr(self._owner, service)() if service in SERVICES else None
            except Exception as error:  # noqa: BLE001 - it is raised in the process that asked
                answer = error
            connection.send(answer)


@dataclass(frozen=True)
class Remote:
    """An owner in another process, by its server's socket."""

    socket: str

    def broker(self) -> BrokerAt:
        broker: BrokerAt = self.ask("broker")
        return broker

    def coordinator(self) -> Coordinated:
        coordinated: Coordinated = self.ask("coordinator")
        return coordinated

    def rocketmq(self) -> RocketMqAt:
        rocketmq: RocketMqAt = self.ask("rocketmq")
        return rocketmq

    def ask(self, what: str) -> Any:
        with Client(self.socket, family="AF_UNIX") as connection:
            connection.send(what)
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer
