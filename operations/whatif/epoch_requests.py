"""Heartbeats of the consumer, share and streams protocols, and their answers, in a common form.

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
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat, StreamsGroupHeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from operations.whatif.facts import EpochHeartbeat, Report
from operations.whatif.observer import Partitions
from operations.whatif.run import Run
from state.protocol import Received

EpochResponse = MemberHeartbeatResponse | StreamsGroupHeartbeatResponse

FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
"""Errors after which a client gives up its partitions and joins again."""

REPORTS: Final = ("topic_partitions", "active_tasks", "standby_tasks", "warmup_tasks")
"""The fields in which a request reports the partitions or tasks that its client has."""

# Fields that stay in force until another request sets them, and fields that count for one request only.
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


def has_updates(request: EpochHeartbeat, known: Mapping[str, Any]) -> bool:
    """Return True if the request updates a field of `known`, the client's fields in force."""
    return any(known.get(name) != value for name, value in update_fields(request).items())


def update_fields(request: EpochHeartbeat) -> dict[str, Any]:
    """Return the fields that the request sets, except ids, the epoch, and the fields in `REPORTS`."""
    return _set_fields(request, (*_LASTING, *_ONCE))


def stateful_subtopologies(request: object) -> set[str]:
    """Return the subtopologies with changelog topics in the request's topology, if it has one."""
    topology = request.topology if isinstance(request, StreamsGroupHeartbeat) else None
    subtopologies = () if topology is None else topology.subtopologies
    return {subtopology.subtopology_id for subtopology in subtopologies if subtopology.state_changelog_topics}


def _set_fields(request: EpochHeartbeat, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of these names that the request sets."""
    values = {name: getattr(request, name, None) for name in names}
    # Each of these values means that the field is not set.
    return {name: value for name, value in values.items() if value not in (None, UNSET, -1, False)}


def has_report(request: EpochHeartbeat) -> bool:
    """Return True if the request reports the partitions or tasks that its client has."""
    return any(getattr(request, name, None) is not None for name in REPORTS)


def assignment_in(response: AnyResponse) -> Report | None:
    """Return the partitions or tasks that an answer assigns to its member, or None if it has no assignment,
    for example because the assignment has not changed.
    """
    match response:
        case ConsumerGroupHeartbeatResponse(assignment=list(given)):
            return {
                "topic_partitions": [TopicIdPartitions(topic.topic_id, topic.partitions) for topic in given]
            }
        case ShareGroupHeartbeatResponse(assignment=list(given)):
            return {"assignment": given}
        case StreamsGroupHeartbeatResponse(active_tasks=list()):
            task_fields = REPORTS[1:]  # the first field is for partitions
            return {name: getattr(response, name) or [] for name in task_fields}
    return None


def report_fields(report: Report) -> dict[str, Any]:
    """Return the fields of a request with this report. There are none for a share group (`Report`)."""
    return {name: entries for name, entries in report.items() if name in REPORTS}


def partitions_of(report: Report) -> Partitions:
    """Return the partitions, by topic id, or the active tasks, by subtopology, that a member processes."""
    copies = REPORTS[2:]  # standby and warm-up tasks, which process no records
    return frozenset(
        TopicPartition(topic, number) for name, topic, number in flatten(report) if name not in copies
    )


def flatten(report: Report) -> set[tuple[str, str, int]]:
    """Return each partition with its field and its topic id or subtopology."""
    # The first field of an entry is the topic id or the subtopology.
    return {
        (name, str(structs.astuple(entry)[0]), number)
        for name, entries in report.items()
        for entry in entries
        for number in entry.partitions
    }


def fatal_requests(run: Run) -> set[str]:
    """Return the ids of heartbeats that failed, and after which the process did not continue as a member."""
    fatal = set()
    # By process, the epoch of the heartbeat that follows in the run, because the steps are read backward. An
    # epoch of 0 joins and a negative one leaves.
    next_epochs: dict[str | None, int] = {}
    for step in reversed(run.steps):
        for reply in step.effects.replies:
            response = reply.response
            key = run.senders.get(response.request)
            if isinstance(response, EpochResponse) and response.error_code and next_epochs.get(key, 0) <= 0:
                fatal.add(response.request)
        if isinstance(step.event, Received) and isinstance(step.event.request, EpochHeartbeat):
            next_epochs[run.senders.get(step.event.request_id)] = step.event.request.member_epoch
    return fatal
