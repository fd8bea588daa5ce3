"""The bytes of classic members, which go by topic name, and the consumer group's partitions, which go by
topic id.
"""

from collections.abc import Iterable, Mapping

from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.protocols.consumer_protocol import ProtocolError, decode_version, encode_assignment
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition
from state.kafka.consumer_group import AssignedPartitions
from state.kafka.group import Topic


def by_topic_id(
    partitions: Iterable[TopicPartition], topics: Mapping[str, Topic | None]
) -> tuple[Partitions, list[str]]:
    """Return the partitions, each once, by topic id, and the names, sorted, of topics that are not in
    `topics`. A topic that does not exist any more is left out.
    """
    numbers: dict[bytes, set[int]] = {}
    unknown = set()
    for name, number in partitions:
        topic = topics.get(name)
        if topic is not None:
            numbers.setdefault(topic.topic_id, set()).add(number)
        elif name not in topics:
            unknown.add(name)
    return {topic_id: sorted(numbers[topic_id]) for topic_id in sorted(numbers)}, sorted(unknown)


def assignment_bytes(
    partitions: AssignedPartitions | Partitions, names: Mapping[bytes, str], subscription: bytes
) -> bytes:
    """Return the partitions as the assignment of a classic member, in the version of its subscription.
    `names` are names of topics by id. A topic without a name is left out.
    """
    by_name = {
        names[topic_id]: sorted(numbers) for topic_id, numbers in partitions.items() if topic_id in names
    }
    named = tuple(TopicPartition(name, number) for name in sorted(by_name) for number in by_name[name])
    return encode_assignment(Assignment(named), _version(subscription))


def _version(subscription: bytes) -> int:
    """The version of a subscription, the lowest if it is unreadable: a JoinGroup is checked for the version
    of its first protocol alone.
    """
    try:
        return max(decode_version(subscription), 0)
    except ProtocolError:
        return 0
