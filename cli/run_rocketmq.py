"""RocketMQ at `group-coordinator run`: the gateway for its clients, and the embedded cluster."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from kafka.errors import KafkaError

from cli.rocketmq_options import RocketmqListening
from embedded.rocketmq import EmbeddedRocketMq
from gateway.health import COORDINATOR, Checks
from gateway.metrics.collector import GatewayCollector
from gateway.metrics.numbers import Numbers
from gateway.rocketmq.metrics import ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX
from gateway.rocketmq.service import ROCKETMQ_CHECKS, ROCKETMQ_STARTUP_ERRORS, running_rocketmq
from gateway.running import RunningGateway
from kafka_why.cli.output import show_stderr
from kafka_why.cli.parameters import ParsedOption
from kafka_why.connections.rocketmq import parse_name_servers
from kafka_why.topic_reader import ClientError
from streaming.service.options import Options

EMBEDDED = "embedded"
_ROCKETMQ = "rocketmq"


@dataclass(frozen=True, slots=True)
class ClusterToServe:
    """A RocketMQ cluster by the addresses of its name servers. Without any, an embedded one is started."""

    name_servers: tuple[str, ...] = ()

    @contextmanager
    def started(self, data_dir: Path) -> Iterator[tuple[str, ...]]:
        """Yield the addresses of the name servers. An embedded cluster runs until the block ends."""
        if self.name_servers:
            yield self.name_servers
            return
        show_stderr("starting a RocketMQ name server and broker")
        with EmbeddedRocketMq(data_dir / "rocketmq", is_long_running=True) as cluster:
            yield (cluster.name_server.address,)


ROCKETMQ_CLUSTER = ParsedOption(
    "HOST:PORT;...|embedded",
    lambda text: ClusterToServe(() if text == EMBEDDED else parse_name_servers(text)),
    f"a list of name servers such as mq-1:9876;mq-2:9876, or {EMBEDDED}",
)
"""Parses to a `ClusterToServe`."""


class RocketmqToStart:
    """A gateway for RocketMQ's clients, in front of a cluster that is started first if it is embedded."""

    def __init__(self, cluster: ClusterToServe, listening: RocketmqListening) -> None:
        self._cluster = cluster
        self._listening = listening
        self._running: RunningGateway | None = None
        self._name_servers: tuple[str, ...] = ()
        self.collector = GatewayCollector(self._numbers, ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX)

    @property
    def address(self) -> str | None:
        """The address for clients while the gateway runs."""
        return None if self._running is None else str(self._running.address)

    @contextmanager
    def cluster_started(self, data_dir: Path) -> Iterator[None]:
        """Start the cluster if it is an embedded one, which runs until the block ends. Raises RocketMqFailed,
        JarsUnavailable or JavaNotFound.
        """
        with self._cluster.started(data_dir) as self._name_servers:
            yield

    @contextmanager
    def serving(self, options: Options) -> Iterator[None]:
        """Run the gateway in front of this coordinator."""
        with ExitStack() as stack:
            try:
                servers = self._listening.servers(self._name_servers)
                wanted = self._listening.options(
                    servers, options.client_config, options.layout, folder=options.folder.absolute()
                )
                self._running = stack.enter_context(running_rocketmq(wanted))
            except (*ROCKETMQ_STARTUP_ERRORS, OSError, ValueError, ClientError, KafkaError) as error:
                raise click.ClickException(f"the gateway for RocketMQ does not start: {error}") from error
            try:
                yield
            finally:
                self._running = None

    def alive(self) -> Checks:
        """Return the checks of the gateway's process. Raises TimeoutError if its event loop does not
        answer.
        """
        return {} if self._running is None else self._running.checks(ROCKETMQ_CHECKS)

    def checks(self, exclude: Collection[str]) -> Checks:
        """Return the gateway's checks except that of the coordinator, whose state this process knows."""
        if self._running is None:
            return {_ROCKETMQ: "the gateway for RocketMQ's clients has not started"}
        found = self._running.checks({*exclude, COORDINATOR})
        return {f"{_ROCKETMQ} {name}": reason for name, reason in found.items()}

    def drain(self) -> None:
        """Let clients go to another gateway, before the coordinator ends."""
        if self._running is not None:
            self._running.drain(self._listening.rocketmq_drain_timeout_s)

    def _numbers(self) -> Numbers:
        return {} if self._running is None else self._running.numbers()
