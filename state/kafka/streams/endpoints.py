"""The endpoints, host and port, at which the members of an application answer interactive queries. The
endpoint epoch of a group grows with each change, and a client sends the epoch of the endpoints that it has.
Rows KSE1 to KSE6.

Source: EndpointToPartitionsManager.java, StreamsGroup.buildEndpointToPartitions.

A row, such as KSE1, is a rule of docs/rules-streams.md. `context.cite` records that a row was applied.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import json

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.streams_responses import (
    EndpointToPartitions,
    StreamsGroupHeartbeat,
    StreamsTopicPartitions,
    Subtopology,
)
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.streams_group import Role, StreamsGroup, StreamsGroupMember, Task, by_subtopology
from state.kafka.streams_topics import source_topics

# A larger list could make an answer too large for a record of the responses topic.
BYTES_MAX = 1_048_576
# Upper bounds in bytes: of an endpoint without its host and port, of a topic without its name, of a
# partition.
_BYTES_OF_ENDPOINT, _BYTES_OF_TOPIC, _BYTES_OF_PARTITION = 80, 40, 6


def update_endpoint_epoch(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    *,
    tasks_changed: bool,
    endpoint_changed: bool,
) -> None:
    """Row KSE1: raise the endpoint epoch if the member's endpoint has changed, or if it has an endpoint and
    its tasks have changed.
    """
    endpoint = member.user_endpoint
    if not (endpoint_changed or (endpoint is not None and tasks_changed)):
        return
    row = context.cite("KSE1")
    group.endpoint_epoch += 1
    if endpoint_changed:
        where = f"at {endpoint}" if endpoint is not None else "no more"
        reason = f"answers interactive queries {where}"
        context.record_member(row, EntryType.ENDPOINT_CHANGED, member, reason)


def endpoints_for(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember, request: StreamsGroupHeartbeat
) -> tuple[int, list[EndpointToPartitions] | None]:
    """Return the endpoint epoch of the answer, and the endpoints, or None if the client already has them.

    If the list is too large, the answer repeats the client's epoch, so the client keeps its endpoints.
    """
    epoch, client_epoch = group.endpoint_epoch, request.endpoint_information_epoch
    if epoch == client_epoch:
        return epoch, None
    context.cite("KSE2")
    subtopologies = (
        {subtopology.subtopology_id: subtopology for subtopology in group.topology.subtopologies}
        if group.topology
        else {}
    )
    if _is_too_large(group, subtopologies):
        context.cite("KSQ14")
        return client_epoch, None
    # As in Kafka, the sender of the heartbeat is the last in the list.
    others = [other for _, other in sorted(group.members.items()) if other is not member]
    endpoints = [
        EndpointToPartitions(
            listed.user_endpoint,
            _partitions(listed.assigned.active, subtopologies, group.topics),
            _partitions((*listed.assigned.standby, *listed.assigned.warm_up), subtopologies, group.topics),
        )
        for listed in (*others, member)
        if listed.user_endpoint is not None
    ]
    return epoch, endpoints


def _is_too_large(group: StreamsGroup, subtopologies: Mapping[str, Subtopology]) -> bool:
    """Return True if the list of endpoints may be larger than `BYTES_MAX`."""
    remaining = BYTES_MAX
    for size in _sizes(group, subtopologies):
        remaining -= size
        if remaining < 0:
            return True
    return False


def _sizes(group: StreamsGroup, subtopologies: Mapping[str, Subtopology]) -> Iterator[int]:
    """Yield an upper bound in bytes for each part of the list of endpoints."""
    topics_of: dict[str, list[str]] = {}  # the source topics of each subtopology
    for member in group.members.values():
        if member.user_endpoint is None:
            continue
        yield len(json.encode(member.user_endpoint)) + _BYTES_OF_ENDPOINT
        counted = set[tuple[Role, str]]()  # a topic's name is listed once for all tasks of a role
        for role in Role:
            for id_, _ in member.assigned.of(role):
                if id_ not in topics_of:
                    topics_of[id_] = source_topics(subtopologies[id_]) if id_ in subtopologies else []
                if (role, id_) not in counted:
                    counted.add((role, id_))
                    yield sum(len(name) + _BYTES_OF_TOPIC for name in topics_of[id_])
                yield len(topics_of[id_]) * _BYTES_OF_PARTITION


def _partitions(
    tasks: Iterable[Task], subtopologies: Mapping[str, Subtopology], topics: Mapping[str, Topic | None]
) -> list[StreamsTopicPartitions]:
    """Rows KSE4 and KSB2: return the existing partitions that these tasks read, by topic. A topic that does
    not exist is left out.
    """
    partitions: dict[str, set[int]] = {}
    for subtopology, numbers in by_subtopology(tasks).items():
        names = source_topics(subtopologies[subtopology]) if subtopology in subtopologies else ()
        for name in names:
            topic = topics.get(name)
            existing = {number for number in numbers if topic is not None and number < topic.partitions}
            if existing:
                partitions.setdefault(name, set()).update(existing)
    return [StreamsTopicPartitions(name, sorted(numbers)) for name, numbers in sorted(partitions.items())]
