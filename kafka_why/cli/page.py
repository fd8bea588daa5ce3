"""`group-coordinator page`: the page for any coordinator, also one on another machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import click
from kafka.errors import KafkaError

from kafka_why.cli.output import StopEvent, show, stop_on_signals, watching_threads
from kafka_why.cli.parameters import (
    FILE,
    HOST,
    WEB_URL,
    WholeNumber,
    cluster_options,
    find_source,
    prefix_option,
)
from kafka_why.cli.rocketmq_cluster import namesrv_options
from kafka_why.connections.address import is_loopback
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.layout import TopicLayout
from kafka_why.credentials import InvalidEntry, Users
from kafka_why.notify.receiver import SecretUnreadable, read_first_line
from kafka_why.page.commands import CoordinatorLog
from kafka_why.page.security import Access
from kafka_why.page.server import Page
from kafka_why.topic_reader import BrokersOwn
from kafka_why.web import TlsFiles, listening_at, url_of


class _Listener(NamedTuple):
    """The address to listen on, and the access to it."""

    host: str
    port: int
    access: Access | None  # None if nobody has to authenticate
    tls: TlsFiles | None

    @classmethod
    def of(
        cls,
        *,
        host: str,
        port: int,
        users: Path | None,
        token_file: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
    ) -> Self:
        """Return the listener of these options. Raises UsageError and BadParameter."""
        access = access_of(users, token_file)
        tls = None if tls_certificate is None else TlsFiles(tls_certificate, tls_key)
        if not is_loopback(host) and (access is None or tls is None):
            raise click.UsageError(
                f"{host} is not a loopback address: it needs --users or --token-file, and --tls-certificate"
            )
        return cls(host, port, access, tls)


def _rocketmq_page(*, servers: RocketMqServers, **listener: Any) -> None:
    """Show the groups of a RocketMQ cluster in a browser, until Ctrl-C."""
    _serve(lambda: (None, servers), str(servers), _Listener.of(**listener))


@click.command()
@namesrv_options(_rocketmq_page, ("host", "port", "users", "token_file", "tls_certificate", "tls_key"))
@cluster_options()
@prefix_option
@click.option(
    "--host",
    type=HOST,
    default="127.0.0.1",
    show_default=True,
    help="Address the page listens on. Any other than loopback needs --users or --token-file, and TLS.",
)
@click.option("--port", type=WholeNumber(0, 65_535), default=0, help="Port of the page; default: a free one.")
@click.option(
    "--metrics-url",
    type=WEB_URL,
    help="The coordinator's metrics, as http://HOST:PORT/metrics, for the page of the coordinator itself.",
)
@click.option(
    "--users",
    type=FILE,
    metavar="FILE",
    help="File of the users who may read: lines NAME:PASSWORD, as in gateway --sasl-users.",
)
@click.option(
    "--token-file", type=FILE, metavar="FILE", help="File whose first line is a bearer token for readers."
)
@click.option("--tls-certificate", type=FILE, metavar="FILE", help="Certificate with its chain, PEM.")
@click.option(
    "--tls-key", type=FILE, metavar="FILE", help="The certificate's key, PEM; default: in the same file."
)
@click.option(
    "--checkpoint",
    metavar="PLACE",
    help="Path or URI of the coordinator's checkpoint. With it readers can run `whatif` and `replay` of "
    "`group-coordinator`, if that is installed here.",
)
def page(
    client_config: ClientConfig,
    prefix: str,
    metrics_url: str | None,
    checkpoint: str | None,
    servers: RocketMqServers | None,
    **listener: Any,
) -> None:
    """Show in a browser which group is unwell, and why, until Ctrl-C.

    The page reads the coordinator's topics, and writes nothing. The coordinator need not run. Where there are
    no such topics, the page reads the cluster's own __consumer_offsets, as `why` does, and needs only READ on
    that topic. With --namesrv it polls a RocketMQ cluster. With --namesrv and --bootstrap-servers it shows
    the polls beside the history of RocketMQ's groups.
    """
    _serve(
        lambda: (client_config, find_source(client_config, prefix)),
        str(client_config),
        _Listener.of(**listener),
        log=None if checkpoint is None else CoordinatorLog.of(client_config, checkpoint),
        metrics_url=metrics_url,
        rocketmq=servers,
    )


def _serve(
    source: Callable[[], tuple[ClientConfig | None, TopicLayout | BrokersOwn | RocketMqServers]],
    connect_to: str,
    listener: _Listener,
    log: CoordinatorLog | None = None,
    metrics_url: str | None = None,
    rocketmq: RocketMqServers | None = None,
) -> None:
    """Serve the page until Ctrl-C. Raises ClickException if the source cannot be read or a thread ends.

    `source` returns the cluster's settings and the source of groups, as `Page` takes them. `connect_to` is
    the address that consumers connect to.
    """
    stop = StopEvent()
    try:
        client_config, groups_source = source()
        with (
            listening_at(listener.host, listener.port) as listening,
            watching_threads(stop.fail),
            Page(
                client_config,
                groups_source,
                listening,
                connect_to=connect_to,
                access=listener.access,
                tls=listener.tls,
                log=log,
                metrics_url=metrics_url,
                rocketmq=rocketmq,
            ),
        ):
            stop_on_signals(stop)
            show(f"ready: {url_of(listening, has_tls=listener.tls is not None)}")
            stop.wait()
    except KafkaError as error:
        raise click.ClickException(f"cannot read from {connect_to}: {error}") from error
    if stop.failure is not None:
        raise click.ClickException(stop.failure)


def access_of(users: Path | None, token_file: Path | None) -> Access | None:
    """Return the readers' access rules, or None if the options give none. Raises BadParameter."""
    if users is None and token_file is None:
        return None
    return Access(has_password=_password_check(users), token=_token(token_file))


def _password_check(users: Path | None) -> Callable[[str, bytes], bool] | None:
    """Return a function that checks a user's password by the file, or None without a file."""
    if users is None:
        return None
    try:
        file_users = Users(users.read_text().splitlines())
    except (OSError, UnicodeDecodeError, InvalidEntry) as error:
        raise click.BadParameter(f"{users}: {error}", param_hint="--users") from error
    if "PLAIN" not in file_users.mechanisms:  # no entry has a password
        raise click.BadParameter(f"{users} has no NAME:PASSWORD", param_hint="--users")
    return file_users.has_password


def _token(file: Path | None) -> str | None:
    try:
        return None if file is None else read_first_line(file)
    except SecretUnreadable as error:
        raise click.BadParameter(str(error), param_hint="--token-file") from error
