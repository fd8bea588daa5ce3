"""`group-coordinator run`: the coordinator, with an embedded broker unless it is given a cluster."""

import json
import re
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from checkpoints.files import FolderError
from checkpoints.folder import Folder
from cli.cluster_options import cluster_options
from cli.gateway_options import LISTENING, Listening, gateway_options
from cli.logs import configure_logs
from cli.parameters import HOST, PLACE, SHARDS
from cli.run_gateway import GatewayToStart, metrics_and_checks
from cli.run_page import RunPage, log_source
from cli.settings import parse_broker_settings, parse_settings
from cli.signals import exit_on_signals, stop_on_signals
from cli.spark_options import SparkOptions, spark_options, taken_from
from cli.thread_deaths import Stop, watching_threads
from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.broker_supervision import SupervisedBroker
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from embedded.paths import DEFAULT_DATA_DIR
from insight.metrics.http import MetricsUnavailable
from insight.page.server import PageUnavailable
from insight.view import LiveView
from records.client_config import ClientConfig
from records.layout import DEFAULT_PREFIX, DEFAULT_REPLY_PARTITIONS, DEFAULT_REQUEST_PARTITIONS, TopicLayout
from records.sharding import DEFAULT_SHARDS
from streaming.query.session import LOOPBACK, SparkFailed
from streaming.service.coordinator import Coordinator
from streaming.service.options import REPLICA_BATCH_INTERVAL_MS, Options
from streaming.service.owner import NotOwner
from streaming.service.status import Phase
from streaming.service.ticker import DEFAULT_INTERVAL_MS
from streaming.service.topic_watcher import DEFAULT_INTERVAL_MS as DEFAULT_TOPIC_INTERVAL_MS
from streaming.service.topics import TopicsError

STARTUP_ERRORS = (
    BrokerFailed,
    FolderError,
    JarsUnavailable,
    JavaNotFound,
    MetricsUnavailable,
    PageUnavailable,
    SparkFailed,
    TopicsError,
)
_NO_GATEWAY = "--no-gateway"


class TopicsBelongToAnother(click.ClickException):
    """The topics belong to another coordinator, so a restart with the same options would fail again.

    The exit code is EX_CONFIG of sysexits.h.
    """

    exit_code = 78


@click.command()
@cluster_options("An existing cluster; default: an embedded broker.", required=False)
@click.option(
    "--broker-config",
    "broker_settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the embedded broker by Kafka's name, as auto.create.topics.enable; repeatable.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Folder of the checkpoint (and of the embedded broker's data).",
)
@click.option(
    "--checkpoint",
    type=PLACE,
    help="Path or URI of the checkpoint, such as hdfs://HOST/PATH or a folder that machines share; default: "
    "in the data folder.",
)
@click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the topics' names.")
@click.option(
    "--request-partitions", type=click.IntRange(1), default=DEFAULT_REQUEST_PARTITIONS, show_default=True
)
@click.option(
    "--reply-partitions", type=click.IntRange(1), default=DEFAULT_REPLY_PARTITIONS, show_default=True
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="Replicas of new topics; default: 3, or as many as there are brokers.",
)
@click.option(
    "--min-insync-replicas",
    type=click.IntRange(1),
    help="Replicas of new topics that must have a record before it counts; default: 2 of 3, else 1.",
)
@click.option(
    "--shards",
    type=SHARDS,
    help="Shards of each partition of requests, a power of two. A new checkpoint pins it. "
    f"[default: {DEFAULT_SHARDS}]",
)
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
    "--topic-interval-ms",
    type=click.IntRange(100),
    default=DEFAULT_TOPIC_INTERVAL_MS,
    show_default=True,
    help="Interval of the check whether topics with offsets were deleted or created again.",
)
@click.option(
    "--replica/--no-replica",
    default=True,
    show_default=True,
    help="Answer requests in milliseconds, by a process beside the query that follows the same log.",
)
@click.option(
    "--batch-interval-ms",
    type=click.IntRange(0),
    help="Interval of the query's batches, and so of views and history; default: "
    f"{REPLICA_BATCH_INTERVAL_MS} with a replica, else 0.",
)
@click.option(
    "--clock-lag-ms",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Maximum difference between brokers' clocks.",
)
@click.option(
    "--skip-record", "skip", multiple=True, metavar="ID", help="Dead-letter this record unread; repeatable."
)
@click.option(
    "--ui-host",
    type=HOST,
    default=LOOPBACK,
    show_default=True,
    help="Address the Spark UI listens on; everyone who reaches it can read everything it shows.",
)
@click.option(
    "--take-over-topics",
    is_flag=True,
    help="Make this folder the owner of topics whose own folder is lost. A new folder has none of their "
    "groups: members join again, and their committed offsets are lost.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="Wait while another coordinator runs on this checkpoint, and take over when it ends. Needs "
    "--checkpoint, and --bootstrap-servers or --client-config.",
)
@click.option(
    "--ui-port", type=click.IntRange(0, 65_535), default=0, help="Port of the Spark UI; default: a free one."
)
@click.option(
    "--metrics-host",
    type=HOST,
    default=LOOPBACK,
    show_default=True,
    help="Address the Prometheus metrics, /healthz and /readyz listen on.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port of the metrics, /healthz and /readyz; default: a free one.",
)
@click.option(
    "--page/--no-page",
    "has_page",
    default=True,
    show_default=True,
    help="Show in a browser on this machine which group is unwell, and why; `group-coordinator page` serves "
    "other machines.",
)
@click.option(
    "--page-port", type=click.IntRange(0, 65_535), default=0, help="Port of the page; default: a free one."
)
@spark_options
@gateway_options("--gateway", "--listen", default="127.0.0.1:0")
@click.option(_NO_GATEWAY, "no_gateway", is_flag=True, help="Start no gateway; gateways run on their own.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when ready, show no live view.")
def run(
    as_json: bool,
    no_gateway: bool,
    has_page: bool,
    page_port: int,
    listening: Listening,
    metrics_host: str,
    metrics_port: int,
    **given: Any,
) -> None:
    """Run the coordinator, with a gateway for Kafka's clients, until Ctrl-C."""
    configure_logs()
    if no_gateway:
        _check_no_gateway()
    gateway = None if no_gateway else GatewayToStart(listening, given["reply_partitions"])
    stop = Stop()
    exit_on_signals()
    with ExitStack() as stack:
        stack.enter_context(watching_threads(stop.fail))
        try:
            # On a terminal the live view shows the rebalances, and log lines would break its table.
            log_rebalances = as_json or not sys.stderr.isatty()
            page = stack.enter_context(RunPage(page_port)) if has_page else None
            coordinator = _prepare(stack, stop, gateway, taken_from(given), **given)
            metrics = metrics_and_checks(coordinator, gateway, metrics_host, metrics_port, log_rebalances)
            stack.enter_context(coordinator)
            stack.enter_context(metrics)
        except NotOwner as error:
            raise TopicsBelongToAnother(str(error)) from error
        except STARTUP_ERRORS as error:
            raise click.ClickException(str(error)) from error
        stop_on_signals(stop)
        if _wait_until_ready(coordinator, stop):
            if page is not None:
                _start(page, coordinator, metrics.url)
            _say_ready(coordinator, metrics.url, None if page is None else page.url, as_json=as_json)
            if as_json:
                stop.wait()
            else:
                options = coordinator.options
                view = LiveView(
                    options.client_config, options.layout, replica=lambda: coordinator.replica().phase
                )
                view.run(stop)
        coordinator.failure = coordinator.failure or stop.failure  # the status has the reason too
        if coordinator.is_deposed:
            raise TopicsBelongToAnother(str(coordinator.failure))
        if coordinator.failure is not None:
            raise click.ClickException(coordinator.failure)
        click.echo("stopping", err=True)
        if gateway is not None:
            exit_on_signals()  # a second one ends it at once
            gateway.drain()


def _prepare(
    stack: ExitStack,
    stop: Stop,
    gateway: "GatewayToStart | None",
    spark: SparkOptions,
    *,
    client_config: ClientConfig | None,
    broker_settings: tuple[str, ...],
    data_dir: Path,
    prefix: str,
    request_partitions: int,
    reply_partitions: int,
    settings: tuple[str, ...],
    **options: Any,
) -> Coordinator:
    """`options` are those of the coordinator by the names that they have in `Options`."""
    layout = TopicLayout.named(
        prefix, request_partitions=request_partitions, reply_partitions=reply_partitions
    )
    if options["standby"] and (options["checkpoint"] is None or client_config is None):
        raise click.UsageError(
            "--standby needs --checkpoint, and --bootstrap-servers or --client-config, "
            "that both machines reach"
        )
    parsed = parse_settings(settings)
    _check_records(options["skip"], layout)
    for_broker = parse_broker_settings(broker_settings, client_config)
    folder = Folder(data_dir / "coordinator")
    folder.lock()  # before anything starts, so that a second coordinator fails at once
    stack.callback(folder.unlock)
    if client_config is None:
        click.echo("starting a Kafka broker", err=True)
        broker = SupervisedBroker(EmbeddedBroker(data_dir / "broker", overrides=for_broker), stop.fail)
        client_config = stack.enter_context(broker).client_config
    complete = Options(
        client_config=client_config,
        folder=folder.path,
        layout=layout,
        settings=parsed,
        master=spark.master,
        driver_host=spark.driver_host,
        state_partitions=spark.state_partitions,
        spark=spark.conf,
        **options,
    )
    click.echo(f"starting the coordinator on {client_config}", err=True)
    opening = None if gateway is None else partial(gateway.serving, complete)
    return Coordinator(complete, on_failure=stop.set, folder=folder, gateway=opening)


def _check_no_gateway() -> None:
    """Refuse gateway options together with --no-gateway."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if parameter.name in LISTENING and given:
            raise click.UsageError(f"{_NO_GATEWAY} cannot be combined with {parameter.opts[0]}")


def _check_records(skip: tuple[str, ...], layout: TopicLayout) -> None:
    for record in skip:
        if not re.fullmatch(rf"{re.escape(layout.requests_topic)}-\d+-\d+(#\d+)?", record):
            raise click.BadParameter(
                f"{record!r} is not {layout.requests_topic}-PARTITION-OFFSET or "
                f"{layout.requests_topic}-PARTITION-OFFSET#NUMBER",
                param_hint="--skip-record",
            )


def _wait_until_ready(coordinator: Coordinator, stop: threading.Event) -> bool:
    while not stop.is_set():
        if coordinator.status.wait_for(Phase.READY, timeout_s=0.2):
            return True
    return False


def _start(page: RunPage, coordinator: Coordinator, metrics_url: str) -> None:
    options = coordinator.options
    connect_to = coordinator.gateway_address or str(options.client_config)
    log = log_source(options.client_config, options.checkpoint or str(options.folder.absolute()))
    page.start(options.client_config, options.layout, connect_to, metrics_url, log)


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
        click.echo(json.dumps(ready))
    else:
        click.echo(
            f"ready: {_for_clients(gateway)}; "
            f"{'' if page_url is None else f'see your groups at {page_url}; '}"
            f"broker {ready['broker']}, requests on {ready['requests_topic']}, "
            f"replica {coordinator.replica().phase}, "
            f"Spark UI {ready['ui']}, metrics {ready['metrics']}, data in {ready['data_dir']}"
        )


def _for_clients(gateway: str | None) -> str:
    if gateway is None:
        return "no gateway was started"
    return f"Kafka clients take bootstrap.servers={gateway}"
