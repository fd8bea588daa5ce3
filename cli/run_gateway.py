"""The gateways of `group-coordinator run` for the clients of Kafka and RocketMQ, the embedded RocketMQ
cluster, and the HTTP port of all of them.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import click
from kafka.errors import KafkaError

from cli.gateway_options import Listening
from cli.page_child import PolledCluster
from cli.rocketmq_options import RocketmqListening
from embedded.rocketmq import EmbeddedRocketMq
from gateway.metrics.collector import GatewayCollector
from gateway.metrics.numbers import BUCKETS_S, Numbers
from gateway.net.server import GatewayOptions
from gateway.rocketmq.metrics import ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX
from gateway.rocketmq.service import ROCKETMQ_CHECKS, ROCKETMQ_STARTUP_ERRORS, running_rocketmq
from gateway.running import CHECKS, COORDINATOR, LISTENING, Checks, RunningGateway
from gateway.running import Checks as GatewayChecks
from gateway.service import STARTUP_ERRORS, running
from kafka_why.cli.output import show_stderr
from kafka_why.cli.parameters import ParsedOption
from kafka_why.connections.rocketmq import parse_name_servers
from kafka_why.contract.service import ReplicaState, ServicePhase, ServiceStatus
from kafka_why.metrics.http import CheckNote, CheckResults
from kafka_why.metrics.process import ServiceReadings
from kafka_why.metrics.series import SeriesBounds
from kafka_why.metrics.service import Metrics
from kafka_why.service_state import Durations, GatewayState, durations
from kafka_why.topic_reader import ClientError
from state.config import CoordinatorConfig
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options

EMBEDDED = "embedded"
_ROCKETMQ = "rocketmq"


@dataclass(frozen=True, slots=True)
class ClusterToServe:
    """A RocketMQ cluster, by its name servers. Without any, an embedded one is started."""

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
    """A gateway for RocketMQ's clients. If its cluster is embedded, that is started first."""

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

    @property
    def polled_cluster(self) -> PolledCluster:
        """The cluster, as the page polls it. It must have been started."""
        files = (self._listening.acl, self._listening.tls)
        return PolledCluster(
            self._name_servers, *(None if file is None else str(file.absolute()) for file in files)
        )

    @contextmanager
    def cluster_started(self, data_dir: Path) -> Iterator[None]:
        """Start the cluster, if it is embedded, until the block ends.

        Raises RocketMqFailed, JarsUnavailable or JavaNotFound.
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
        """Return the checks of the gateway's process. Raises TimeoutError if its event loop is stuck."""
        return {} if self._running is None else self._running.checks(ROCKETMQ_CHECKS)

    def checks(self, exclude: Collection[str]) -> Checks:
        """Return the gateway's checks, without the one of the coordinator, whose state this process knows."""
        if self._running is None:
            return {_ROCKETMQ: "the gateway for RocketMQ's clients has not started"}
        found = self._running.checks({*exclude, COORDINATOR})
        return {f"{_ROCKETMQ} {name}": reason for name, reason in found.items()}

    def drain(self) -> None:
        """Let clients go to another gateway before the coordinator ends."""
        if self._running is not None:
            self._running.drain(self._listening.drain_timeout_s)

    def _numbers(self) -> Numbers:
        return {} if self._running is None else self._running.numbers()


REPLICA, ALARM = "replica", "alarm"


class GatewayToStart:
    """A gateway whose options are checked before anything starts."""

    def __init__(self, listening: Listening, reply_partitions: int) -> None:
        self._listening = listening
        self._running: RunningGateway | None = None
        self.collector = GatewayCollector(self.numbers)
        partition = listening.reply_partition
        if partition is not None and partition >= reply_partitions:
            reason = f"{partition} is not one of 0 to {reply_partitions - 1}"
            raise click.BadParameter(reason, param_hint="--reply-partition")
        try:
            self._security = listening.security()
            listening.check_files()
        except STARTUP_ERRORS as error:
            raise click.ClickException(str(error)) from error

    def options(self, options: Options) -> GatewayOptions:
        """Return the gateway's options for this coordinator. Both must enable a protocol."""
        wanted = self._listening.options(options.client_config, options.layout, self._security)
        config = CoordinatorConfig().with_settings(options.settings)
        return replace(
            wanted,
            consumer_protocol=wanted.consumer_protocol and config.consumer_protocol,
            streams_protocol=wanted.streams_protocol and config.streams_protocol,
        )

    @contextmanager
    def serving(self, options: Options) -> Iterator[str]:
        """Run the gateway in front of this coordinator. Yield the address for clients."""
        with ExitStack() as stack:
            try:
                self._running = stack.enter_context(running(self.options(options)))
            except (*STARTUP_ERRORS, ClientError, KafkaError) as error:
                raise click.ClickException(f"the gateway does not start: {error}") from error
            try:
                yield str(self._running.address)
            finally:
                self._running = None

    def numbers(self) -> Numbers:
        """Return the gateway's metrics as numbers, or {} before its start."""
        return {} if self._running is None else self._running.numbers()

    def alive(self) -> GatewayChecks:
        """Return the checks of the gateway's process. Raises TimeoutError if its event loop is stuck."""
        return {} if self._running is None else self._running.checks(CHECKS)

    def checks(self, exclude: Collection[str]) -> GatewayChecks:
        """Return the gateway's checks, without the one of the coordinator, whose state this process knows."""
        if self._running is None:
            return {LISTENING: "the gateway has not started"}
        return self._running.checks({*exclude, COORDINATOR})

    def drain(self) -> None:
        """Answer the requests in progress, before the coordinator ends."""
        if self._running is not None:
            self._running.drain(self._listening.drain_timeout_s)


Gateways = Sequence[GatewayToStart | RocketmqToStart]


def coordinator_checks(status: ServiceStatus, replica: ReplicaState) -> CheckResults:
    """Return the checks of the coordinator.

    It is ready if the query, its replica or another coordinator answers.
    """
    why: str | CheckNote | None = f"{status.phase}: {status.reason}"
    if status.phase in (ServicePhase.READY, ServicePhase.STANDBY):
        why = None
    elif replica.is_answering and status.phase is not ServicePhase.STOPPED:
        why = CheckNote(f"{why}. The replica answers")
    # The replica's check never fails, because the query answers without it; an alarm is only a note.
    found: dict[str, str | CheckNote | None] = {COORDINATOR: why, REPLICA: CheckNote(replica.phrase)}
    return found if status.alarm is None else {**found, ALARM: CheckNote(status.alarm)}


def gateway_state(numbers: Numbers) -> GatewayState:
    """Return a gateway's state from what it has counted."""
    (connections,) = numbers.get("connections", {}).get((), [0.0])
    return GatewayState(
        connections=round(connections),
        latencies=_durations(numbers, "request_duration_seconds"),
        answers=_durations(numbers, "coordinator_duration_seconds"),
    )


def _durations(numbers: Numbers, name: str) -> dict[str, Durations]:
    """Return the histograms of this name that are not empty, by their label."""
    found: dict[str, Durations] = {}
    for (label,), (*counted, sum_s) in sorted(numbers.get(name, {}).items()):
        of_label = durations(BUCKETS_S, list(accumulate(counted)), sum_s)
        if of_label is not None:
            found[label] = of_label
    return found


def metrics_and_checks(
    coordinator: Coordinator,
    gateways: Gateways,
    host: str,
    port: int,
    *,
    log_rebalances: bool,
    with_members: bool = False,
    series: SeriesBounds | None = None,
) -> Metrics:
    """Return the metrics of a coordinator and its gateways, with /healthz and /readyz (see `Metrics`).

    They count the coordinator's batches from now on.
    """
    kafka = next((one for one in gateways if isinstance(one, GatewayToStart)), None)

    def alive(_: Collection[str]) -> CheckResults:
        return {name: why for one in gateways for name, why in one.alive().items()}

    def ready(exclude: Collection[str]) -> CheckResults:
        of_coordinator = coordinator_checks(coordinator.status.current, coordinator.replica())
        found: dict[str, str | CheckNote | None] = {}
        for one in gateways:
            found |= one.checks(exclude)
        return found | {name: why for name, why in of_coordinator.items() if name not in exclude}

    metrics = Metrics(
        coordinator.options.client_config,
        coordinator.options.layout,
        host,
        port,
        ServiceReadings(
            status=lambda: coordinator.status.current,
            ticker_age_s=coordinator.ticker_age_s,
            spark_restarts=lambda: coordinator.spark_restarts,
            transactions=coordinator.transactions,
            share_state=coordinator.share_state,
            replica=coordinator.replica,
            gateway=None if kafka is None else lambda: gateway_state(kafka.numbers()),
        ),
        log_rebalances=log_rebalances,
        with_members=with_members,
        series=series,
        collectors=[one.collector for one in gateways],
        checks={"/healthz": alive, "/readyz": ready},
    )
    coordinator.on_batch = metrics.observe_batch
    return metrics
