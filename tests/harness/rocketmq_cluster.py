"""A real RocketMQ cluster for tests."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from embedded.rocketmq import BrokerNode, EmbeddedRocketMq
from kafka_why.lifetimes import Closeable
from tests.harness.rocketmq_clients import JavaClients
from tests.harness.waiting import wait_until

QUEUES = 7
"""Queues of a test's topic at each broker."""

# Topics are created by the tests. A client's check of a transaction, and a retried message, come soon.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "autoCreateTopicEnable": "false",
        "transactionCheckInterval": "3000",
        "transactionTimeOut": "1000",
        "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
        # A broker refuses a message that has waited for 200 ms, which on a busy machine is no overload.
        "waitTimeMillsInSendQueue": "10000",
        "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
        # A flush is a third of the processor time of a broker without clients.
        "timerFlushIntervalMs": "600000",
    }
)


_PROVIDERS = "org.apache.rocketmq.auth.authentication.provider"
CREDENTIALS = {"access_key": "operator", "secret_key": "12345678"}
ACLS: Mapping[str, str] = MappingProxyType(
    {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{_PROVIDERS}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{_PROVIDERS}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": '{"username": "operator", "password": "12345678"}',
        "innerClientAuthenticationCredentials": '{"accessKey": "operator", "secretKey": "12345678"}',
    }
)
"""Settings of brokers that authenticate clients. CREDENTIALS are those of a user who may do everything."""


@dataclass(frozen=True)
class RocketMqAt:
    """The addresses of a cluster that runs: its name server's, and the brokers' by ``name/id``."""

    name_server: str
    brokers: Mapping[str, str]


@contextmanager
def embedded_rocketmq(
    folder: Path,
    *,
    nodes: Sequence[BrokerNode] = (BrokerNode(),),
    overrides: Mapping[str, str] = MappingProxyType({}),
    java_options: Sequence[str] = (),
) -> Iterator[EmbeddedRocketMq]:
    """Run a cluster until the block ends. It is killed then, because it would take 20 s to end by itself."""
    settings = {**SETTINGS, **overrides}
    cluster = EmbeddedRocketMq(folder, nodes=nodes, overrides=settings, java_options=java_options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def address_of(cluster: EmbeddedRocketMq) -> RocketMqAt:
    brokers = {name: server.address for name, server in cluster.brokers.items()}
    return RocketMqAt(cluster.name_server.address, brokers)


class RocketMqCluster(Closeable):
    """A cluster that runs, and a JVM of RocketMQ's clients at it. Its owner stops the cluster, not this.

    `credentials` are `access_key` and `secret_key`, if the brokers authenticate clients.
    """

    def __init__(self, at: RocketMqAt, folder: Path, **credentials: str) -> None:
        self.at = at
        self.name_server = at.name_server
        self.clients = JavaClients(at.name_server, folder)
        self._admin = self.clients.producer("admin", **credentials)

    @property
    def broker(self) -> str:
        """Address of the first broker."""
        return next(iter(self.at.brokers.values()))

    def create_topic(self, queues: int = QUEUES) -> str:
        """Create a topic at all masters, wait until the name server has it, and return its name."""
        topic = f"orders-{uuid.uuid4().hex[:12]}"
        masters = {name: address for name, address in self.at.brokers.items() if name.endswith("/0")}
        for address in masters.values():
            self._admin.create_topic(topic, queues, address)
        wait_until(lambda: masters.keys() <= self._admin.brokers_of(topic).keys(), f"a route of {topic}")
        return topic

    def close(self) -> None:
        self.clients.kill()
        self.clients.close()


def new_group() -> str:
    """Return a consumer group of its own."""
    return f"group-{uuid.uuid4().hex[:12]}"
