"""The options of a gateway for RocketMQ's clients, for the commands that start one: `rocketmq-gateway` and
`run`.
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from zlib import crc32

import click

from cli.coordinator_parameters import NETWORK, PROXIES_HELP, checked_pairs
from gateway.limits import Limits
from gateway.rocketmq.brokers import AddressTemplate, BrokerPorts, parse_broker_port
from gateway.rocketmq.options import (
    DRAIN_TIMEOUT_S,
    LAG_QUEUES,
    ROCKETMQ_SETTINGS,
    RocketmqOptions,
    RocketmqSettings,
    rocketmq_limits,
)
from gateway.security.authentication import ListenerSecurity, SecurityError
from kafka_why.cli.parameters import (
    ADDRESS,
    HOST,
    Command,
    DecimalNumber,
    ParsedOption,
    WholeNumber,
    as_object,
    shared_fields,
    with_options,
)
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import (
    ACCESS_KEY,
    SECRET_KEY,
    RocketMqServers,
    parse_name_servers,
)
from kafka_why.contract.layout import TopicLayout

PREFIX = "rocketmq_"  # of click's names, because a gateway for Kafka's clients has options of the same names
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_TEMPLATE = ParsedOption("HOST:PORT", AddressTemplate.parse, "an address such as mq.example.org:{port}")
_ENFORCING, _PERMISSIVE = "enforcing", "permissive"
_BROKER_PORT = ParsedOption("NAME/ID=PORT", parse_broker_port)

NAME_SERVERS = ParsedOption("HOST:PORT;...", parse_name_servers, "a list such as mq-1:9876;mq-2:9876")
"""Parses to a tuple of the name servers' addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqListening(RocketmqSettings):
    """The options of a gateway's listeners, named as click passes them after `rocketmq_`. `RocketmqOptions`
    explains them."""

    listen: Address
    ports: Path | None
    broker_ports: tuple[tuple[str, int], ...]
    name: str | None
    acl: Path | None
    tls: Path | None
    allowed_codes: tuple[int, ...]
    certificate: Path | None
    key: Path | None
    tls_mode: str | None
    drain_timeout_s: float

    def __post_init__(self) -> None:
        if self.advertised is not None and self.advertised_host is not None:
            raise click.UsageError("an advertised host and advertised listeners cannot be combined")
        if self.tls_mode is not None and self.certificate is None:
            raise click.UsageError("a mode of TLS needs a certificate")

    def servers(self, namesrv: tuple[str, ...]) -> RocketMqServers:
        """Return the servers of the cluster. Raises ClickException if a file cannot be used."""
        try:
            return RocketMqServers.read(namesrv, self.acl, self.tls, os.environ)
        except (ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error

    def options(
        self,
        servers: RocketMqServers,
        client_config: ClientConfig,
        layout: TopicLayout,
        *,
        folder: Path | None = None,
    ) -> RocketmqOptions:
        """Return the options of a gateway. Raises ClickException if a file cannot be used.

        With `folder`, the ports file is in it by default, and the gateway's default name depends on it.
        """
        listen = self.listen
        ports, own = self.ports, str(listen.port or os.getpid())
        if folder is not None:
            ports, own = ports or folder / "rocketmq-ports.json", f"{crc32(bytes(folder)):08x}"
        try:
            security = ListenerSecurity.read(self.certificate, self.key, None)
            BrokerPorts(listen.port, ports)
        except (SecurityError, OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        return RocketmqOptions(
            client_config,
            layout,
            servers.addresses,
            listen,
            self.name or f"{socket.gethostname()}:{own}",
            ports=ports,
            broker_ports=dict(self.broker_ports),
            credentials=servers.keys,
            upstream_tls=servers.tls,
            allowed_codes=frozenset(self.allowed_codes),
            is_tls_permissive=self.tls_mode == _PERMISSIVE,
            security=security,
            **shared_fields(RocketmqSettings, self),
        )


ROCKETMQ_LISTENING = tuple(f"{PREFIX}{field.name}" for field in fields(RocketmqListening))
"""Click's names of the options."""


def _limits(_: click.Context, parameter: click.Parameter, given: Sequence[str]) -> Limits:
    """Parse NAME=VALUE options. Raises BadParameter if one is invalid."""
    return rocketmq_limits(checked_pairs(given, parameter.opts[0], rocketmq_limits))


def _listener_options(prefix: str, listen: str) -> tuple[Callable[[Command], Command], ...]:
    return (
        click.option(
            f"--{prefix}listen",
            "rocketmq_listen",
            default=listen,
            show_default=True,
            type=ADDRESS,
            help="Address for RocketMQ's clients, their namesrvAddr. Brokers have ports above it. Port 0 "
            "picks free ports.",
        ),
        click.option(
            f"--{prefix}advertised-host",
            "rocketmq_advertised_host",
            type=HOST,
            help="The gateway's host in routes; default: the address that the client connected to.",
        ),
        click.option(
            f"--{prefix}advertised-listeners",
            "rocketmq_advertised",
            type=_TEMPLATE,
            metavar="HOST:PORT",
            help="Addresses of brokers in routes, with {broker} and {id} for the broker, and {port} for its "
            "port here. The same for all gateways that share their clients.",
        ),
        click.option(
            f"--{prefix}ports",
            "rocketmq_ports",
            type=click.Path(path_type=Path, dir_okay=False),
            help="File that keeps the port of each broker from one start to the next.",
        ),
        click.option(
            f"--{prefix}broker-port",
            "rocketmq_broker_ports",
            type=_BROKER_PORT,
            multiple=True,
            metavar="NAME/ID=PORT",
            help="Port of a broker, such as broker-a/0=9880; repeatable. Default: free ones, in steps of 3.",
        ),
        click.option(
            f"--{prefix}vip-ports/--no-{prefix}vip-ports",
            "rocketmq_has_vip_ports",
            default=False,
            show_default=True,
            help="Listen 2 below the port of each broker, too, for clients with sendMessageWithVIPChannel.",
        ),
    )


def _entry_options(prefix: str) -> tuple[Callable[[Command], Command], ...]:
    return (
        click.option(
            f"--{prefix}tls-certificate",
            "rocketmq_certificate",
            type=_FILE,
            help="Listen with TLS, with this certificate (PEM).",
        ),
        click.option(
            f"--{prefix}tls-key",
            "rocketmq_key",
            type=_FILE,
            help="The certificate's key (PEM); default: the key is in the certificate's file.",
        ),
        click.option(
            f"--{prefix}tls-mode",
            "rocketmq_tls_mode",
            type=click.Choice([_ENFORCING, _PERMISSIVE]),
            help="As RocketMQ's tls.server.mode: with a certificate, clients have to use TLS (enforcing, the "
            "default), or may (permissive).",
        ),
        click.option(
            f"--{prefix}proxy-protocol-from",
            "rocketmq_proxies",
            type=NETWORK,
            multiple=True,
            metavar="NETWORK",
            help=PROXIES_HELP,
        ),
    )


def _upstream_options(prefix: str) -> tuple[Callable[[Command], Command], ...]:
    return (
        click.option(
            "--rocketmq-acl",
            type=_FILE,
            metavar="FILE",
            help="File with the gateway's accessKey and secretKey, as in mqadmin's tools.yml; default: "
            f"{ACCESS_KEY} and {SECRET_KEY} of the environment.",
        ),
        click.option(
            "--rocketmq-tls",
            type=_FILE,
            metavar="FILE",
            help="Use TLS to the cluster, with the settings of this tls.config.file of RocketMQ.",
        ),
        click.option(
            f"--{prefix}proxy-protocol/--no-{prefix}proxy-protocol",
            "rocketmq_proxy_line",
            default=True,
            show_default=True,
            help="Send brokers the client's address (PROXY protocol). Brokers before 5.1 cannot read it.",
        ),
        click.option(
            f"--{prefix}allow-request",
            "rocketmq_allowed_codes",
            type=WholeNumber(0),
            multiple=True,
            metavar="CODE",
            help="Pass requests with this code, which are refused by default, such as 205, an "
            "administrator's at a name server; repeatable.",
        ),
    )


def rocketmq_options(prefix: str = "", *, listen: str) -> Callable[[Command], Command]:
    """Add the options of a RocketMQ gateway. The command gets a `RocketmqListening` as `rocketmq`.

    The names of the options begin with `prefix`. `listen` is the default address.
    """
    options = (
        *_listener_options(prefix, listen),
        *_entry_options(prefix),
        *_upstream_options(prefix),
        click.option(
            f"--{prefix}gateway-name",
            "rocketmq_name",
            help="Name of the gateway, which must be unique and survive a restart; default: host name and "
            "port.",
        ),
        click.option(
            f"--{prefix}reply-partition",
            "rocketmq_reply_partition",
            type=WholeNumber(0),
            help="The gateway's own partition of the responses topic; default: a random one.",
        ),
        click.option(
            "--rocketmq-config" if prefix else "--gateway-config",
            "rocketmq_limits",
            multiple=True,
            callback=_limits,
            metavar="NAME=VALUE",
            help=f"A limit by its name; repeatable: {', '.join(sorted(ROCKETMQ_SETTINGS))}.",
        ),
        click.option(
            f"--{prefix}drain-timeout",
            "rocketmq_drain_timeout_s",
            type=DecimalNumber(0),
            default=DRAIN_TIMEOUT_S,
            show_default=True,
            metavar="SECONDS",
            help="Time that clients have to move to another gateway when this one is stopped (GO_AWAY).",
        ),
        click.option(
            f"--{prefix}lag-queues",
            "rocketmq_lag_queues",
            type=WholeNumber(0),
            default=LAG_QUEUES,
            show_default=True,
            help="Queues whose lag is in the metrics, at most. Brokers are polled for it.",
        ),
    )

    def decorated(command: Command) -> Command:
        return with_options(as_object(RocketmqListening, "rocketmq", PREFIX)(command), *options)

    return decorated
