"""`group-coordinator run`: the coordinator, with an embedded broker unless it is given a cluster."""

import json
import sys
import threading
from contextlib import ExitStack
from functools import partial

import click
import structlog
from click.core import ParameterSource

from cli.gateway_options import LISTENING
from cli.live_view import LiveView
from cli.run_gateway import GatewayToStart, metrics_and_checks
from cli.run_options import NO_GATEWAY, RunOptions, run_options
from cli.run_page import RunPage
from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.broker_supervision import SupervisedBroker
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from kafka_why.broker_groups import BrokerGroup, BrokerGroups, sentence
from kafka_why.cli.output import configure_logs, failure_in_lines, show, show_encoded, tell
from kafka_why.cli.signals import StopEvent, exit_on_signals, stop_on_signals, watching_threads
from kafka_why.contract.service import ServicePhase
from kafka_why.local_files import FolderError
from kafka_why.page.commands import CoordinatorLog
from kafka_why.service_folder import ServiceFolder
from kafka_why.web import WebUnavailable
from streaming.query.jvm import SparkFailed
from streaming.service.coordinator import Coordinator
from streaming.service.ownership.owner import NotOwner
from streaming.service.topics import TopicsError

STARTUP_ERRORS = (
    BrokerFailed,
    FolderError,
    JarsUnavailable,
    JavaNotFound,
    WebUnavailable,
    SparkFailed,
    TopicsError,
)

log = structlog.get_logger()


class OtherGroups(BrokerGroups):
    """Watches the broker of this coordinator for groups of its own. With `is_logged` each is logged once."""

    def __init__(self, coordinator: Coordinator, *, is_logged: bool) -> None:
        super().__init__(
            coordinator.options.client_config,
            lambda group: log.warning(self._sentence(group)) if is_logged else None,
        )
        self._coordinator = coordinator

    def sentences(self) -> list[str]:
        """Return a sentence for each group that is there now."""
        return [self._sentence(group) for group in self.groups]

    def _sentence(self, group: BrokerGroup) -> str:
        servers = self._coordinator.options.client_config.bootstrap_servers
        return sentence(group, servers, self._coordinator.gateway_address)


class TopicsBelongToAnother(click.ClickException):
    """The topics belong to another coordinator, so a restart with the same options would fail again.

    The exit code is EX_CONFIG of sysexits.h.
    """

    exit_code = 78


@click.command()
@run_options
def run(options: RunOptions) -> None:
    """Run the coordinator, with a gateway for Kafka's clients, until Ctrl-C."""
    configure_logs()
    if options.no_gateway:
        _check_no_gateway()
    gateway = None if options.no_gateway else GatewayToStart(options.listening, options.reply_partitions)
    stop = StopEvent()
    exit_on_signals()
    with ExitStack() as stack:
        stack.enter_context(watching_threads(stop.fail))
        try:
            # On a terminal the live view shows the rebalances, and log lines would break its table.
            log_rebalances = options.as_json or not sys.stderr.isatty()
            page = stack.enter_context(RunPage(options.page_port)) if options.has_page else None
            coordinator = _prepare(stack, stop, gateway, options)
            metrics = metrics_and_checks(
                coordinator,
                gateway,
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
            if page is not None:
                _start(page, coordinator, metrics.url, watches_broker=options.client_config is None)
                stack.callback(page.close)  # before the broker ends, of which the page would warn
            _say_ready(coordinator, metrics.url, None if page is None else page.url, as_json=options.as_json)
            others = OtherGroups(coordinator, is_logged=log_rebalances)
            if options.client_config is None:
                stack.enter_context(others)
            _show(coordinator, others, stop, as_json=options.as_json)
        coordinator.failure = coordinator.failure or stop.failure  # the status has the reason too
        if coordinator.is_deposed:
            raise TopicsBelongToAnother(str(coordinator.failure))
        if coordinator.failure is not None:
            raise click.ClickException(coordinator.failure)
        tell("stopping")
        if gateway is not None:
            exit_on_signals()  # a second one ends it at once
            gateway.drain()


def _prepare(
    stack: ExitStack, stop: StopEvent, gateway: GatewayToStart | None, given: RunOptions
) -> Coordinator:
    """Return the coordinator, with the broker that it needs. The stack ends what is started here."""
    folder = ServiceFolder(given.data_dir / "coordinator")
    stack.enter_context(folder.locked())  # before anything starts, so that a second coordinator fails at once
    client_config = given.client_config
    if client_config is None:
        tell("starting a Kafka broker")
        # The quick compiler alone would make answers through the gateway three times as slow: docs/tuning.md
        embedded = EmbeddedBroker(given.data_dir / "broker", overrides=given.broker(), is_long_running=True)
        broker = SupervisedBroker(embedded, stop.fail)
        client_config = stack.enter_context(broker).client_config
    options = given.coordinator(client_config, folder.path)
    tell(f"starting the coordinator on {client_config}")
    opening = None if gateway is None else partial(gateway.serving, options)
    return Coordinator(options, on_failure=stop.set, folder=folder, gateway=opening)


def _check_no_gateway() -> None:
    """Refuse gateway options together with --no-gateway."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if parameter.name in LISTENING and given:
            raise click.UsageError(f"{NO_GATEWAY} cannot be combined with {parameter.opts[0]}")


def _wait_until_ready(coordinator: Coordinator, stop: threading.Event) -> bool:
    while not stop.is_set():
        if coordinator.status.wait_for(ServicePhase.READY, timeout_s=0.2):
            return True
    return False


def _start(page: RunPage, coordinator: Coordinator, metrics_url: str, *, watches_broker: bool) -> None:
    options = coordinator.options
    connect_to = coordinator.gateway_address or str(options.client_config)
    log = CoordinatorLog.of(options.client_config, options.checkpoint or str(options.folder.absolute()))
    page.start(
        options.client_config, options.layout, connect_to, metrics_url, log, watches_broker=watches_broker
    )


def _say_ready(coordinator: Coordinator, metrics_url: str, page_url: str | None, *, as_json: bool) -> None:
    options = coordinator.options
    gateway = coordinator.gateway_address
    ready = {
        "broker": str(options.client_config),
        "gateway": gateway,
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
