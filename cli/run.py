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

from cli.gateway_options import LISTENING
from cli.live_view import LiveView
from cli.page_child import PageStart, PolledCluster
from cli.rocketmq_options import ROCKETMQ_LISTENING
from cli.run_gateway import Gateways, GatewayToStart, RocketmqToStart, metrics_and_checks
from cli.run_options import NO_GATEWAY, RunOptions, run_options
from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.broker_supervision import SupervisedBroker
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from embedded.rocketmq import RocketMqFailed
from kafka_why.cli.output import (
    StopEvent,
    configure_logs,
    exit_on_signals,
    failure_in_lines,
    show,
    show_encoded,
    show_stderr,
    stop_on_signals,
    watching_threads,
)
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ServicePhase
from kafka_why.groups.gather import BrokerGroup, BrokerGroups, sentence
from kafka_why.lifetimes import Closeable
from kafka_why.local_files import FolderError, ServiceFolder
from kafka_why.page.commands import CoordinatorLog
from kafka_why.web import WebUnavailable, listening_at, url_of
from streaming.query.jvm import SparkFailed
from streaming.query.session import LOOPBACK
from streaming.service.coordinator import Coordinator
from streaming.service.ownership.owner import NotOwner
from streaming.service.starts import Options, backoff_s
from streaming.service.topics import TopicsError

# The page of `run`: a separate process, because readers must not slow the service's threads.


_WORKS_S = 60.0
_END_GRACE_S = 3.0

log = structlog.get_logger()


class RunPage(Closeable):
    """The page's process on this machine, from `start` to `close`. If it ends, it is started again.

    The constructor opens the socket, so the address is known and never changes. Raises WebUnavailable.
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
        """Begin to serve when the topics are there. `metrics_url` is that of the service.

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
            _end(process)
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _supervise(self, start: PageStart) -> None:
        restarts = 0
        while not self._stopping.wait(backoff_s(restarts)):
            began_s = time.monotonic()
            code = self._run(start)
            if self._stopping.is_set():
                return
            log.warning("the page has ended, it is started again", code=code)
            restarts = 1 if time.monotonic() - began_s > _WORKS_S else restarts + 1

    def _run(self, start: PageStart) -> int | None:
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
        with suppress(OSError):  # it has ended, which is found below
            process.stdin.write(msgspec.json.encode(start) + b"\n")
            process.stdin.flush()
        code = process.wait()
        with suppress(OSError):
            process.stdin.close()
        return code


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# `group-coordinator run`: the coordinator, with an embedded broker unless it is given a cluster.


STARTUP_ERRORS = (
    BrokerFailed,
    FolderError,
    JarsUnavailable,
    JavaNotFound,
    RocketMqFailed,
    WebUnavailable,
    SparkFailed,
    TopicsError,
)


class OtherGroups(BrokerGroups):
    """A poller of the groups of the broker's own coordinator. With `is_logged`, each is logged once."""

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
        return sentence(group, servers, self._coordinator.gateway_address)


class TopicsBelongToAnother(click.ClickException):
    """The error when the topics belong to another coordinator. A restart would fail again."""

    exit_code = 78  # EX_CONFIG of sysexits.h


@click.command()
@run_options
def run(options: RunOptions) -> None:
    """Run the coordinator, with a gateway for Kafka's clients, until Ctrl-C."""
    configure_logs()
    gateways = _gateways(options)
    stop = StopEvent()
    exit_on_signals()
    with ExitStack() as stack:
        stack.enter_context(watching_threads(stop.fail))
        try:
            # On a terminal the live view shows the rebalances, and log lines would break its table.
            log_rebalances = options.as_json or not sys.stderr.isatty()
            page = stack.enter_context(RunPage(options.page_port)) if options.has_page else None
            coordinator = _prepare(stack, stop, gateways, options)
            metrics = metrics_and_checks(
                coordinator,
                gateways,
                options.metrics_host,
                options.metrics_port,
                log_rebalances=log_rebalances,
                with_members=options.metrics_members,
                series=options.series,
            )
            stack.enter_context(metrics)
            stack.enter_context(coordinator)
            metrics.follow()
        except NotOwner as error:
            raise TopicsBelongToAnother(str(error)) from error
        except STARTUP_ERRORS as error:
            raise failure_in_lines(error) from error
        stop_on_signals(stop)
        if _wait_until_ready(coordinator, stop):
            rocketmq = next((one for one in gateways if isinstance(one, RocketmqToStart)), None)
            if page is not None:
                _start(page, coordinator, metrics.url, rocketmq, watches_broker=options.client_config is None)
                stack.callback(page.close)  # before the broker ends, because the page would warn of that
            _show_ready(
                coordinator,
                metrics.url,
                None if page is None else page.url,
                None if rocketmq is None else rocketmq.address,
                as_json=options.as_json,
            )
            others = OtherGroups(coordinator, is_logged=log_rebalances)
            if options.client_config is None:
                stack.enter_context(others)
            _show(coordinator, others, stop, as_json=options.as_json)
        coordinator.failure = coordinator.failure or stop.failure  # the status has the reason too
        if coordinator.is_deposed:
            raise TopicsBelongToAnother(str(coordinator.failure))
        if coordinator.failure is not None:
            raise click.ClickException(coordinator.failure)
        show_stderr("stopping")
        exit_on_signals()  # a second one ends it at once
        for gateway in gateways:
            gateway.drain()


def _prepare(
    stack: ExitStack,
    stop: StopEvent,
    gateways: Gateways,
    given: RunOptions,
) -> Coordinator:
    """Return the coordinator, with the broker that it needs. The stack ends what is started here."""
    folder = ServiceFolder(given.data_dir / "coordinator")
    stack.enter_context(folder.locked())  # before anything starts, so that a second coordinator fails at once
    client_config = given.client_config
    if client_config is None:
        show_stderr("starting a Kafka broker")
        # With the JVM's quick compiler alone, responses through the gateway take three times as long:
        # docs/tuning.md
        embedded = EmbeddedBroker(given.data_dir / "broker", overrides=given.broker(), is_long_running=True)
        broker = SupervisedBroker(embedded, stop.fail)
        client_config = stack.enter_context(broker).client_config
    options = given.coordinator(client_config, folder.path)
    show_stderr(f"starting the coordinator on {client_config}")
    for gateway in gateways:
        if isinstance(gateway, RocketmqToStart):
            stack.enter_context(gateway.cluster_started(given.data_dir))
    opening = partial(_serving, gateways, options) if gateways else None
    return Coordinator(options, on_failure=stop.set, folder=folder, gateway=opening)


def _gateways(options: RunOptions) -> Gateways:
    gateways: list[GatewayToStart | RocketmqToStart] = []
    if options.no_gateway:
        _check_absent(LISTENING, f"{NO_GATEWAY} cannot be combined with")
    else:
        gateways.append(GatewayToStart(options.listening, options.reply_partitions))
    if options.rocketmq_cluster is None:
        _check_absent(ROCKETMQ_LISTENING, "--rocketmq is needed for")
    else:
        gateways.append(RocketmqToStart(options.rocketmq_cluster, options.rocketmq))
    return gateways


@contextmanager
def _serving(gateways: Gateways, options: Options) -> Iterator[str | None]:
    """Run the gateways in front of the coordinator. Yield the address for Kafka's clients, or None."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(one.serving(options)) for one in gateways]
        yield addresses[0]


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


def _start(
    page: RunPage,
    coordinator: Coordinator,
    metrics_url: str,
    rocketmq: RocketmqToStart | None,
    *,
    watches_broker: bool,
) -> None:
    options = coordinator.options
    connect_to = coordinator.gateway_address or str(options.client_config)
    log = CoordinatorLog.of(options.client_config, options.checkpoint or str(options.folder.absolute()))
    page.start(
        options.client_config,
        options.layout,
        connect_to,
        metrics_url,
        log,
        watches_broker=watches_broker,
        rocketmq=None if rocketmq is None else rocketmq.polled_cluster,
    )


def _show_ready(
    coordinator: Coordinator, metrics_url: str, page_url: str | None, rocketmq: str | None, *, as_json: bool
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


def _show(coordinator: Coordinator, others: OtherGroups, stop: threading.Event, *, as_json: bool) -> None:
    if as_json:
        stop.wait()
        return
    options = coordinator.options
    view = LiveView(
        options.client_config,
        options.layout,
        replica=lambda: coordinator.replica().phase,
        remarks=others.sentences,
    )
    view.run(stop)
