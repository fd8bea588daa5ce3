"""The gateways of `group-coordinator run` for the clients of Kafka and RocketMQ, the embedded RocketMQ
cluster, and the HTTP port of all of them.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import click
from kafka.errors import KafkaError

from cli.gateway_options import ListenerOptions
from cli.page_child import PolledCluster
from cli.rocketmq_options import RocketmqListenerOptions
from embedded.rocketmq import EmbeddedRocketMq
from embedded.supervision import ServerSupervisor
from gateway.metrics.collector import GatewayCollector
from gateway.metrics.numbers import BUCKETS_S, Numbers
from gateway.net.server import GatewayOptions
from gateway.rocketmq.metrics import ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX
from gateway.rocketmq.service import ROCKETMQ_CHECKS, running_rocketmq
from gateway.running import CHECKS, COORDINATOR, LISTENING, Checks, RunningGateway
from gateway.service import running
from kafka_why.cli.output import show_stderr
from kafka_why.cli.parameters import ParsedOption
from kafka_why.connections.rocketmq import parse_name_servers
from kafka_why.contract.service import ReplicaState, ServicePhase, ServiceStatus
from kafka_why.errors import UserFacingError
from kafka_why.metrics.http import CheckNote, CheckResults
from kafka_why.metrics.process import ServiceReadings
from kafka_why.metrics.series import SeriesBounds
from kafka_why.metrics.service import Metrics
from kafka_why.service_state import Durations, GatewayState, durations
from state.config import CoordinatorConfig
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options

EMBEDDED = "embedded"
_ROCKETMQ = "rocketmq"


@dataclass(frozen=True, slots=True)
class ClusterToServe:
    """A RocketMQ cluster that a gateway serves. Without name servers, an embedded one is started."""

    name_servers: tuple[str, ...] = ()

    @contextmanager
    def started(self, data_dir: Path, on_failure: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
        """Yield the addresses of the name servers. An embedded cluster runs until the block ends.

        A server of it that ends is started again. If it does not stay up, `on_failure` gets the reason.
        """
        if self.name_servers:
            yield self.name_servers
            return
        show_stderr("starting a RocketMQ name server and broker")
        with EmbeddedRocketMq(data_dir / "rocketmq", is_long_running=True) as cluster, ExitStack() as stack:
            for server in cluster.servers:
                name = f"the embedded RocketMQ {server.name}"
                stack.enter_context(ServerSupervisor(server, name, on_failure))
            yield (cluster.name_server.address,)


ROCKETMQ_CLUSTER = ParsedOption(
    "HOST:PORT;...|embedded",
    lambda text: ClusterToServe(() if text == EMBEDDED else parse_name_servers(text)),
    f"a list of name servers such as mq-1:9876;mq-2:9876, or {EMBEDDED}",
)
"""Parses to a `ClusterToServe`."""


class _GatewayToStart:
    """A gateway whose options are checked before anything starts."""

    def __init__(self, check_names: Collection[str], drain_timeout_s: float) -> None:
        self._check_names = check_names  # of all its readiness checks
        self._drain_timeout_s = drain_timeout_s
        self._running: RunningGateway | None = None

    @property
    def address(self) -> str | None:
        """The address for clients while the gateway runs."""
        return None if self._running is None else str(self._running.address)

    @contextmanager
    def _while_running(self, gateway: RunningGateway) -> Iterator[None]:
        self._running = gateway
        try:
            yield
        finally:
            self._running = None

    def numbers(self) -> Numbers:
        """Return the gateway's metrics as numbers, or {} before its start."""
        return {} if self._running is None else self._running.numbers()

    def alive(self) -> Checks:
        """Raise TimeoutError if the gateway's event loop is stuck. Otherwise return {}."""
        return {} if self._running is None else self._running.checks(exclude=self._check_names)

    def drain(self) -> None:
        """Answer the requests in progress, for at most the drain timeout, and let clients go elsewhere."""
        if self._running is not None:
            self._running.drain(self._drain_timeout_s)


class RocketmqGatewayToStart(_GatewayToStart):
    """A gateway for RocketMQ's clients. An embedded cluster is started before the gateway."""

    def __init__(self, cluster: ClusterToServe, listening: RocketmqListenerOptions) -> None:
        super().__init__(ROCKETMQ_CHECKS, listening.drain_timeout_s)
        self._cluster = cluster
        self._listening = listening
        self._name_servers: tuple[str, ...] = ()
        self.collector = GatewayCollector(self.numbers, ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX)

    @property
    def polled_cluster(self) -> PolledCluster:
        """The cluster, as the page polls it. It must have been started."""
        return PolledCluster(
            self._name_servers,
            *(
                None if file is None else str(file.absolute())
                for file in (self._listening.acl, self._listening.tls)
            ),
        )

    @contextmanager
    def cluster_started(self, data_dir: Path, on_failure: Callable[[str], None]) -> Iterator[None]:
        """Start the cluster, if it is embedded, until the block ends (see `ClusterToServe.started`).

        Raises RocketMqFailed, JarsUnavailable or JavaNotFound.
        """
        with self._cluster.started(data_dir, on_failure) as self._name_servers:
            yield

    @contextmanager
    def serving(self, options: Options) -> Iterator[None]:
        """Run the gateway in front of this coordinator."""
        with ExitStack() as stack:
            try:
                servers = self._listening.servers(self._name_servers)
                gateway_options = self._listening.options(
                    servers, options.client_config, options.layout, folder=options.folder.absolute()
                )
                gateway = stack.enter_context(running_rocketmq(gateway_options))
            except (UserFacingError, OSError, ValueError, KafkaError) as error:
                raise click.ClickException(f"the gateway for RocketMQ does not start: {error}") from error
            with self._while_running(gateway):
                yield

    def checks(self, exclude: Collection[str]) -> Checks:
        """Return the readiness checks that are not in `exclude`.

        The check of the coordinator is not among them, because `coordinator_checks` returns it.
        """
        if self._running is None:
            return {_ROCKETMQ: "the gateway for RocketMQ's clients has not started"}
        reasons = self._running.checks({*exclude, COORDINATOR})
        return {f"{_ROCKETMQ} {name}": reason for name, reason in reasons.items()}


REPLICA, ALARM = "replica", "alarm"


class KafkaGatewayToStart(_GatewayToStart):
    """A gateway for Kafka's clients.

    The constructor raises BadParameter, SecurityError, QuotasError or AclsUnreadable for invalid options.
    """

    def __init__(self, listening: ListenerOptions, reply_partitions: int) -> None:
        super().__init__(CHECKS, listening.drain_timeout_s)
        self._listening = listening
        self.collector = GatewayCollector(self.numbers)
        partition = listening.reply_partition
        if partition is not None and partition >= reply_partitions:
            reason = f"{partition} is not one of 0 to {reply_partitions - 1}"
            raise click.BadParameter(reason, param_hint="--reply-partition")
        self._security = listening.security()
        listening.check_files()

    def options(self, options: Options) -> GatewayOptions:
        """Return the gateway's options for this coordinator. Both decide which protocols are offered."""
        offered = self._listening.options(options.client_config, options.layout, self._security)
        config = CoordinatorConfig().with_settings(options.settings)
        return replace(
            offered,
            consumer_protocol=offered.consumer_protocol and config.consumer_protocol,
            streams_protocol=offered.streams_protocol and config.streams_protocol,
        )

    @contextmanager
    def serving(self, options: Options) -> Iterator[str]:
        """Run the gateway in front of this coordinator. Yield the address for clients."""
        with ExitStack() as stack:
            try:
                gateway = stack.enter_context(running(self.options(options)))
            except (UserFacingError, KafkaError) as error:
                raise click.ClickException(f"the gateway does not start: {error}") from error
            with self._while_running(gateway):
                yield str(gateway.address)

    def checks(self, exclude: Collection[str]) -> Checks:
        """Return the readiness checks that are not in `exclude`.

        The check of the coordinator is not among them, because `coordinator_checks` returns it.
        """
        if self._running is None:
            return {LISTENING: "the gateway has not started"}
        return self._running.checks({*exclude, COORDINATOR})


Gateways = Sequence[KafkaGatewayToStart | RocketmqGatewayToStart]


def coordinator_checks(status: ServiceStatus, replica: ReplicaState) -> CheckResults:
    """Return the checks of the coordinator.

    It is ready if its query, another coordinator, or the replica (a process that answers ahead of the query)
    answers.
    """
    failure: str | CheckNote | None = f"{status.phase}: {status.reason}"
    if status.phase in (ServicePhase.READY, ServicePhase.STANDBY):
        failure = None
    elif replica.is_answering and status.phase is not ServicePhase.STOPPED:
        failure = CheckNote(f"{failure}. The replica answers")
    # The replica's check never fails, because the query answers without it; an alarm is only a note.
    checks: dict[str, str | CheckNote | None] = {COORDINATOR: failure, REPLICA: CheckNote(replica.phrase)}
    return checks if status.alarm is None else {**checks, ALARM: CheckNote(status.alarm)}


def gateway_state(numbers: Numbers) -> GatewayState:
    """Return a gateway's state from its metrics."""
    # The gauge has no labels, so its only key is (). It is absent before the gateway's start.
    (connections,) = numbers.get("connections", {}).get((), [0.0])
    return GatewayState(
        connections=round(connections),
        latencies=_durations(numbers, "request_duration_seconds"),
        answers=_durations(numbers, "coordinator_duration_seconds"),
    )


def _durations(numbers: Numbers, name: str) -> dict[str, Durations]:
    """Return the histograms of this name that are not empty, by their label."""
    durations_by_label: dict[str, Durations] = {}
    # The numbers of a histogram are the counts of its buckets, then the sum.
    for (label,), (*bucket_counts, sum_s) in sorted(numbers.get(name, {}).items()):
        label_durations = durations(BUCKETS_S, list(accumulate(bucket_counts)), sum_s)
        if label_durations is not None:
            durations_by_label[label] = label_durations
    return durations_by_label


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
    kafka = next((gateway for gateway in gateways if isinstance(gateway, KafkaGatewayToStart)), None)

    def alive(_: Collection[str]) -> CheckResults:
        return {name: reason for gateway in gateways for name, reason in gateway.alive().items()}

    def ready(exclude: Collection[str]) -> CheckResults:
        coordinator_results = coordinator_checks(coordinator.status.current, coordinator.replica())
        checks: dict[str, str | CheckNote | None] = {}
        for gateway in gateways:
            checks |= gateway.checks(exclude)
        return checks | {name: it for name, it in coordinator_results.items() if name not in exclude}

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
        collectors=[gateway.collector for gateway in gateways],
        checks={"/healthz": alive, "/readyz": ready},
    )
    coordinator.on_batch = metrics.observe_batch
    return metrics
