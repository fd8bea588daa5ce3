"""The numbers of a gateway for RocketMQ's clients."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

import msgspec

from gateway.metrics.numbers import REASONS, CommonCounts, Family, Numbers, histograms_of
from kafka_why.contract.rocketmq.requests import MessageQueue

ROCKETMQ_PREFIX = "group_coordinator_rocketmq_gateway"
"""The prefix of all names of metrics."""
UNKNOWN = -1
"""The code under which all unknown request codes are counted, because clients choose them."""

REQUEST_CODES = msgspec.json.decode(
    (files(__package__) / "request_codes.json").read_bytes(), type=dict[str, int]
)
"""All codes of RocketMQ's requests, by their names. Source: RequestCode.java of 5.5.0."""
_NAMES: Mapping[int, str] = {code: name for name, code in REQUEST_CODES.items()} | {UNKNOWN: "unknown"}


@dataclass(eq=False)
class RocketmqCounts(CommonCounts):
    """Counts of the gateway for RocketMQ's clients."""

    passed: Counter[int] = field(default_factory=Counter)  # requests by code
    refused_requests: Counter[int] = field(default_factory=Counter)  # by code
    # By the codes of the request and of the response.
    responses: Counter[tuple[int, int]] = field(default_factory=Counter)
    notifications: int = 0
    swallowed: int = 0  # brokers' notifications that clients do not get
    upstream_connects: Counter[str] = field(default_factory=Counter)
    lags: Mapping[tuple[str, MessageQueue], int] = field(default_factory=dict)
    """By group and queue, as last polled."""
    lag_groups_left_out: int = 0


ROCKETMQ_FAMILIES: Mapping[str, Family] = {
    "connections": Family(
        "gauge", "Open connections of clients, by the part that they use, or `entry`.", ("at",)
    ),
    "connections_accepted": Family("counter", "Connections of clients that were accepted."),
    "connections_refused": Family("counter", "Connections that were refused.", ("reason",)),
    "connections_closed": Family("counter", "Connections that ended.", ("reason",)),
    "requests_passed": Family("counter", "Requests passed to brokers and name servers.", ("request",)),
    "requests_refused": Family("counter", "Requests that clients may not send here.", ("request",)),
    "responses": Family("counter", "Responses of both, by RocketMQ's code.", ("request", "code")),
    "request_duration_seconds": Family(
        "histogram", "From a request that the gateway answers to its response.", ("request",)
    ),
    "coordinator_duration_seconds": Family(
        "histogram", "From a request to the coordinator's response.", ("request",)
    ),
    "notifications": Family("counter", "Notifications of changed consumers, sent to clients."),
    "notifications_swallowed": Family("counter", "Notifications of brokers that clients do not get."),
    "upstream_connects": Family("counter", "Connections to brokers and name servers.", ("outcome",)),
    "broker_ports": Family("gauge", "Ports for brokers."),
    "received_bytes": Family("counter", "Bytes received from clients."),
    "sent_bytes": Family("counter", "Bytes sent to clients."),
    "unread_bytes": Family("gauge", "Bytes that slow clients have not read."),
    "held_bytes": Family("gauge", "Bytes of unanswered requests, above 16 KiB per client."),
    "loop_held": Family("counter", "Steps of the event loop of more than 20 ms of processor time."),
    "loop_held_seconds": Family("counter", "The processor time of these steps."),
    "consumer_lag_messages": Family(
        "gauge",
        "Messages of a queue behind the offset that the group has stored, polled each 30 s.",
        ("group", "topic", "broker", "queue"),
    ),
    "consumer_lag_groups_left_out": Family(
        "gauge", "Groups without the lag of some queues, because there are more than --lag-queues."
    ),
    "draining": Family("gauge", "1 while the gateway drains."),
}
"""All metrics, by name without the prefix."""


def rocketmq_numbers(counts: RocketmqCounts) -> Numbers:
    """Return the counters as numbers."""
    return {
        "connections_accepted": {(): [counts.accepted]},
        "connections_refused": {(reason,): [counts.refused[reason]] for reason in REASONS},
        "connections_closed": {(reason,): [n] for reason, n in counts.closed.items()},
        "requests_passed": {(_NAMES[code],): [n] for code, n in counts.passed.items()},
        "requests_refused": {(_NAMES[code],): [n] for code, n in counts.refused_requests.items()},
        "responses": {(_NAMES[code], str(answer)): [n] for (code, answer), n in counts.responses.items()},
        "request_duration_seconds": histograms_of((_NAMES[code], d) for code, d in counts.answered.items()),
        "coordinator_duration_seconds": histograms_of(counts.coordinator.items()),
        "notifications": {(): [counts.notifications]},
        "notifications_swallowed": {(): [counts.swallowed]},
        "upstream_connects": {(outcome,): [n] for outcome, n in counts.upstream_connects.items()},
        "received_bytes": {(): [counts.received_bytes]},
        "sent_bytes": {(): [counts.sent_bytes]},
        "loop_held": {(): [counts.long_steps]},
        "loop_held_seconds": {(): [counts.long_steps_s]},
        "consumer_lag_messages": {
            (group_id, queue.topic, queue.broker_name, str(queue.queue_id)): [lag]
            for (group_id, queue), lag in counts.lags.items()
        },
        "consumer_lag_groups_left_out": {(): [counts.lag_groups_left_out]},
    }


def counted_code(code: int) -> int:
    """Return the code under which a request is counted."""
    return code if code in _NAMES else UNKNOWN
