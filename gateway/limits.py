"""Limits on the use of the gateway by one client, and by all clients together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

from kafka_why.numbers import parse_whole_number

MIB = 1024 * 1024
UNLIMITED = 2**31 - 1
"""Kafka's default of limits that are off."""


class LimitError(ValueError):
    """A setting has an unknown name or an invalid value."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one gateway: sizes in bytes, times in seconds. The defaults are Kafka's where Kafka has
    the limit.

    A connection has at most `in_flight_per_connection` unanswered requests. While these have
    `in_flight_bytes_per_connection` bytes or more, the gateway does not read from the connection, so one
    frame may exceed this limit. `forwarded` limits the concurrent requests of all connections at brokers, and
    `at_coordinator` those at the coordinator, without parked ones. The gateway does not read from a
    connection that waits for such capacity.

    If clients have to authenticate, a connection must do so within `authentication_timeout_s`, and until then
    has one request at a time. A TLS handshake has the same timeout.

    A quota allows a burst of `quota_window_num` windows of `quota_window_s`, and throttles a request for at
    most one window.
    """

    frame_bytes: int = 100 * MIB  # socket.request.max.bytes
    unauthenticated_frame_bytes: int = 512 * 1024  # sasl.server.max.receive.size
    authentication_timeout_s: float = 30.0  # Kafka has only connections.max.idle.ms for this
    failed_authentication_delay_s: float = 0.1  # connection.failed.authentication.delay.ms
    decoded_frame_bytes: int = 2 * MIB  # of requests that pass to brokers
    connections: int = 10_000
    connections_per_ip: int = UNLIMITED
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    connection_creation_rate: int = UNLIMITED
    in_flight_per_connection: int = 512
    in_flight_bytes_per_connection: int = 16 * MIB
    at_coordinator: int = 4_000  # a coordinator that answers 2,000 a second answers each within 2 s
    bytes_at_coordinator: int = 256 * MIB
    large_bytes_per_s: int = 8 * MIB  # of large requests to the coordinator, after a burst
    large_burst_bytes: int = 16 * MIB  # as when all members of a group start at once
    parked_bytes: int = 256 * MIB  # of requests that the coordinator parks
    groups_per_request: int = 10_000  # Kafka has no bound
    groups_answer_bytes: int = 32 * MIB  # of the answer to a request about several groups
    forwarded: int = 20_000
    unanswered_bytes: int = 512 * MIB  # of requests, whole or in part, of all clients together
    unread_bytes: int = 512 * MIB  # of responses, of all clients together
    write_timeout_s: float = 30.0  # a client that reads nothing for this long is disconnected
    idle_timeout_s: float = 600.0  # connections.max.idle.ms
    connect_timeout_s: float = 10.0
    upstream_timeout_s: float = 30.0  # for the gateway's own requests
    groups_behind_max_s: float = 3.0  # for ListGroups to wait for the reader of the groups topic
    member_held_s: float = 3.0  # by a coordinator that does not answer: docs/decisions/0009
    topics_look_up_s: float = 3.0  # after this, a member's request is sent without its topics
    quota_window_num: int = 11  # quota.window.num
    quota_window_s: float = 1.0  # quota.window.size.seconds

    def with_settings(
        self, settings: Mapping[str, str], known: "Mapping[str, LimitSetting] | None" = None
    ) -> "Limits":
        """Return these limits, changed by `settings`. `known` has the possible settings, by default SETTINGS.
        Raises LimitError.
        """
        known = SETTINGS if known is None else known
        changed: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in known:
                raise LimitError(f"{name} is not a setting of the gateway: {', '.join(sorted(known))}")
            attribute, parse = known[name]
            try:
                changed[attribute] = parse(value)
            except ValueError as error:
                raise LimitError(f"{name}: {error}") from error
        return replace(self, **changed)


def _positive(value: str) -> int:
    return parse_whole_number(value.strip(), 1, UNLIMITED)


def _ms(value: str) -> float:
    return _positive(value) / 1000


def _by_ip(value: str) -> dict[str, int]:
    """Parse `ADDRESS:NUMBER,...`. An IPv6 address contains colons."""
    numbers: dict[str, int] = {}
    for item in filter(None, map(str.strip, value.split(","))):
        address, colon, number = item.rpartition(":")
        if not colon:
            raise ValueError(f"{item!r} is not ADDRESS:NUMBER")
        numbers[str(ip_address(address.strip("[]")))] = _positive(number)
    return numbers


LimitSetting = tuple[str, Callable[[str], Any]]
"""The attribute of `Limits` that a setting changes, and its parser."""

SETTINGS: Mapping[str, LimitSetting] = MappingProxyType(
    {
        "connections.max.idle.ms": ("idle_timeout_s", _ms),
        "max.groups.per.request": ("groups_per_request", _positive),
        "max.connection.creation.rate": ("connection_creation_rate", _positive),
        "max.connections": ("connections", _positive),
        "max.connections.per.ip": ("connections_per_ip", _positive),
        "max.connections.per.ip.overrides": ("connections_per_ip_overrides", _by_ip),
        "max.in.flight.requests.per.connection": ("in_flight_per_connection", _positive),
        "queued.max.request.bytes": ("bytes_at_coordinator", _positive),
        "queued.max.requests": ("at_coordinator", _positive),
        "quota.window.num": ("quota_window_num", _positive),
        "quota.window.size.seconds": ("quota_window_s", _positive),
        "sasl.server.max.receive.size": ("unauthenticated_frame_bytes", _positive),
        "socket.request.max.bytes": ("frame_bytes", _positive),
    }
)
"""The settings by Kafka's names."""
