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
from gateway.security.authentication import ListenerSecurity
from kafka_why.cli.parameters import (
    ADDRESS,
    FILE,
    HOST,
    Command,
    DecimalNumber,
    ParsedOption,
    WholeNumber,
    as_object,
    shared_fields,
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

# The prefix of the options' names in click. The options for Kafka's clients have the same names without it.
PREFIX = "rocketmq_"
_TEMPLATE = ParsedOption("HOST:PORT", AddressTemplate.parse, "an address such as mq.example.org:{port}")
_ENFORCING, _PERMISSIVE = "enforcing", "permissive"
_BROKER_PORT = ParsedOption("NAME/ID=PORT", parse_broker_port)

NAME_SERVERS = ParsedOption("HOST:PORT;...", parse_name_servers, "a list such as mq-1:9876;mq-2:9876")
"""Parses to a tuple of the name servers' addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqListenerOptions(RocketmqSettings):
    """The options of a gateway's listeners. Their names in click have the prefix `rocketmq_`.

    `RocketmqOptions` explains them.
    """

    listen: Address
    ports: Path | None  # the file that keeps the brokers' ports
    broker_ports: tuple[tuple[str, int], ...]
    name: str | None
    acl: Path | None  # the file with the gateway's keys for the cluster
    tls: Path | None  # the file with the settings of TLS to the cluster
    allowed_codes: tuple[int, ...]
    certificate: Path | None  # None: clients connect without TLS
    key: Path | None  # None: in the certificate's file
    tls_mode: str | None  # None: enforcing
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

        If `folder` is given, it has the ports file by default, and the gateway's default name depends on it.
        """
        ports, name_suffix = self.ports, str(self.listen.port or os.getpid())
        if folder is not None:
            ports, name_suffix = ports or folder / "rocketmq-ports.json", f"{crc32(bytes(folder)):08x}"
        try:
            security = ListenerSecurity.read(self.certificate, self.key, None)
            BrokerPorts(self.listen.port, ports)  # reads the ports file, to check it before the start
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        return RocketmqOptions(
            client_config,
            layout,
            servers.addresses,
            self.listen,
            self.name or f"{socket.gethostname()}:{name_suffix}",
            ports=ports,
            broker_ports=dict(self.broker_ports),
            credentials=servers.keys,
            upstream_tls=servers.tls,
            allowed_codes=frozenset(self.allowed_codes),
            is_tls_permissive=self.tls_mode == _PERMISSIVE,
            security=security,
            **shared_fields(RocketmqSettings, self),
        )


ROCKETMQ_OPTION_NAMES = tuple(f"{PREFIX}{field.name}" for field in fields(RocketmqListenerOptions))
"""Click's names of the options of a RocketMQ gateway."""


def _parse_limits(_: click.Context, parameter: click.Parameter, settings: Sequence[str]) -> Limits:
    """Parse NAME=VALUE options. Raises BadParameter if one is invalid."""
    return rocketmq_limits(checked_pairs(settings, parameter.opts[0], rocketmq_limits))


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


def _client_connection_options(prefix: str) -> tuple[Callable[[Command], Command], ...]:
    """Return the options of TLS and of the PROXY protocol, for connections from clients."""
    return (
        click.option(
            f"--{prefix}tls-certificate",
            "rocketmq_certificate",
            type=FILE,
            help="Listen with TLS, with this certificate (PEM).",
        ),
        click.option(
            f"--{prefix}tls-key",
            "rocketmq_key",
            type=FILE,
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
    """Return the options of requests to the cluster."""
    return (
        click.option(
            "--rocketmq-acl",
            type=FILE,
            metavar="FILE",
            help="File with the gateway's accessKey and secretKey, as in mqadmin's tools.yml; default: "
            f"{ACCESS_KEY} and {SECRET_KEY} of the environment.",
        ),
        click.option(
            "--rocketmq-tls",
            type=FILE,
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
            help="Pass requests with this code, which are refused by default, such as 205 "
            "(WIPE_WRITE_PERM_OF_BROKER); repeatable.",
        ),
    )


def rocketmq_options(prefix: str = "", *, listen: str) -> Callable[[Command], Command]:
    """Add the options of a RocketMQ gateway. The command gets a `RocketmqListenerOptions` as `rocketmq`.

    The names of the options begin with `prefix`. `listen` is the default address.
    """
    return as_object(
        RocketmqListenerOptions,
        "rocketmq",
        *_listener_options(prefix, listen),
        *_client_connection_options(prefix),
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
            callback=_parse_limits,
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
            help="Maximum number of queues whose lag is in the metrics. Brokers are polled for it.",
        ),
        prefix=PREFIX,
    )
