"""`group-coordinator notify`: reports to a webhook which groups rebalanced, and what is wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import TypeVar

import click
from kafka.errors import KafkaError

from kafka_why.cli.output import (
    StopEvent,
    configure_logs,
    exit_on_signals,
    show,
    stop_on_signals,
    watching_threads,
)
from kafka_why.cli.parameters import (
    WEB_URL,
    WholeNumber,
    as_object,
    cluster_options,
    find_source,
    link,
    page_url_option,
)
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.pem import PemError, certificates, client_context
from kafka_why.contract.layout import DEFAULT_PREFIX
from kafka_why.local_files import DEFAULT_DATA_DIR, FolderError, ServiceFolder
from kafka_why.notify.courier import Delivery, Notifier
from kafka_why.notify.messages import KINDS, Filter
from kafka_why.notify.receiver import (
    NOT_PRIVATE,
    Receiver,
    SecretUnreadable,
    checked_url,
    first_line,
    is_private,
    url_in,
)
from kafka_why.notify.request_bodies import SHAPES
from kafka_why.topic_reader import ClientError
from kafka_why.why.history import HistoryUnavailable

T = TypeVar("T")

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@dataclass(frozen=True, slots=True)
class NotifyOptions:
    """The options of `notify`."""

    client_config: ClientConfig
    prefix: str
    data_dir: Path
    url: str | None
    url_file: Path | None
    token_file: Path | None
    ca_file: Path | None
    shape: str
    groups: tuple[str, ...]
    without: tuple[str, ...]
    kinds: tuple[str, ...]
    least_duration_ms: int
    max_per_minute: int
    page_url: str | None
    metrics_url: str | None

    def delivery(self) -> Delivery:
        """Return the settings for sending messages. Raises UsageError, or BadParameter for invalid
        content of a file.
        """
        url = _url_of(self.url, self.url_file)
        token = _token_of(self.token_file)
        at_start = _read_at_start(url, "--url-file")
        if _read_at_start(token, "--token-file") is not None and not is_private(at_start):
            raise click.BadParameter(NOT_PRIVATE, param_hint="--token-file")
        post = Receiver(url, token, _context(self.ca_file)).post
        return Delivery(post, SHAPES[self.shape], self.max_per_minute)

    def wanted(self) -> Filter:
        """Return the filter that selects the messages to send."""
        return Filter(self.groups, self.without, frozenset(self.kinds or KINDS), self.least_duration_ms)

    def link(self, group_id: str | None) -> str | None:
        """Return the address of a group on the page, or None without `--page-url`."""
        return None if self.page_url is None else link(self.page_url, group_id)


@click.command()
@cluster_options()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIR / "notify",
    show_default=True,
    help="Folder that records what was reported. Only one process may use it.",
)
@click.option("--url", help="Address of the receiver, https://HOST/PATH.")
@click.option("--url-file", type=_FILE, metavar="FILE", help="File whose first line is a secret address.")
@click.option("--token-file", type=_FILE, metavar="FILE", help="File whose first line is a bearer token.")
@click.option(
    "--ca-file",
    type=_FILE,
    metavar="FILE",
    help="Certificates (PEM) of the receiver's authorities; default: those that this machine trusts.",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(tuple(SHAPES)),
    default="json",
    show_default=True,
    help="This project's JSON, a message of Slack, alerts for Alertmanager, or a request of its webhooks.",
)
@click.option(
    "--group", "groups", multiple=True, metavar="PATTERN", help="Only groups like `orders-*`; repeatable."
)
@click.option(
    "--not-group", "without", multiple=True, metavar="PATTERN", help="No groups like this; repeatable."
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="Only this kind; repeatable. Default: all.",
)
@click.option(
    "--least-duration-ms",
    type=WholeNumber(0),
    default=0,
    show_default=True,
    help="Leave out rebalances that took less, and what has been wrong for less.",
)
@click.option(
    "--max-per-minute",
    type=WholeNumber(1, 10_000),
    default=30,
    show_default=True,
    help="Maximum number of requests in a minute. Further messages are sent together in the next request.",
)
@page_url_option
@click.option(
    "--metrics-url",
    type=WEB_URL,
    help="The coordinator's metrics, as http://HOST:PORT/metrics, for its alarms.",
)
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
@as_object(NotifyOptions, "options")
def notify(options: NotifyOptions) -> None:
    """Report to a webhook which groups rebalanced, and what is wrong, until Ctrl-C.

    It reports what happens after its first start, including rebalances that ended while it did not run.
    Where there are no topics of a coordinator or an observer, it reads the cluster's own __consumer_offsets,
    as `why` does. It then reports at most the last hour of the time in which it did not run.
    """
    configure_logs()
    exit_on_signals()
    stop = StopEvent()
    client_config = options.client_config
    delivery = options.delivery()
    try:
        source = find_source(client_config, options.prefix)
        with (
            ServiceFolder(options.data_dir, "notifier").locked(),
            watching_threads(stop.fail),
            Notifier(
                client_config,
                source,
                options.data_dir,
                delivery,
                options.wanted(),
                options.link,
                options.metrics_url,
            ),
        ):
            stop_on_signals(stop)
            show(f"ready: reports what happens on {client_config}")
            stop.wait()
            exit_on_signals()  # a second one ends it at once
    except (ClientError, FolderError, HistoryUnavailable) as error:
        raise click.ClickException(str(error)) from error
    except KafkaError as error:
        raise click.ClickException(f"cannot read from {client_config}: {error}") from error
    if stop.failure is not None:
        raise click.ClickException(stop.failure)


def _url_of(url: str | None, file: Path | None) -> Callable[[], str]:
    if file is not None and url is None:
        return partial(url_in, file)
    if url is None or file is not None:
        raise click.UsageError("notify needs one of --url and --url-file.")
    try:
        address = checked_url(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from error
    return lambda: address


def _token_of(file: Path | None) -> Callable[[], str | None]:
    return (lambda: None) if file is None else partial(first_line, file)


def _read_at_start(read: Callable[[], T], option: str) -> T:
    try:
        return read()
    except SecretUnreadable as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _context(ca_file: Path | None) -> SSLContext:
    try:
        return client_context(None if ca_file is None else certificates(ca_file.read_text()))
    except (OSError, UnicodeDecodeError, PemError) as error:
        raise click.BadParameter(f"{ca_file}: {error}", param_hint="--ca-file") from error
