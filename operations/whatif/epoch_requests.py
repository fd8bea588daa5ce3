"""Heartbeats of the consumer, share and streams protocols, and their answers, in the form that they share.

A member joins with epoch 0, leaves with a negative epoch, and otherwise repeats the epoch of the last answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, structs

from kafka_why.contract.kafka.requests import TopicIdPartitions
from kafka_why.contract.kafka.responses import (
    AnyResponse,
    ConsumerGroupHeartbeatResponse,
    MemberHeartbeatResponse,
    ShareGroupHeartbeatResponse,
)
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from operations.whatif.facts import EpochHeartbeat, Report
from operations.whatif.observer import Partitions

EpochResponse = MemberHeartbeatResponse | StreamsGroupHeartbeatResponse

FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
"""Errors after which a client gives up its partitions and joins again."""

REPORTS: Final = ("topic_partitions", "active_tasks", "standby_tasks", "warmup_tasks")
"""The fields in which a request reports the partitions or tasks that its client has."""

_LASTING: Final = (
    "rack_id",
    "rebalance_timeout_ms",
    "subscribed_topic_names",
    "subscribed_topic_regex",
    "server_assignor",
    "topics",
    "regex",
    "checks_topics",
    "topology",
    "process_id",
    "user_endpoint",
    "client_tags",
)
_ONCE: Final = ("looked", "task_offsets", "task_end_offsets", "shutdown_application")


def lasting_fields(request: EpochHeartbeat) -> dict[str, Any]:
    """Return the fields that the request sets and that stay in force until another request sets them."""
    return _set_fields(request, _LASTING)


def has_news(request: EpochHeartbeat, known: Mapping[str, Any]) -> bool:
    """Return True if the request says more than that its client lives and what it has. `known` are its fields
    in force.
    """
    changed = (known.get(name) != value for name, value in lasting_fields(request).items())
    return any(changed) or bool(_set_fields(request, _ONCE))


def _set_fields(request: EpochHeartbeat, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(request, name, None) for name in names}
    return {name: value for name, value in values.items() if value not in (None, UNSET, -1, False)}


def reports(request: EpochHeartbeat) -> bool:
    """Return True if the request reports what its client has."""
    return any(getattr(request, name, None) is not None for name in REPORTS)


def assigned(response: AnyResponse) -> Report | None:
    """Return what an answer assigns to its member, or None if the member already knows its assignment."""
    match response:
        case ConsumerGroupHeartbeatResponse(assignment=list(given)):
            return {"topic_partitions": [TopicIdPartitions(it.topic_id, it.partitions) for it in given]}
        case ShareGroupHeartbeatResponse(assignment=list(given)):
            return {"assignment": given}
        case StreamsGroupHeartbeatResponse(active_tasks=list()):
            return {name: getattr(response, name) or [] for name in REPORTS[1:]}
    return None


def report_fields(report: Report) -> dict[str, Any]:
    """Return the fields of a request that reports this."""
    return {name: entries for name, entries in report.items() if name in REPORTS}


def partitions_of(report: Report) -> Partitions:
    """Return the partitions, by topic id, or the active tasks, by subtopology, that a member processes."""
    return frozenset(
        TopicPartition(topic, number) for name, topic, number in flat(report) if name not in REPORTS[2:]
    )


def flat(report: Report) -> set[tuple[str, str, int]]:
    """Return each partition with its field and its topic id or subtopology."""
    return {
        (name, str(structs.astuple(entry)[0]), number)
        for name, entries in report.items()
        for entry in entries
        for number in entry.partitions
    }
