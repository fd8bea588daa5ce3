"""Three real Kafka brokers on this machine, child processes that can be killed and paused one by one.

Each is broker and controller of one KRaft cluster. Topics have three replicas by default, and a record that
is acknowledged with acks=all is on at least two of them. So the loss of one broker loses nothing, and the
other two continue.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from kafka.errors import KafkaError

from embedded.broker import BrokerFailed, EmbeddedBroker, Ports, free_ports, new_cluster_id
from embedded.java import HOST
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from tests.harness.secured_broker import ADMIN, COORDINATOR, ClusterSecurity
from tests.harness.waiting import wait_until

NODES = (1, 2, 3)
"""The node ids."""
REPLICAS = 3
ONE_BROKER: Mapping[str, str] = MappingProxyType(
    {
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
)
"""The settings of a cluster of one node."""
IN_SYNC_TIMEOUT_S = 120.0
_START_TRIES = 3
# Three share a small machine.
_JAVA_OPTIONS = ("-Xms64m", "-Xmx256m")
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "default.replication.factor": str(REPLICAS),
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": str(REPLICAS),
        "transaction.state.log.replication.factor": str(REPLICAS),
        "transaction.state.log.min.isr": "2",
        "share.coordinator.state.topic.replication.factor": str(REPLICAS),
        "share.coordinator.state.topic.min.isr": "2",
        # A follower that stands still leaves the in-sync replicas after this. The default, 30 s, would be the
        # time for which a paused broker stops everyone.
        "replica.lag.time.max.ms": "4000",
        "controlled.shutdown.enable": "true",
        # A partition without its preferred leader goes back to it soon after a broker returned.
        "leader.imbalance.check.interval.seconds": "5",
    }
)


class BrokerCluster:
    """Three brokers under ``data_dir`` (``broker-1`` to ``broker-3``), on loopback and free ports.

    They end when this process ends, for whatever reason. ``overrides`` are settings of each broker. With
    ``security`` the brokers have TLS and SASL, and `client_config` is that of the coordinator's user. `start`
    raises `embedded.broker.BrokerFailed`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        overrides: Mapping[str, str] = MappingProxyType({}),
        nodes: Iterable[int] = NODES,
        security: ClusterSecurity | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.nodes = self._controllers = tuple(nodes)
        self._overrides = dict(overrides)
        self._cluster_id = new_cluster_id()
        self.security = security
        self._ports: dict[int, Ports] = {}
        self._mutual_ports: dict[int, int] = {}
        self._brokers: dict[int, EmbeddedBroker] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of all brokers, separated by commas, known after `start`."""
        return ",".join(self.address(node) for node in self.nodes)

    @property
    def client_config(self) -> ClientConfig:
        """The client settings of the cluster, available as soon as `bootstrap_servers` is."""
        return self.config_of(COORDINATOR)

    def config_of(self, user: str, mechanism: str = "SCRAM-SHA-512") -> ClientConfig:
        """Return the client settings of a user with a password. Without `security` all are the same."""
        if self.security is None:
            return ClientConfig(self.bootstrap_servers)
        return ClientConfig(self.bootstrap_servers, self.security.client_properties(user, mechanism))

    def address(self, node: int) -> str:
        """``host:port`` of one broker, known after `start`."""
        return f"{HOST}:{self._ports[node].client}"

    def pid(self, node: int) -> int | None:
        """Return the process id of one broker's JVM, or None while it does not run."""
        return self._brokers[node].pid

    def start(self) -> None:
        """Start all brokers, and return when each of them serves clients: after about 10 s on 2 cores."""
        for tries_left in reversed(range(_START_TRIES)):
            self._ports = _ports_for(self.nodes)
            self._mutual_ports = {node: free_ports().client for node in self.nodes}
            self._brokers = {node: self._broker(node) for node in self.nodes}
            try:
                self._each(EmbeddedBroker.start)
                break
            except BrokerFailed:  # a port may have been taken since the search
                self.stop()
                if not tries_left:
                    raise
        try:
            self.wait_until_in_sync()
            if self.security is not None:
                self.security.add_users(self.bootstrap_servers)
        except BaseException:  # also KeyboardInterrupt
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all brokers. No effect on those that are down."""
        # A broker that shuts down hands its partitions over. The last ones have no other broker for that, and
        # would wait for a controller until their time is up.
        self._each(EmbeddedBroker.kill)

    def kill(self, node: int) -> None:
        """End one broker with SIGKILL and wait for its end."""
        self._brokers[node].kill()

    @contextmanager
    def paused(self, node: int) -> Iterator[None]:
        """Pause a broker with SIGSTOP until the block ends: it keeps its connections and answers nothing."""
        self._signal(node, signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(node, signal.SIGCONT)

    def restart(self, node: int) -> None:
        """Start one broker again, with its ports and data, after a shutdown if it runs."""
        self._brokers[node].stop()
        self._brokers[node].start()

    def add(self, node: int) -> None:
        """Start one more broker, without a controller. It has no partitions until some are assigned to it."""
        self._ports[node] = free_ports()
        self._mutual_ports[node] = free_ports().client
        self._brokers[node] = self._broker(node)
        self._brokers[node].start()
        self.nodes = (*self.nodes, node)

    def in_sync(self) -> bool:
        """Return True if all brokers serve clients and every partition has all its replicas in sync."""
        return _is_in_sync(self.config_of(ADMIN, "PLAIN"), self.nodes)

    def wait_until_in_sync(self, timeout_s: float = IN_SYNC_TIMEOUT_S) -> None:
        wait_until(self.in_sync, f"brokers {self.nodes} with all replicas in sync", timeout_s)

    def _signal(self, node: int, number: signal.Signals) -> None:
        pid = self._brokers[node].pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _broker(self, node: int) -> EmbeddedBroker:
        ports = self._ports[node]
        voters = ",".join(f"{voter}@{HOST}:{self._ports[voter].controller}" for voter in self._controllers)
        security, secure = self.security, {}
        if security is not None:
            secure = security.broker_settings(ports, self._mutual_ports[node])
        settings = {"node.id": str(node), "controller.quorum.voters": voters, **_SETTINGS, **secure}
        if node not in self._controllers:
            listeners = secure.get("listeners", f"CLIENT://{HOST}:{ports.client}")
            settings |= {"process.roles": "broker", "listeners": listeners.partition(",CONTROLLER:")[0]}
        return EmbeddedBroker(
            self.data_dir / f"broker-{node}",
            ports=ports,
            overrides={**settings, **self._overrides},
            java_options=(*_JAVA_OPTIONS, *(security.java_options if security else ())),
            client_properties=security.client_properties() if security else {},
            cluster_id=self._cluster_id,
        )

    def _each(self, do: Callable[[EmbeddedBroker], None]) -> None:
        """Call `do` for all brokers at once, because a single broker cannot start: it has no quorum."""
        with ThreadPoolExecutor(len(self._brokers)) as pool:
            futures = [pool.submit(do, broker) for broker in self._brokers.values()]
        for future in futures:
            future.result()


def _ports_for(nodes: Iterable[int]) -> dict[int, Ports]:
    ports_of: dict[int, Ports] = {}
    taken: set[int] = set()
    for node in nodes:
        ports = free_ports()
        while taken & set(ports):
            ports = free_ports()
        taken |= set(ports)
        ports_of[node] = ports
    return ports_of


def _is_in_sync(client_config: ClientConfig, nodes: tuple[int, ...]) -> bool:
    try:
        admin = kafka_clients.admin(client_config, bootstrap_timeout_ms=2_000, request_timeout_ms=5_000)
    except KafkaError:
        return False
    try:
        brokers: list[dict[str, Any]] = admin.describe_cluster()["brokers"]
        serving = {broker["broker_id"] for broker in brokers if not broker["is_fenced"]}
        if serving != set(nodes):
            return False
        topics = admin.list_topics()
        partitions = (
            [p for topic in admin.describe_topics(topics) for p in topic["partitions"]] if topics else []
        )
        return all(len(p["isr_nodes"]) == len(p["replica_nodes"]) for p in partitions)
    except KafkaError:
        return False
    finally:
        admin.close()
