"""The options of a gateway."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.authorization.sources import AclOptions
from gateway.limits import Limits
from gateway.net.advertised import Template
from gateway.security.authentication import ListenerSecurity
from gateway.upstream.share_groups import Coordinators
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The options of a gateway. It listens on `listen` for any broker, and for broker n on the port n + 1
    above it. With port 0 the system chooses free ports. With `shares_ports` other processes of the same
    gateway may listen on the same ports (SO_REUSEPORT).

    `advertised_host` is the gateway's host in responses, by default the address that the client connected to.
    With `templates` they are the addresses of brokers in responses (`gateway.net.advertised`).

    If `reply_partition` is None, the gateway chooses one at random. If `acls` is None, every client may do
    everything. `quotas` is a file (`gateway.quotas`). With `expose_internal_topics` clients see the
    coordinator's own topics as ordinary topics. Without `consumer_protocol` clients see a broker whose
    feature `group.version` is 0, with `share_groups` OFF one whose feature `share.version` is 0.
    `telemetry_interval_ms` is the interval at which clients push their metrics to the gateway, or None if it
    accepts none.
    """

    client_config: ClientConfig
    layout: TopicLayout
    listen: Address
    advertised_host: str | None = None
    templates: Sequence[Template] = ()
    shares_ports: bool = False
    reply_partition: int | None = None
    limits: Limits = field(default_factory=Limits)
    security: ListenerSecurity = field(default_factory=ListenerSecurity)
    acls: AclOptions | None = None
    quotas: Path | None = None
    expose_internal_topics: bool = False
    consumer_protocol: bool = True
    share_groups: Coordinators = Coordinators.OURS
    telemetry_interval_ms: int | None = None
