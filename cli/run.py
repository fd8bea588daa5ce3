"""`group-coordinator run`: the coordinator, with an embedded broker unless it is given a cluster."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import click
import msgspec
import structlog
from click.core import ParameterSource

from cli.gateway_options import LISTENER_OPTION_NAMES
from cli.live_view import LiveView
from cli.page_child import PageStart, PolledCluster
from cli.rocketmq_options import ROCKETMQ_OPTION_NAMES
from cli.run_gateway import Gateways, KafkaGatewayToStart, RocketmqGatewayToStart, metrics_and_checks
from cli.run_options import NO_GATEWAY, RunOptions, run_options
from embedded.broker import EmbeddedBroker
from embedded.supervision import ServerSupervisor
from kafka_why.cli.output import (
    StopEvent,
    exit_on_signals,
    show,
    show_encoded,
    show_stderr,
    stop_on_signals,
    watching_threads,
)
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ServicePhase
from kafka_why.groups.gather import BrokerGroup, BrokerGroups, broker_group_sentence
from kafka_why.lifetimes import Closeable
from kafka_why.local_files import ServiceFolder
from kafka_why.page.commands import CoordinatorLog
from kafka_why.web import listening_at, url_of
from streaming.query.session import LOOPBACK
from streaming.service.coordinator import Coordinator
from streaming.service.ownership.owner import NotOwner
from streaming.service.starts import Options, backoff_s

_STABLE_S = 60.0  # after a run of this length, the pause before the next start is the shortest again
_END_GRACE_S = 3.0

log = structlog.get_logger()


class RunPage(Closeable):
    """The page's process on this machine, from `start` to `close`. If it ends, it is started again.

    The page has its own process, because readers must not slow the service's threads. The constructor opens
    the socket, so the address is known and never changes. Raises WebUnavailable.
    """

    def __init__(self, port: int) -> None:
        self._socket = listening_at(LOOPBACK, port)
        self.url = url_of(self._socket)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        connect_to: str,
        metrics_url: str,
        log: CoordinatorLog,
        *,
        watches_broker: bool = False,
        rocketmq: PolledCluster | None = None,
    ) -> None:
        """Start the process. The topics must exist. `metrics_url` is that of the service.

        `watches_broker` and `rocketmq` are as in `kafka_why.page.server.Page`.
        """
        start = PageStart(
            client_config=client_config,
            layout=layout,
            listening=self._socket.fileno(),
            connect_to=connect_to,
            metrics_url=metrics_url,
            log=log,
            watches_broker=watches_broker,
            rocketmq=rocketmq,
        )
        self._thread = threading.Thread(
            target=self._supervise, args=(start,), name="page-keeper", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the process. This may be called again."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            _end_process(process)
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _supervise(self, start: PageStart) -> None:
        restarts = 0
        while not self._stopping.wait(backoff_s(restarts)):
            started_s = time.monotonic()
            exit_code = self._run(start)
            if self._stopping.is_set():
                return
            log.warning("the page has ended, it is started again", code=exit_code)
            restarts = 1 if time.monotonic() - started_s > _STABLE_S else restarts + 1

    def _run(self, start: PageStart) -> int | None:
        """Run the process until it ends. Return its exit code, or None if `close` came before its start."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "cli.page_child"],
                stdin=subprocess.PIPE,
                pass_fds=(start.listening,),
                # A terminal sends Ctrl-C to its whole process group. This process itself ends the page.
                process_group=0,
            )
        assert process.stdin is not None
        with suppress(OSError):  # the process has ended already: `wait` returns its exit code
            process.stdin.write(msgspec.json.encode(start) + b"\n")
            process.stdin.flush()
        exit_code = process.wait()
        with suppress(OSError):
            process.stdin.close()
        return exit_code


def _end_process(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class OtherGroups(BrokerGroups):
    """A poller of the groups of the broker's own coordinator, whose clients do not use the gateway.

    With `is_logged`, each group is logged once.
    """

    def __init__(self, coordinator: Coordinator, *, is_logged: bool) -> None:
        super().__init__(
            coordinator.options.client_config,
            lambda group: log.warning(self._sentence(group)) if is_logged else None,
        )
        self._coordinator = coordinator

    def sentences(self) -> list[str]:
        """Return a sentence for each present group."""
        return [self._sentence(group) for group in self.groups]

    def _sentence(self, group: BrokerGroup) -> str:
        servers = self._coordinator.options.client_config.bootstrap_servers
        return broker_group_sentence(group, servers, self._coordinator.gateway_address)


class TopicsBelongToAnother(click.ClickException):
    """The error when the topics belong to another coordinator. A restart would fail again."""

    exit_code = 78  # EX_CONFIG of sysexits.h


@click.command()
@run_options
def run(options: RunOptions) -> None:
    """Run the coordinator, with a gateway for Kafka's clients, until Ctrl-C."""
    gateways = _gateways_to_start(options)
    stop = StopEvent()
    exit_on_signals()
    with ExitStack() as stack:
        stack.enter_context(watching_threads(stop.fail))
        try:
            # On a terminal the live view shows the rebalances, and log lines would break its table.
            log_rebalances = options.as_json or not sys.stderr.isatty()
            page = stack.enter_context(RunPage(options.page_port)) if options.has_page else None
            coordinator = _prepare_coordinator(stack, stop, gateways, options)
            metrics = stack.enter_context(
                metrics_and_checks(
                    coordinator,
                    gateways,
                    options.metrics_host,
                    options.metrics_port,
                    log_rebalances=log_rebalances,
                    with_members=options.metrics_members,
                    series=options.series,
                )
            )
            stack.enter_context(coordinator)
            metrics.follow()
        except NotOwner as error:
            raise TopicsBelongToAnother(str(error)) from error
        stop_on_signals(stop)
        if _wait_until_ready(coordinator, stop):
            rocketmq = next((g for g in gateways if isinstance(g, RocketmqGatewayToStart)), None)
            if page is not None:
                _start_page(
                    page, coordinator, metrics.url, rocketmq, watches_broker=options.client_config is None
                )
                stack.callback(page.close)  # before the broker ends, because the page would warn of that
            _show_ready(
                coordinator,
                metrics.url,
                page_url=None if page is None else page.url,
                rocketmq=None if rocketmq is None else rocketmq.address,
                as_json=options.as_json,
            )
            others = OtherGroups(coordinator, is_logged=log_rebalances)
            if options.client_config is None:
                stack.enter_context(others)
            _show_groups(coordinator, others, stop, as_json=options.as_json)
        coordinator.failure = coordinator.failure or stop.failure  # the status has the reason too
        if coordinator.is_deposed:
            raise TopicsBelongToAnother(str(coordinator.failure))
        if coordinator.failure is not None:
            raise click.ClickException(coordinator.failure)
        show_stderr("stopping")
        exit_on_signals()  # a second signal ends the command without a drain
        for gateway in gateways:
            gateway.drain()


def _prepare_coordinator(
    stack: ExitStack,
    stop: StopEvent,
    gateways: Gateways,
    command_options: RunOptions,
) -> Coordinator:
    """Return the coordinator, with the broker that it needs. The stack ends what is started here."""
    folder = ServiceFolder(command_options.data_dir / "coordinator")
    stack.enter_context(folder.locked())  # before anything starts, so that a second coordinator fails at once
    client_config = command_options.client_config
    if client_config is None:
        show_stderr("starting a Kafka broker")
        # `is_long_running` adds the JVM's optimizing compiler. With the quick compiler alone, responses
        # through the gateway take three times as long: docs/tuning.md
        embedded = EmbeddedBroker(
            command_options.data_dir / "broker",
            overrides=command_options.broker_config(),
            is_long_running=True,
        )
        client_config = stack.enter_context(embedded).client_config
        stack.enter_context(ServerSupervisor(embedded, "the embedded broker", stop.fail))
    options = command_options.coordinator_options(client_config, folder.path)
    show_stderr(f"starting the coordinator on {client_config}")
    for gateway in gateways:
        if isinstance(gateway, RocketmqGatewayToStart):
            stack.enter_context(gateway.cluster_started(command_options.data_dir, stop.fail))
    opening = partial(_serving_gateways, gateways, options) if gateways else None
    return Coordinator(options, on_failure=stop.set, folder=folder, gateway=opening)


def _gateways_to_start(options: RunOptions) -> Gateways:
    gateways: list[KafkaGatewayToStart | RocketmqGatewayToStart] = []
    if options.no_gateway:
        _check_absent(LISTENER_OPTION_NAMES, f"{NO_GATEWAY} cannot be combined with")
    else:
        gateways.append(KafkaGatewayToStart(options.listening, options.reply_partitions))
    if options.rocketmq_cluster is None:
        _check_absent(ROCKETMQ_OPTION_NAMES, "--rocketmq is needed for")
    else:
        gateways.append(RocketmqGatewayToStart(options.rocketmq_cluster, options.rocketmq))
    return gateways


@contextmanager
def _serving_gateways(gateways: Gateways, options: Options) -> Iterator[str | None]:
    """Run the gateways in front of the coordinator. Yield the address for Kafka's clients, or None."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(gateway.serving(options)) for gateway in gateways]
        yield addresses[0]  # Kafka's gateway is the first; RocketMQ's yields None


def _check_absent(names: Collection[str], why: str) -> None:
    """Raise UsageError, beginning with `why`, if one of these options is given."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if parameter.name in names and given:
            raise click.UsageError(f"{why} {parameter.opts[0]}")


def _wait_until_ready(coordinator: Coordinator, stop: threading.Event) -> bool:
    while not stop.is_set():
        if coordinator.status.wait_for(ServicePhase.READY, timeout_s=0.2):
            return True
    return False


def _start_page(
    page: RunPage,
    coordinator: Coordinator,
    metrics_url: str,
    rocketmq: RocketmqGatewayToStart | None,
    *,
    watches_broker: bool,
) -> None:
    options = coordinator.options
    page.start(
        options.client_config,
        options.layout,
        coordinator.gateway_address or str(options.client_config),
        metrics_url,
        CoordinatorLog.of(options.client_config, options.checkpoint or str(options.folder.absolute())),
        watches_broker=watches_broker,
        rocketmq=None if rocketmq is None else rocketmq.polled_cluster,
    )


def _show_ready(
    coordinator: Coordinator, metrics_url: str, *, page_url: str | None, rocketmq: str | None, as_json: bool
) -> None:
    options = coordinator.options
    gateway = coordinator.gateway_address
    ready = {
        "broker": str(options.client_config),
        "gateway": gateway,
        "rocketmq": rocketmq,
        "requests_topic": options.layout.requests_topic,
        "responses_topic": options.layout.responses_topic,
        "events_topic": options.layout.events_topic,
        "groups_topic": options.layout.groups_topic,
        "page": page_url,
        "ui": coordinator.ui_url,
        "metrics": metrics_url,
        "data_dir": str(options.folder.parent.absolute()),
    }
    if as_json:
        show_encoded(json.dumps(ready))
    else:
        for_clients = (
            f"Kafka clients take bootstrap.servers={gateway}" if gateway else "no gateway was started"
        )
        show(
            f"ready: {for_clients}; "
            f"{'' if rocketmq is None else f'RocketMQ clients take namesrvAddr={rocketmq}; '}"
            f"{'' if page_url is None else f'see your groups at {page_url}; '}"
            f"broker {ready['broker']}, requests on {ready['requests_topic']}, "
            f"replica {coordinator.replica().phase}, "
            f"Spark UI {ready['ui']}, metrics {ready['metrics']}, data in {ready['data_dir']}"
        )


def _show_groups(
    coordinator: Coordinator, others: OtherGroups, stop: threading.Event, *, as_json: bool
) -> None:
    if as_json:
        stop.wait()
        return
    options = coordinator.options
    LiveView(
        options.client_config,
        options.layout,
        replica=lambda: coordinator.replica().phase,
        remarks=others.sentences,
    ).run(stop)
