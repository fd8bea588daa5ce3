"""`group-coordinator run`: the coordinator, with a broker of its own unless it is given one."""

import json
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import click

from checkpoints.folder import FolderError
from state.config import ConfigError
from streaming.broker import BrokerFailed, EmbeddedBroker
from streaming.coordinator import Coordinator, Options
from streaming.jars import JarsUnavailable
from streaming.java import JavaNotFound
from streaming.layout import DEFAULT_PREFIX, DEFAULT_REPLY_PARTITIONS, DEFAULT_REQUEST_PARTITIONS, Layout
from streaming.logs import configure_logs
from streaming.paths import DEFAULT_DATA_DIR
from streaming.status import Phase
from streaming.ticker import DEFAULT_INTERVAL_MS
from streaming.topics import TopicsError
from streaming.view import LiveView

STARTUP_ERRORS = (BrokerFailed, ConfigError, FolderError, JarsUnavailable, JavaNotFound, TopicsError)


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
@click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the five topics' names.")
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object when ready, and no live view.")
def run(as_json: bool, **given: object) -> None:
    """Run the coordinator until Ctrl-C."""
    configure_logs()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        try:
            coordinator = _start(stack, **given)  # type: ignore[arg-type]
        except STARTUP_ERRORS as error:
            raise click.ClickException(str(error)) from error
        if not _wait_until_ready(coordinator, stop):
            return
        _say_ready(coordinator, as_json=as_json)
        if as_json:
            stop.wait()
        else:
            LiveView(coordinator.options.bootstrap_servers, coordinator.options.layout).run(stop)
        click.echo("stopping", err=True)


def _start(
    stack: ExitStack,
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
    parsed = _parse_settings(settings)
    if bootstrap_servers is None:
        click.echo("starting a Kafka broker", err=True)
        bootstrap_servers = stack.enter_context(EmbeddedBroker(data_dir / "broker")).bootstrap_servers
    options = Options(
        bootstrap_servers=bootstrap_servers,
        folder=data_dir / "coordinator",
        layout=Layout.named(prefix, request_partitions=request_partitions, reply_partitions=reply_partitions),
        settings=parsed,
        skip=skip,
        ui_port=ui_port,
        tick_interval_ms=tick_interval_ms,
        clock_lag_ms=clock_lag_ms,
        replication_factor=replication_factor,
    )
    click.echo(f"starting the coordinator on {bootstrap_servers}", err=True)
    return stack.enter_context(Coordinator(options))


def _parse_settings(settings: tuple[str, ...]) -> dict[str, str]:
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="-c")
        parsed[name.strip()] = value.strip()
    return parsed


def _wait_until_ready(coordinator: Coordinator, stop: threading.Event) -> bool:
    while not stop.is_set():
        if coordinator.status.wait_for(Phase.READY, timeout_s=0.2):
            return True
    return False


def _say_ready(coordinator: Coordinator, *, as_json: bool) -> None:
    options = coordinator.options
    ready = {
        "broker": options.bootstrap_servers,
        "gateway": None,
        "requests_topic": options.layout.requests_topic,
        "responses_topic": options.layout.responses_topic,
        "events_topic": options.layout.events_topic,
        "groups_topic": options.layout.groups_topic,
        "ui": coordinator.ui_url,
        "data_dir": str(options.folder.parent.absolute()),
    }
    if as_json:
        click.echo(json.dumps(ready))
    else:
        click.echo(
            f"ready: broker {ready['broker']}, requests on {ready['requests_topic']}, Spark UI {ready['ui']}, "
            f"data in {ready['data_dir']}"
        )
