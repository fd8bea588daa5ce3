"""The endpoints at which the members of an application answer interactive queries. Rows KSE1 to KSE6.

Source: EndpointToPartitionsManager.java, StreamsGroup.buildEndpointToPartitions.
"""

from collections.abc import Iterable, Mapping

from kafka_why.contract.kafka.streams_requests import StreamsGroupHeartbeat, Subtopology
from kafka_why.contract.kafka.streams_responses import EndpointToPartitions, StreamsTopicPartitions
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.streams_group import StreamsGroup, StreamsGroupMember, Task, by_subtopology
from state.kafka.streams_topics import source_topics

# A list with more partitions could be too large for a record of the responses topic.
PARTITIONS_MAX = 50_000


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
    if is_other or (has_changed and member.user_endpoint is not None):
        context.rule("KSE1")
        group.endpoint_epoch += 1


def endpoints_for(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember, request: StreamsGroupHeartbeat
) -> tuple[int, list[EndpointToPartitions] | None]:
    """Return the endpoint epoch of the answer, and the endpoints if the client does not know them, else None.

    If there are too many partitions, the client keeps what it knows.
    """
    epoch, known = group.endpoint_epoch, request.endpoint_information_epoch
    if epoch == known:
        return epoch, None
    context.rule("KSE2")
    others = [other for _, other in sorted(group.members.items()) if other is not member]
    subtopologies = (
        {one.subtopology_id: one for one in group.topology.subtopologies} if group.topology else {}
    )
    endpoints = [
        EndpointToPartitions(
            one.user_endpoint,
            _partitions(one.assigned.active, subtopologies, group.topics),
            _partitions((*one.assigned.standby, *one.assigned.warm_up), subtopologies, group.topics),
        )
        for one in (*others, member)
        if one.user_endpoint is not None
    ]
    number = sum(
        len(topic.partitions)
        for endpoint in endpoints
        for topics in (endpoint.active_partitions, endpoint.standby_partitions)
        for topic in topics
    )
    if number > PARTITIONS_MAX:
        context.rule("KSQ14")
        return known, None
    return epoch, endpoints


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
