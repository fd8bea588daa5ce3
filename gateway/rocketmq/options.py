"""The options of a gateway for RocketMQ's clients."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from gateway.limits import MIB, SETTINGS, Limits, LimitSetting
from gateway.net.first_bytes import Network
from gateway.rocketmq.brokers import AddressTemplate
from gateway.security.authentication import ListenerSecurity
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.numbers import parse_whole_number
from kafka_why.remoting.frames import FRAME_MAX_BYTES

DRAIN_TIMEOUT_S = 5.0
LAG_QUEUES = 1_000


def rocketmq_limits(settings: Mapping[str, str] = MappingProxyType({})) -> Limits:
    """Return RocketMQ's defaults, changed by `settings`, which have names of ROCKETMQ_SETTINGS. Raises
    ValueError.
    """
    defaults = Limits(frame_bytes=FRAME_MAX_BYTES, idle_timeout_s=120.0, unanswered_bytes=256 * MIB)
    return defaults.with_settings(settings, ROCKETMQ_SETTINGS)


def _frame_bytes(value: str) -> int:
    return parse_whole_number(value.strip(), 64 * 1024, 2**31 - 1)


def _seconds(value: str) -> float:
    return float(parse_whole_number(value.strip(), 1, 2**31 - 1))


ROCKETMQ_SETTINGS: Mapping[str, LimitSetting] = MappingProxyType(
    {
        "com.rocketmq.remoting.frameMaxLength": ("frame_bytes", _frame_bytes),
        "serverChannelMaxIdleTimeSeconds": ("idle_timeout_s", _seconds),
        **{name: setting for name, setting in SETTINGS.items() if name.startswith("max.connection")},
    }
)
"""The settings of limits by RocketMQ's names, and those of limits on connections by Kafka's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqSettings:
    """The options of a gateway that are independent of its clusters, listeners and files.

    With `has_vip_ports` the gateway also listens on the port that is 2 lower than a broker's, for clients
    with sendMessageWithVIPChannel. Load balancers in `proxies` begin each connection with a header of the
    PROXY protocol.
    """

    advertised_host: str | None = None  # in routes; None: the address that the client connected to
    advertised: AddressTemplate | None = None  # of each broker's host and port; excludes `advertised_host`
    has_vip_ports: bool = False
    reply_partition: int | None = None  # of the responses topic; None: a random partition
    proxy_line: bool = True  # the gateway sends brokers a PROXY header with the client's address
    lag_queues: int = LAG_QUEUES  # the most queues whose lags are in the metrics
    proxies: tuple[Network, ...] = ()
    limits: Limits = field(default_factory=rocketmq_limits)


@dataclass(frozen=True, slots=True)
class RocketmqOptions(RocketmqSettings):
    """The options of a gateway, which is a name server at `listen`, and has a port for each broker address.

    `broker_ports` has ports by the broker's name and id. Other brokers get their port from the file `ports`,
    or if it has none, a free port above the port of `listen`.

    Clients may do without TLS if the gateway has a certificate and `is_tls_permissive`.
    """

    client_config: ClientConfig  # for the coordinator's topics
    layout: TopicLayout
    namesrv: tuple[str, ...]  # the cluster's name servers
    listen: Address
    # Gateways that run at the same time have different names. A gateway that starts again has the same name.
    name: str
    ports: Path | None = None
    broker_ports: Mapping[str, int] = field(default_factory=dict)
    # For the cluster: access key and secret key.
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    upstream_tls: ssl.SSLContext | None = None  # for the cluster
    allowed_codes: frozenset[int] = frozenset()  # requests that pass although they are refused by default
    is_tls_permissive: bool = False
    security: ListenerSecurity = field(default_factory=ListenerSecurity)
