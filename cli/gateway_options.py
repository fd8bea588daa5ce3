"""The options of a gateway, for the commands that start one: `gateway` and `run`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import click

from cli.coordinator_parameters import LISTENERS, NETWORK, PROXIES_HELP, checked_pairs
from gateway.authorization.acls import read_acl_file
from gateway.authorization.sources import INTERVAL_S, AclOptions
from gateway.limits import SETTINGS, Limits, read_quotas
from gateway.net.server import GatewayOptions, GatewaySettings
from gateway.security.authentication import ListenerSecurity
from gateway.telemetry.service import INTERVAL_MAX_MS, INTERVAL_MIN_MS, INTERVAL_MS
from gateway.upstream.share_groups import Coordinators
from kafka_why.cli.parameters import (
    ADDRESS,
    FILE,
    HOST,
    Command,
    DecimalNumber,
    WholeNumber,
    as_object,
    shared_fields,
)
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout

ACLS_OFF, ACLS_OF_CLUSTER = "off", "cluster"  # values of --acls
GATEWAYS, CLIENTS = "gateway", "client"  # values of --broker-principal


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions(GatewaySettings):
    """The options of a gateway's listener, named as click passes them."""

    listen: Address
    certificate: Path | None  # None: plain text
    key: Path | None  # None: in the certificate's file
    users: Path | None  # None: no authentication, unless `security_config` has keys for clients' tokens
    security_config: Path | None  # file with Kafka's security settings of a listener
    broker_principal: str  # the principal of clients' requests at the brokers: GATEWAYS or CLIENTS
    share_groups: str  # a value of `Coordinators`
    client_telemetry: bool
    client_telemetry_interval_ms: int
    acls: str  # `off`, `cluster` or a file
    acls_interval_s: float
    super_users: str  # principals, separated by semicolons
    allow_everyone_if_no_acl_found: bool
    drain_timeout_s: float

    def __post_init__(self) -> None:
        if self.templates and self.advertised_host is not None:
            raise click.UsageError("--advertised-host and --advertised-listeners cannot be combined")
        if self.acls == ACLS_OFF and self.super_users:
            raise click.UsageError("--super-users needs --acls")
        if self.acls == ACLS_OFF and self.allow_everyone_if_no_acl_found:
            raise click.UsageError("--allow-everyone-if-no-acl-found needs --acls")
        for principal in sorted(self._super_users()):
            kind, _, name = principal.partition(":")
            if not kind or not name:
                raise click.UsageError(f"--super-users: {principal!r} is not TYPE:NAME, such as User:admin")

    def security(self) -> ListenerSecurity:
        """Read the security settings, and the files that they name. Raises SecurityError."""
        return ListenerSecurity.read(
            self.certificate,
            self.key,
            self.users,
            self.security_config,
            brokers_authenticate=self.broker_principal == CLIENTS,
        )

    def check_files(self) -> None:
        """Read the files of quotas and ACLs, to check them. Raises QuotasError or AclsUnreadable."""
        if self.quotas is not None:
            read_quotas(self.quotas)
        acls = self._acl_options()
        if acls is not None and acls.file is not None:
            read_acl_file(acls.file)

    def options(
        self, client_config: ClientConfig, layout: TopicLayout, security: ListenerSecurity
    ) -> GatewayOptions:
        """Return the options of a gateway with this listener."""
        return GatewayOptions(
            client_config,
            layout,
            self.listen,
            security=security,
            acls=self._acl_options(),
            share_groups=Coordinators(self.share_groups),
            telemetry_interval_ms=self.client_telemetry_interval_ms if self.client_telemetry else None,
            **shared_fields(GatewaySettings, self),
        )

    def _acl_options(self) -> AclOptions | None:
        if self.acls == ACLS_OFF:
            return None
        return AclOptions(
            None if self.acls == ACLS_OF_CLUSTER else Path(self.acls),
            self._super_users(),
            self.allow_everyone_if_no_acl_found,
            self.acls_interval_s,
        )

    def _super_users(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.super_users.split(";") if name.strip())


_SECURITY_OPTIONS = (
    click.option(
        "--tls-certificate",
        "certificate",
        type=FILE,
        help="Listen with TLS, with this certificate (PEM).",
    ),
    click.option(
        "--tls-key",
        "key",
        type=FILE,
        help="The certificate's key (PEM); default: the key is in the certificate's file.",
    ),
    click.option(
        "--sasl-users",
        "users",
        type=FILE,
        help="Require SASL; the file has one NAME:PASSWORD or NAME:SCRAM-... a line.",
    ),
    click.option(
        "--security-config",
        "security_config",
        type=FILE,
        help="Kafka's security settings of a listener, such as ssl.client.auth (docs/gateway-security.md).",
    ),
    click.option(
        "--broker-principal",
        type=click.Choice([GATEWAYS, CLIENTS]),
        default=GATEWAYS,
        show_default=True,
        help="Principal of requests to brokers: the gateway's own, or the client's, whose SASL exchange is "
        "passed to the broker.",
    ),
)

_TELEMETRY_OPTIONS = (
    click.option(
        "--client-telemetry/--no-client-telemetry",
        default=False,
        show_default=True,
        help="Accept the metrics that clients push (KIP-714), so that `why` says when a member last polled.",
    ),
    click.option(
        "--client-telemetry-interval-ms",
        type=WholeNumber(INTERVAL_MIN_MS, INTERVAL_MAX_MS),
        default=INTERVAL_MS,
        show_default=True,
        help="With --client-telemetry: how often each client pushes.",
    ),
)

_ACL_OPTIONS = (
    click.option(
        "--acls",
        default=ACLS_OFF,
        show_default=True,
        metavar="off|cluster|FILE",
        help="Check the ACLs of the cluster, or of a TOML file.",
    ),
    click.option(
        "--acls-interval-s",
        type=DecimalNumber(0.1),
        default=INTERVAL_S,
        show_default=True,
        help="Seconds until the ACLs are read again.",
    ),
    click.option(
        "--super-users",
        default="",
        metavar="TYPE:NAME;...",
        help="With --acls: principals that may do everything.",
    ),
    click.option(
        "--allow-everyone-if-no-acl-found",
        is_flag=True,
        help="With --acls: allow everything on resources that no ACL names.",
    ),
)


def _parse_limits(_: click.Context, parameter: click.Parameter, settings: Sequence[str]) -> Limits:
    """Parse NAME=VALUE options. Raises BadParameter if one is invalid."""
    limits = Limits()
    return limits.with_settings(checked_pairs(settings, parameter.opts[0], limits.with_settings))


_SERVICE_OPTIONS = (
    click.option(
        "--advertised-listeners",
        "templates",
        type=LISTENERS,
        default="",
        metavar="HOST:PORT,...",
        help="Addresses of brokers in the answers to clients, with {node} for a broker's node id and {port} "
        "for the port of its listener; one for each gateway that shares the clients.",
    ),
    click.option(
        "--proxy-protocol-from",
        "proxies",
        type=NETWORK,
        multiple=True,
        metavar="NETWORK",
        help=PROXIES_HELP,
    ),
    click.option(
        "--gateway-config",
        "limits",
        multiple=True,
        callback=_parse_limits,
        metavar="NAME=VALUE",
        help=f"A limit by Kafka's name; repeatable: {', '.join(sorted(SETTINGS))}.",
    ),
    click.option("--quotas", type=FILE, help="Quotas of clients (TOML); read again when the file changes."),
    click.option(
        "--drain-timeout",
        "drain_timeout_s",
        type=DecimalNumber(0),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Time that a gateway waits for the responses in progress when it is stopped.",
    ),
)

LISTENER_OPTION_NAMES = tuple(field.name for field in fields(ListenerOptions))
"""Click's names of the options of a gateway's listener."""


def gateway_options(*names: str, default: str) -> Callable[[Command], Command]:
    """Add the options of a gateway. The command gets a `ListenerOptions` as `listening`.

    `names` are the names of the option for the address.
    """
    return as_object(
        ListenerOptions,
        "listening",
        click.option(
            *names,
            "listen",
            default=default,
            show_default=True,
            type=ADDRESS,
            help="Address for Kafka clients; broker n has this port + n + 1. Port 0 picks free ports.",
        ),
        click.option(
            "--advertised-host",
            type=HOST,
            help="Host in the answers to clients; default: the address they connected to.",
        ),
        click.option(
            "--reply-partition",
            type=WholeNumber(0),
            help="The gateway's own partition of the responses topic; default: a random one.",
        ),
        *_SECURITY_OPTIONS,
        click.option(
            "--expose-internal-topics",
            is_flag=True,
            help="Let clients write to the coordinator's own topics, as to any other topic.",
        ),
        click.option(
            "--consumer-protocol/--no-consumer-protocol",
            default=True,
            show_default=True,
            help="Offer clients the consumer protocol (KIP-848), group.protocol=consumer.",
        ),
        click.option(
            "--streams-protocol/--no-streams-protocol",
            default=True,
            show_default=True,
            help="Offer Kafka Streams the streams protocol (KIP-1071), group.protocol=streams.",
        ),
        click.option(
            "--share-groups",
            type=click.Choice([one.value for one in Coordinators]),
            default=Coordinators.OURS.value,
            show_default=True,
            help="Coordinator of share groups (KIP-932): this one, the brokers' own, or none.",
        ),
        *_TELEMETRY_OPTIONS,
        *_ACL_OPTIONS,
        *_SERVICE_OPTIONS,
    )
