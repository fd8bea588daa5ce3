"""The counters of a gateway, and its numbers at one moment, in a form that another process can read and add
to its own.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka.protocol.api_key import ApiKey

from gateway.wire.codec import GatewayError, NewerApiKey
from kafka_why.contract.messages import ErrorCode

# Counters of one gateway, written on the event loop's thread. They are plain numbers, because a counter of
# prometheus_client takes one microsecond, and a whole request takes some tens of microseconds.


BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the histograms' buckets, in seconds. The last bucket, without a bound, is not listed.
"""

TOO_MANY, TOO_MANY_OF_IP = "max.connections", "max.connections.per.ip"
TOO_OFTEN_OF_IP = "connection_creation_rate"
DRAINING, TOO_LATE = "draining", "timeout"
REASONS = (TOO_MANY, TOO_MANY_OF_IP, TOO_OFTEN_OF_IP, DRAINING, TOO_LATE)
"""The reasons to refuse a connection: the exceeded limit, the gateway's end, or first bytes or a TLS
handshake that were incomplete for too long.
"""


@dataclass(slots=True)
class DurationHistogram:
    """A histogram: the number of values in each bucket, and the sum of all values in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a value. A value on a bound belongs to the bucket below the bound, as in Prometheus."""
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(eq=False)
class CommonCounts:
    """Counts since the start of the process, common to the gateways of Kafka and of RocketMQ."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # connections by reason, one of REASONS
    closed: Counter[str] = field(default_factory=Counter)  # connections by reason
    received_bytes: int = 0
    sent_bytes: int = 0
    # Durations of requests that the gateway answers, by api key or code.
    answered: defaultdict[int, DurationHistogram] = field(
        default_factory=lambda: defaultdict(DurationHistogram)
    )
    # Durations of the coordinator's responses by the name of the request, without JoinGroup and SyncGroup,
    # which the coordinator may park.
    coordinator: defaultdict[str, DurationHistogram] = field(
        default_factory=lambda: defaultdict(DurationHistogram)
    )
    long_steps: int = 0  # steps of the event loop that took too long (`gateway.running`)
    long_steps_s: float = 0.0  # total time of these steps


@dataclass(eq=False)
class GatewayCounts(CommonCounts):
    """Counts of the gateway for Kafka's clients."""

    errors: Counter[tuple[int, int]] = field(default_factory=Counter)  # responses by api key and error code
    items: Counter[int] = field(default_factory=Counter)  # groups in requests for several groups, by api key
    throttled: Counter[int] = field(default_factory=Counter)  # requests over a quota, by api key
    throttled_s: float = 0.0  # total time for which clients were throttled


Labels = tuple[str, ...]
Values = dict[Labels, list[float]]
"""The values of a metric, by label values. A counter or a gauge has one number. A histogram has a number for
each bucket, and then the sum.
"""
Numbers = dict[str, Values]
"""The values of all metrics, by the name in FAMILIES."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. `kind` is counter, gauge or histogram, and `meaning` is Prometheus's help text."""

    kind: str
    meaning: str
    labels: Labels = ()


FAMILIES: Mapping[str, Family] = {
    "connections": Family("gauge", "Open connections of clients."),
    "connections_accepted": Family("counter", "Connections of clients that were accepted."),
    "connections_refused": Family(
        "counter",
        "Connections that were refused, by the name of the limit, `draining`, or `timeout` (its first bytes"
        " or TLS handshake were incomplete for too long).",
        ("reason",),
    ),
    "connections_closed": Family(
        "counter",
        "Connections that ended: by the `client`, `idle`, `drained`, by an `error` (protocol, broker,"
        " authentication), by a `failure` (a bug), or `stopped` (under way after the drain timeout).",
        ("reason",),
    ),
    "request_duration_seconds": Family(
        "histogram",
        "From a request's turn to its response. JoinGroup and SyncGroup wait for other members.",
        ("api",),
    ),
    "request_errors": Family("counter", "Responses with an error to group requests.", ("api", "error")),
    "request_groups": Family(
        "counter", "Groups that requests about several groups name. Each costs a request.", ("api",)
    ),
    "requests_throttled": Family("counter", "Requests over their client's quota.", ("api",)),
    "throttle_seconds": Family("counter", "The time for which clients were throttled."),
    "loop_held": Family(
        "counter",
        "Steps of the event loop of more than 20 ms, in which no other client is served.",
    ),
    "loop_held_seconds": Family("counter", "The processor time of these steps."),
    "coordinator_duration_seconds": Family(
        "histogram", "From a request to the coordinator's response, without parked requests.", ("request",)
    ),
    "received_bytes": Family("counter", "Bytes received from clients."),
    "sent_bytes": Family("counter", "Bytes sent to clients."),
    "in_flight": Family("gauge", "Requests in progress: at `brokers`, all others `coordinator`.", ("at",)),
    "held_clients": Family(
        "gauge",
        "Connections that are not read for now: the coordinator has no `room`, all clients have sent too much"
        " (`memory`), their large request waits (`flow`), or they are over a `quota`.",
        ("why",),
    ),
    "parked_bytes": Family("gauge", "Bytes of JoinGroups and SyncGroups that wait."),
    "unanswered_bytes": Family("gauge", "Bytes of unanswered requests, above 16 KiB per client."),
    "unread_bytes": Family("gauge", "Bytes of responses that clients have not read."),
    "upstream_connections": Family("gauge", "Connections to brokers for clients."),
    "share_record_acknowledgements": Family(
        "counter", "Records of share groups whose acknowledgements leaders accepted.", ("ack_type",)
    ),
    "share_records_delivered": Family("counter", "Deliveries of records to members of share groups."),
    "share_records_redelivered": Family("counter", "Deliveries that were not a record's first one."),
    "share_records_at_delivery_limit": Family("counter", "Deliveries that were a record's last one."),
    "share_records_expired": Family(
        "counter",
        "Deliveries whose lock ended (inferred).",
    ),
    "share_records_released_by_end": Family("counter", "Deliveries that ended with the member's session."),
    "share_records_not_followed": Family("counter", "Deliveries not followed to their end, to limit memory."),
    "share_acknowledgements_late": Family(
        "counter", "Records that were acknowledged when their lock had ended."
    ),
    "share_acknowledgements_refused": Family(
        "counter", "Acknowledgements of a partition that were INVALID_RECORD_STATE."
    ),
    "share_records_suspected": Family("counter", "Records that became suspected of being poison."),
    "share_sessions": Family("gauge", "Connections of members of share groups."),
    "draining": Family("gauge", "Processes of the gateway that are draining."),
}
"""All metrics, by name without the prefix."""


def counter_numbers(counts: GatewayCounts) -> Numbers:
    """Return the counters as numbers."""
    return {
        "connections_accepted": {(): [counts.accepted]},
        # All reasons are present from the start, because Prometheus does not see the first value of a series
        # as an increase.
        "connections_refused": {(reason,): [counts.refused[reason]] for reason in REASONS},
        "connections_closed": {(reason,): [n] for reason, n in counts.closed.items()},
        "request_duration_seconds": histograms_of((_api_label(key), d) for key, d in counts.answered.items()),
        "request_errors": {
            (_api_label(key), _ERRORS.get(error, str(error))): [n]
            for (key, error), n in counts.errors.items()
        },
        "request_groups": {(_api_label(key),): [n] for key, n in counts.items.items()},
        "requests_throttled": {(_api_label(key),): [n] for key, n in counts.throttled.items()},
        "throttle_seconds": {(): [counts.throttled_s]},
        "loop_held": {(): [counts.long_steps]},
        "loop_held_seconds": {(): [counts.long_steps_s]},
        "coordinator_duration_seconds": histograms_of(counts.coordinator.items()),
        "received_bytes": {(): [counts.received_bytes]},
        "sent_bytes": {(): [counts.sent_bytes]},
    }


def sum_numbers(all_numbers: Sequence[Numbers]) -> Numbers:
    """Return the sum of the numbers of several processes."""
    total: Numbers = {}
    for numbers in all_numbers:
        for name, values in numbers.items():
            total_values = total.setdefault(name, {})
            for labels, value in values.items():
                _add(total_values, labels, value)
    return total


def without_gauges(numbers: Numbers) -> Numbers:
    """Return the counters and histograms, which stay valid while a process does not answer."""
    return {name: values for name, values in numbers.items() if FAMILIES[name].kind != "gauge"}


def _add(total: Values, labels: Labels, value: list[float]) -> None:
    """Add the numbers of a value to those of the same labels in `total`."""
    sums = total.get(labels, [0.0] * len(value))
    total[labels] = [a + b for a, b in zip(sums, value, strict=True)]


def histograms_of(durations: Iterable[tuple[str, DurationHistogram]]) -> Values:
    """Return histograms by label. Histograms with the same label (unknown APIs) are added up."""
    total: Values = {}
    for label, histogram in durations:
        _add(total, (label,), [*histogram.buckets, histogram.sum_s])
    return total


def _api_label(key: int) -> str:
    # All unknown keys share one label, because clients choose them.
    return _API_NAMES.get(key, "unknown")


_API_NAMES: Mapping[int, str] = {key.value: key.name for key in (*ApiKey, *NewerApiKey)}
_ERRORS: Mapping[int, str] = {error.value: error.name for kind in (GatewayError, ErrorCode) for error in kind}
