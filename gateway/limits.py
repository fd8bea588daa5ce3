"""Limits on the use of the gateway by one client, and by all clients together."""

import math
import time
import tomllib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kafka_why.errors import UserFacingError
from kafka_why.numbers import parse_whole_number

MIB = 1024 * 1024
UNLIMITED = 2**31 - 1
"""Kafka's default of limits that are off."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one gateway: sizes in bytes, times in seconds. The defaults are Kafka's where Kafka has
    the limit.

    A connection has at most `in_flight_per_connection` unanswered requests. While these have
    `in_flight_bytes_per_connection` bytes or more, the gateway does not read from the connection, so one
    frame may exceed this limit. `forwarded` limits the concurrent requests of all connections at brokers, and
    `at_coordinator` those at the coordinator. Parked requests, such as a JoinGroup that waits for other
    members, do not count. The gateway does not read from a connection that waits for such capacity.

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
    groups_behind_max_s: float = 3.0  # ListGroups waits at most this long for the reader of the groups topic
    # A member's request is held at least this long before it gets an error: docs/decisions/0009.
    member_held_s: float = 3.0
    topics_look_up_s: float = 3.0  # after this, a member's request is sent without its topics
    quota_window_num: int = 11  # quota.window.num
    quota_window_s: float = 1.0  # quota.window.size.seconds

    def with_settings(
        self, settings: Mapping[str, str], known: "Mapping[str, LimitSetting] | None" = None
    ) -> "Limits":
        """Return these limits, changed by `settings`. `known` has the possible settings, by default SETTINGS.
        Raises ValueError.
        """
        known = SETTINGS if known is None else known
        changed: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in known:
                raise ValueError(f"{name} is not a setting of the gateway: {', '.join(sorted(known))}")
            attribute, parse = known[name]
            try:
                changed[attribute] = parse(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return replace(self, **changed)


def _parse_positive(value: str) -> int:
    return parse_whole_number(value.strip(), 1, UNLIMITED)


def _parse_ms(value: str) -> float:
    return _parse_positive(value) / 1000


def _parse_by_ip(value: str) -> dict[str, int]:
    """Parse `ADDRESS:NUMBER,...`. An IPv6 address contains colons."""
    numbers: dict[str, int] = {}
    for item in filter(None, map(str.strip, value.split(","))):
        address, colon, number = item.rpartition(":")
        if not colon:
            raise ValueError(f"{item!r} is not ADDRESS:NUMBER")
        numbers[str(ip_address(address.strip("[]")))] = _parse_positive(number)
    return numbers


LimitSetting = tuple[str, Callable[[str], Any]]
"""The attribute of `Limits` that a setting changes, and its parser."""

SETTINGS: Mapping[str, LimitSetting] = MappingProxyType(
    {
        "connections.max.idle.ms": ("idle_timeout_s", _parse_ms),
        "max.groups.per.request": ("groups_per_request", _parse_positive),
        "max.connection.creation.rate": ("connection_creation_rate", _parse_positive),
        "max.connections": ("connections", _parse_positive),
        "max.connections.per.ip": ("connections_per_ip", _parse_positive),
        "max.connections.per.ip.overrides": ("connections_per_ip_overrides", _parse_by_ip),
        "max.in.flight.requests.per.connection": ("in_flight_per_connection", _parse_positive),
        "queued.max.request.bytes": ("bytes_at_coordinator", _parse_positive),
        "queued.max.requests": ("at_coordinator", _parse_positive),
        "quota.window.num": ("quota_window_num", _parse_positive),
        "quota.window.size.seconds": ("quota_window_s", _parse_positive),
        "sasl.server.max.receive.size": ("unauthenticated_frame_bytes", _parse_positive),
        "socket.request.max.bytes": ("frame_bytes", _parse_positive),
    }
)
"""The settings by Kafka's names."""


# Quotas of clients: the rules in a file, and their token buckets.


DEFAULT = "<default>"
GROUP_REQUEST_RATE, CONNECTION_CREATION_RATE = "group_request_rate", "connection_creation_rate"
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"

Entity = tuple[str | None, str | None]
"""A user and a client id. Either is None if the quota does not depend on it."""


class QuotasError(UserFacingError, ValueError):
    """A quotas file cannot be used."""


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """The rules of a quotas file: requests a second by entity, and new connections a second by IP address.

    The entry `DEFAULT` applies to everyone without an entry.
    """

    requests: Mapping[Entity, float] = field(default_factory=dict)
    connections: Mapping[str, float] = field(default_factory=dict)

    def request_rate(self, user: str, client_id: str) -> tuple[Entity, float] | None:
        """Return the entity whose clients share the quota of this client, and its rate, or None without a
        quota.

        The order is that of Kafka's ClientQuotaManager. All client ids of a user share the user's quota. A
        default gives each user, or each client id, a separate quota.
        """
        # The entity of a rule, and the entity whose clients share a quota by this rule.
        for rule_entity, shared_entity in (
            ((user, client_id), (user, client_id)),
            ((user, DEFAULT), (user, client_id)),
            ((user, None), (user, None)),
            ((DEFAULT, client_id), (user, client_id)),
            ((DEFAULT, DEFAULT), (user, client_id)),
            ((DEFAULT, None), (user, None)),
            ((None, client_id), (None, client_id)),
            ((None, DEFAULT), (None, client_id)),
        ):
            rate = self.requests.get(rule_entity)
            if rate is not None:
                return shared_entity, rate
        return None

    def connection_rate(self, address: str) -> float | None:
        """Return how many new connections a second an IP address may open, or None if there is no quota."""
        return self.connections.get(address, self.connections.get(DEFAULT))


def read_quotas(path: Path) -> QuotaRules:
    """Read a quotas file. Raises QuotasError."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise QuotasError(f"the quotas in {path} cannot be read: {error}") from error
    entries = document.pop("quotas", [])
    if document or not isinstance(entries, list):
        raise QuotasError(f"{path} has something else than [[quotas]]: {', '.join(document) or 'quotas'}")
    requests: dict[Entity, float] = {}
    connections: dict[str, float] = {}
    for number, entry in enumerate(entries, 1):
        try:
            _add_entry(entry, requests, connections)
        except ValueError as error:
            raise QuotasError(f"{path}, quota {number}: {error}") from error
    return QuotaRules(requests, connections)


def _add_entry(entry: Any, requests: dict[Entity, float], connections: dict[str, float]) -> None:
    """Add an entry of a quotas file to the rules. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError("it is not a [[quotas]] table")
    entity = {name: entry[name] for name in (_USER, _CLIENT_ID, _IP) if name in entry}
    if not all(isinstance(value, str) and value for value in entity.values()):
        raise ValueError("user, client-id and ip are strings")
    rate_name = CONNECTION_CREATION_RATE if _IP in entity else GROUP_REQUEST_RATE
    has_wrong_fields = set(entry) != {*entity, rate_name}
    is_ip_combined = _IP in entity and len(entity) > 1
    if has_wrong_fields or not entity or is_ip_combined:
        raise ValueError(
            f"it needs user, client-id or both with {GROUP_REQUEST_RATE}, "
            f"or ip with {CONNECTION_CREATION_RATE}"
        )
    rate = entry[rate_name]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ValueError(f"{rate_name} is not a number above 0")
    if _IP in entity:
        address = entity[_IP] if entity[_IP] == DEFAULT else str(ip_address(entity[_IP]))
        _add_rate(connections, address, rate)
    else:
        _add_rate(requests, (entity.get(_USER), entity.get(_CLIENT_ID)), rate)


def _add_rate(rates: dict[Any, float], key: Any, rate: float) -> None:
    if key in rates:
        raise ValueError("the entity has a quota already")
    rates[key] = float(rate)


class TokenBucket:
    """Kafka's token bucket (KIP-599): `rate` tokens a second, at most `burst`. It is full at the beginning.

    A request takes a token even if there is none. The number of tokens is then negative: a debt, which new
    tokens pay. Clients are throttled until the debt is paid. The debt is at most what `longest_s` seconds
    pay, so no client is throttled for longer than that. Kafka limits its request quota in the same
    way (ClientRequestQuotaManager), because a member that is throttled for too long loses its session.
    """

    __slots__ = ("_burst", "_min_tokens", "_refilled_at_s", "_tokens", "rate")

    def __init__(self, rate: float, *, burst: float, longest_s: float, now_s: float) -> None:
        self.rate = rate
        self._burst = burst
        self._min_tokens = -rate * longest_s  # the largest debt
        self._tokens = burst
        self._refilled_at_s = now_s

    def charge_exceeds(self, now_s: float) -> bool:
        """Take a token. Return True if there was none, so that the client has to be throttled."""
        self._refill(now_s)
        self._tokens = max(self._tokens - 1, self._min_tokens)
        return self._tokens < 0

    def try_charge(self, now_s: float) -> bool:
        """Take a token if there is one. Return False if there is none."""
        self._refill(now_s)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until there is a token, but at most `longest_s`."""
        self._refill(now_s)
        longest_s = -self._min_tokens / self.rate
        return min(max((1 - self._tokens) / self.rate, 0.0), longest_s)

    def throttle_s(self, now_s: float) -> float:
        """Return the seconds until the debt is paid, 0 without a debt."""
        self._refill(now_s)
        return max(-self._tokens / self.rate, 0.0)

    def is_full(self, now_s: float) -> bool:
        """Return True if the bucket has as many tokens as a new one."""
        self._refill(now_s)
        return self._tokens >= self._burst

    def _refill(self, now_s: float) -> None:
        if now_s > self._refilled_at_s:
            self._tokens = min(self._burst, self._tokens + self.rate * (now_s - self._refilled_at_s))
            self._refilled_at_s = now_s


# Above this number, full buckets are dropped, because clients choose their ids.
_BUCKETS_MAX = 10_000
# Longer client ids are hashed, because 10,000 ids of 32 kB would need much memory.
_CLIENT_ID_MAX_CHARACTERS = 256
# A new connection waits no longer than this, because clients then give up
# (socket.connection.setup.timeout.max.ms).
_LONGEST_WAIT_S = 30.0
NO_RULES = QuotaRules()


class Quotas:
    """The token buckets of a gateway's clients, for use on the event loop's thread.

    A caller may cache a bucket until `version` changes.
    """

    def __init__(
        self, limits: Limits, rules: QuotaRules = NO_RULES, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.version = 0
        self.now_s = now_s
        self._rules = rules
        self.has_request_rates = bool(rules.requests)
        """True if any client has a quota of requests."""
        self._burst_s = limits.quota_window_num * limits.quota_window_s
        self._longest_s = limits.quota_window_s
        self._requests: dict[Hashable, TokenBucket] = {}  # by entity
        self._connections: dict[Hashable, TokenBucket] = {}  # by IP address
        self._drop_above = _BUCKETS_MAX
        rate = limits.connection_creation_rate
        self.all_connections = None if rate == UNLIMITED else self._new_bucket(rate, _LONGEST_WAIT_S)
        """The bucket of new connections from all addresses (`max.connection.creation.rate`)."""

    def replace_rules(self, rules: QuotaRules) -> None:
        """Replace the rules. Clients whose rate stays the same keep their bucket."""
        self._rules = rules
        self.has_request_rates = bool(rules.requests)
        self.version += 1

    def requests_of(self, user: str, client_id: str) -> TokenBucket | None:
        """Return the bucket of a client's requests, or None if it has no quota."""
        entity_and_rate = self._rules.request_rate(user, client_id)
        if entity_and_rate is None:
            return None
        (shared_user, shared_id), rate = entity_and_rate
        if shared_id is not None and len(shared_id) > _CLIENT_ID_MAX_CHARACTERS:
            shared_id = sha256(shared_id.encode()).hexdigest()
        return self._bucket(self._requests, (shared_user, shared_id), rate)

    def connections_of(self, address: str) -> TokenBucket | None:
        """Return the bucket of new connections from an IP address, or None if it has no quota."""
        rate = self._rules.connection_rate(address)
        return None if rate is None else self._bucket(self._connections, address, rate)

    @property
    def bucket_count(self) -> int:
        """The number of buckets."""
        return len(self._requests) + len(self._connections)

    def _bucket(self, buckets: dict[Hashable, TokenBucket], key: Hashable, rate: float) -> TokenBucket:
        """Return the bucket of this key, a new one if there is none or if the rate has changed."""
        bucket = buckets.get(key)
        if bucket is None or bucket.rate != rate:
            bucket = buckets[key] = self._new_bucket(rate)
            if self.bucket_count > self._drop_above:
                self._drop_full(except_for=bucket)
        return bucket

    def _drop_full(self, except_for: TokenBucket) -> None:
        """Remove full buckets, because new ones would equal them."""
        now_s = self.now_s()
        for buckets in (self._requests, self._connections):
            for key in [k for k, b in buckets.items() if b is not except_for and b.is_full(now_s)]:
                del buckets[key]
        self._drop_above = max(_BUCKETS_MAX, 2 * self.bucket_count)
        self.version += 1  # callers must not use the removed buckets

    def _new_bucket(self, rate: float, longest_s: float | None = None) -> TokenBucket:
        # Even if the rate is very low, the first request is not throttled.
        burst = max(rate * self._burst_s, 1.0)
        return TokenBucket(rate, burst=burst, longest_s=longest_s or self._longest_s, now_s=self.now_s())
