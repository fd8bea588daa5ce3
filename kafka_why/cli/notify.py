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
    exit_on_signals,
    show,
    stop_on_signals,
    watching_threads,
)
from kafka_why.cli.parameters import (
    FILE,
    WEB_URL,
    WholeNumber,
    as_object,
    cluster_options,
    find_source,
    link,
    page_url_option,
    prefix_option,
)
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.pem import PemError, certificates, client_context
from kafka_why.local_files import DEFAULT_DATA_DIR, ServiceFolder
from kafka_why.notify.courier import Delivery, Notifier
from kafka_why.notify.messages import KINDS, Filter
from kafka_why.notify.receiver import (
    NOT_PRIVATE,
    Receiver,
    SecretUnreadable,
    checked_url,
    is_private,
    read_first_line,
    read_url,
)
from kafka_why.notify.request_bodies import SHAPES

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NotifyOptions:
    """The options of `notify`."""

    client_config: ClientConfig
    prefix: str
    data_dir: Path
    url: str | None  # exactly one of `url` and `url_file` must be given
    url_file: Path | None
    token_file: Path | None
    ca_file: Path | None
    shape: str  # `--format`, a key of SHAPES
    groups: tuple[str, ...]  # patterns; () means all groups
    without: tuple[str, ...]  # patterns of excluded groups
    kinds: tuple[str, ...]
    least_duration_ms: int
    max_per_minute: int
    page_url: str | None
    metrics_url: str | None

    def delivery(self) -> Delivery:
        """Return the settings for sending messages.

        Raises UsageError, or BadParameter if the content of a file is invalid.
        """
        read_url_now = _url_reader(self.url, self.url_file)
        read_token = (lambda: None) if self.token_file is None else partial(read_first_line, self.token_file)
        # Report unusable files at the start, although they are read again for each request.
        is_private_url = is_private(_read_at_start(read_url_now, "--url-file"))
        has_token = _read_at_start(read_token, "--token-file") is not None
        if has_token and not is_private_url:
            raise click.BadParameter(NOT_PRIVATE, param_hint="--token-file")
        post = Receiver(read_url_now, read_token, _tls_context(self.ca_file)).post
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
@click.option("--url-file", type=FILE, metavar="FILE", help="File whose first line is a secret address.")
@click.option("--token-file", type=FILE, metavar="FILE", help="File whose first line is a bearer token.")
@click.option(
    "--ca-file",
    type=FILE,
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
@prefix_option
@as_object(NotifyOptions, "options")
def notify(options: NotifyOptions) -> None:
    """Report to a webhook which groups rebalanced, and what is wrong, until Ctrl-C.

    It reports what happens after its first start, including rebalances that ended while it did not run.
    Where there are no topics of a coordinator or an observer, it reads the cluster's own __consumer_offsets,
    as `why` does. It then reports at most the last hour of the time in which it did not run.
    """
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
            exit_on_signals()  # a second signal ends the command at once
    except KafkaError as error:
        raise click.ClickException(f"cannot read from {client_config}: {error}") from error
    if stop.failure is not None:
        raise click.ClickException(stop.failure)


def _url_reader(url: str | None, file: Path | None) -> Callable[[], str]:
    """Return a function that returns the receiver's URL. With `file`, it reads the file at each call."""
    if (url is None) == (file is None):
        raise click.UsageError("notify needs one of --url and --url-file.")
    if file is not None:
        return partial(read_url, file)
    assert url is not None
    try:
        valid_url = checked_url(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from error
    return lambda: valid_url


def _read_at_start(read: Callable[[], T], option: str) -> T:
    """Return what `read` returns. Raises BadParameter, which names the option, if it cannot read a file."""
    try:
        return read()
    except SecretUnreadable as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _tls_context(ca_file: Path | None) -> SSLContext:
    """Return the context that verifies the receiver, by `ca_file` or by what this machine trusts."""
    try:
        return client_context(None if ca_file is None else certificates(ca_file.read_text()))
    except (OSError, UnicodeDecodeError, PemError) as error:
        raise click.BadParameter(f"{ca_file}: {error}", param_hint="--ca-file") from error
