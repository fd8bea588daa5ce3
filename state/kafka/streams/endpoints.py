"""The endpoints at which the members of an application answer interactive queries. Rows KSE1 to KSE6.

Source: EndpointToPartitionsManager.java, StreamsGroup.buildEndpointToPartitions.
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
# Upper bounds of the bytes of an endpoint besides host and port, of a topic besides its name, of a partition.
_BYTES_OF_ENDPOINT, _BYTES_OF_TOPIC, _BYTES_OF_PARTITION = 80, 40, 6


def note_endpoint(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    *,
    has_changed: bool,
    is_other: bool,
) -> None:
    """Row KSE1: raise the endpoint epoch if the member's endpoint is another one, or if the tasks behind it
    have changed.
    """
    endpoint = member.user_endpoint
    if not is_other and (endpoint is None or not has_changed):
        return
    row = context.rule("KSE1")
    group.endpoint_epoch += 1
    if is_other:
        where = f"at {endpoint}" if endpoint is not None else "no more"
        reason = f"answers interactive queries {where}"
        context.record_member(row, EntryType.ENDPOINT_CHANGED, member, reason)


def endpoints_for(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember, request: StreamsGroupHeartbeat
) -> tuple[int, list[EndpointToPartitions] | None]:
    """Return the endpoint epoch of the answer, and the endpoints if the client does not know them, else None.

    If the list is too large, the client keeps what it knows.
    """
    epoch, known = group.endpoint_epoch, request.endpoint_information_epoch
    if epoch == known:
        return epoch, None
    context.rule("KSE2")
    subtopologies = (
        {one.subtopology_id: one for one in group.topology.subtopologies} if group.topology else {}
    )
    if _is_too_large(group, subtopologies):
        context.rule("KSQ14")
        return known, None
    others = [other for _, other in sorted(group.members.items()) if other is not member]
    endpoints = [
        EndpointToPartitions(
            one.user_endpoint,
            _partitions(one.assigned.active, subtopologies, group.topics),
            _partitions((*one.assigned.standby, *one.assigned.warm_up), subtopologies, group.topics),
        )
        for one in (*others, member)
        if one.user_endpoint is not None
    ]
    return epoch, endpoints


def _is_too_large(group: StreamsGroup, subtopologies: Mapping[str, Subtopology]) -> bool:
    """Return True if the endpoints may have more than `BYTES_MAX`. The work does not grow beyond that."""
    left = BYTES_MAX
    for size in _sizes(group, subtopologies):
        left -= size
        if left < 0:
            return True
    return False


def _sizes(group: StreamsGroup, subtopologies: Mapping[str, Subtopology]) -> Iterator[int]:
    """Yield upper bounds of the bytes of the endpoints, one by one."""
    read: dict[str, list[str]] = {}
    for member in group.members.values():
        if member.user_endpoint is None:
            continue
        yield len(json.encode(member.user_endpoint)) + _BYTES_OF_ENDPOINT
        seen = set[tuple[Role, str]]()
        for role in Role:
            for id_, _ in member.assigned.of(role):
                if id_ not in read:
                    read[id_] = source_topics(subtopologies[id_]) if id_ in subtopologies else []
                if (role, id_) not in seen:
                    seen.add((role, id_))
                    yield sum(len(name) + _BYTES_OF_TOPIC for name in read[id_])
                yield len(read[id_]) * _BYTES_OF_PARTITION


def _partitions(
    tasks: Iterable[Task], subtopologies: Mapping[str, Subtopology], topics: Mapping[str, Topic | None]
) -> list[StreamsTopicPartitions]:
    """Rows KSE4 and KSB2: return the existing partitions that these tasks read, by topic. A topic that does
    not exist is left out.
    """
    found: dict[str, set[int]] = {}
    for subtopology, numbers in by_subtopology(tasks).items():
        read = source_topics(subtopologies[subtopology]) if subtopology in subtopologies else ()
        for name in read:
            topic = topics.get(name)
            existing = {number for number in numbers if topic is not None and number < topic.partitions}
            if existing:
                found.setdefault(name, set()).update(existing)
    return [StreamsTopicPartitions(name, sorted(numbers)) for name, numbers in sorted(found.items())]
