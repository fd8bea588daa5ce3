"""`group-coordinator run`: the coordinator, with a broker of its own unless it is given one."""

import json
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from kafka.errors import KafkaError

from checkpoints.folder import FolderError
from cli.gateway import parse_address
from cli.logs import configure_logs
from clients.pending import ClientError
from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from embedded.paths import DEFAULT_DATA_DIR
from gateway.service import STARTUP_ERRORS as GATEWAY_STARTUP_ERRORS
from gateway.service import GatewayOptions, serving
from gateway.upstream.connections import Address
from insight.metrics.service import MetricsUnavailable, metrics_of
from insight.view import LiveView
from records.layout import DEFAULT_PREFIX, DEFAULT_REPLY_PARTITIONS, DEFAULT_REQUEST_PARTITIONS, TopicLayout
from state.config import ConfigError, CoordinatorConfig
from streaming.query.session import SparkFailed
from streaming.service.coordinator import Coordinator, Options
from streaming.service.status import Phase
from streaming.service.ticker import DEFAULT_INTERVAL_MS
from streaming.service.topics import TopicsError

STARTUP_ERRORS = (
    BrokerFailed,
    FolderError,
    JarsUnavailable,
    JavaNotFound,
    MetricsUnavailable,
    SparkFailed,
    TopicsError,
)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command()
@click.option(
    "--bootstrap-servers", metavar="HOST:PORT,...", help="An existing cluster; default: a broker of its own."
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Where the checkpoint (and the embedded broker's data) stand.",
)
@click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the topics' names.")
@click.option(
    "--request-partitions", type=click.IntRange(1), default=DEFAULT_REQUEST_PARTITIONS, show_default=True
)
@click.option(
    "--reply-partitions", type=click.IntRange(1), default=DEFAULT_REPLY_PARTITIONS, show_default=True
)
@click.option("--replication-factor", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "-c",
    "--config",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting by Kafka's name; repeatable.",
)
@click.option("--tick-interval-ms", type=click.IntRange(10), default=DEFAULT_INTERVAL_MS, show_default=True)
@click.option(
    "--clock-lag-ms",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="How far brokers' clocks may be apart.",
)
@click.option(
    "--skip-record", "skip", multiple=True, metavar="ID", help="Dead-letter this record unread; repeatable."
)
@click.option(
    "--ui-port", type=click.IntRange(0, 65_535), default=0, help="Port of the Spark UI; default: a free one."
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="Address Prometheus may scrape at."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port of the metrics; default: a free one.",
)
@click.option(
    "--gateway",
    "gateway_at",
    default="127.0.0.1:0",
    metavar="HOST:PORT",
    callback=parse_address,
    help="Where Kafka clients connect; default: a free port of this machine alone.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object when ready, and no live view.")
def run(as_json: bool, gateway_at: Address, metrics_host: str, metrics_port: int, **given: object) -> None:
    """Run the coordinator until Ctrl-C."""
    configure_logs()
    stop = threading.Event()
    _on_signals(_exit)
    with ExitStack() as stack:
        try:
            # On a terminal the live view shows the rebalances, and lines between would break its table.
            log_rebalances = as_json or not sys.stderr.isatty()
            coordinator = _prepare(stack, stop, **given)  # type: ignore[arg-type]
            metrics = metrics_of(coordinator, metrics_host, metrics_port, log_rebalances=log_rebalances)
            stack.enter_context(coordinator)
            stack.enter_context(metrics)
        except STARTUP_ERRORS as error:
            raise click.ClickException(str(error)) from error
        _on_signals(lambda *_: stop.set())
        if _wait_until_ready(coordinator, stop):
            gateway = _start_gateway(stack, coordinator.options, gateway_at)
            _say_ready(coordinator, gateway, metrics.url, as_json=as_json)
            if as_json:
                stop.wait()
            else:
                LiveView(coordinator.options.bootstrap_servers, coordinator.options.layout).run(stop)
        if coordinator.failure is not None:
            raise click.ClickException(coordinator.failure)
        click.echo("stopping", err=True)


def _on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    """While starting: end what has been started so far. The exit code is the shell's for that signal."""
    raise SystemExit(128 + number)


def _prepare(
    stack: ExitStack,
    stop: threading.Event,
    *,
    bootstrap_servers: str | None,
    data_dir: Path,
    prefix: str,
    request_partitions: int,
    reply_partitions: int,
    replication_factor: int,
    settings: tuple[str, ...],
    tick_interval_ms: int,
    clock_lag_ms: int,
    skip: tuple[str, ...],
    ui_port: int,
) -> Coordinator:
    layout = TopicLayout.named(
        prefix, request_partitions=request_partitions, reply_partitions=reply_partitions
    )
    parsed = _parse_settings(settings)
    _check_records(skip, layout)
    if bootstrap_servers is None:
        click.echo("starting a Kafka broker", err=True)
        bootstrap_servers = stack.enter_context(EmbeddedBroker(data_dir / "broker")).bootstrap_servers
    options = Options(
        bootstrap_servers=bootstrap_servers,
        folder=data_dir / "coordinator",
        layout=layout,
        settings=parsed,
        skip=skip,
        ui_port=ui_port,
        tick_interval_ms=tick_interval_ms,
        clock_lag_ms=clock_lag_ms,
        replication_factor=replication_factor,
    )
    click.echo(f"starting the coordinator on {bootstrap_servers}", err=True)
    return Coordinator(options, on_failure=stop.set)


def _start_gateway(stack: ExitStack, options: Options, listen: Address) -> str:
    """Start it; where clients connect."""
    wanted = GatewayOptions(options.bootstrap_servers, options.layout, listen)
    try:
        return str(stack.enter_context(serving(wanted)))
    except (*GATEWAY_STARTUP_ERRORS, ClientError, KafkaError) as error:
        raise click.ClickException(f"the gateway does not start: {error}") from error


def _parse_settings(settings: tuple[str, ...]) -> dict[str, str]:
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="-c")
        parsed[name.strip()] = value.strip()
    try:
        CoordinatorConfig().with_settings(parsed)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="-c") from error
    return parsed


def _check_records(skip: tuple[str, ...], layout: TopicLayout) -> None:
    for record in skip:
        if not re.fullmatch(rf"{re.escape(layout.requests_topic)}-\d+-\d+", record):
            raise click.BadParameter(
                f"{record!r} is not {layout.requests_topic}-PARTITION-OFFSET", param_hint="--skip-record"
            )


def _wait_until_ready(coordinator: Coordinator, stop: threading.Event) -> bool:
    while not stop.is_set():
        if coordinator.status.wait_for(Phase.READY, timeout_s=0.2):
            return True
    return False


def _say_ready(coordinator: Coordinator, gateway: str, metrics_url: str, *, as_json: bool) -> None:
    options = coordinator.options
    ready = {
        "broker": options.bootstrap_servers,
        "gateway": gateway,
        "requests_topic": options.layout.requests_topic,
        "responses_topic": options.layout.responses_topic,
        "events_topic": options.layout.events_topic,
        "groups_topic": options.layout.groups_topic,
        "ui": coordinator.ui_url,
        "metrics": metrics_url,
        "data_dir": str(options.folder.parent.absolute()),
    }
    if as_json:
        click.echo(json.dumps(ready))
    else:
        click.echo(
            f"ready: Kafka clients take bootstrap.servers={gateway}; "
            f"broker {ready['broker']}, requests on {ready['requests_topic']}, "
            f"Spark UI {ready['ui']}, metrics {ready['metrics']}, data in {ready['data_dir']}"
        )
