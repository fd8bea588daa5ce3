"""The assignment of a member of a classic group, by topic."""

from kafka_why.contract.protocols.consumer_protocol import ProtocolError, decode_assignment
from state.kafka.classic_group import ClassicGroup, Member


def assignment_of(group: ClassicGroup, member: Member) -> dict[str, list[int]] | None:
    """Return the partitions by topic, None if the bytes are not of Kafka's consumer."""
    if not group.is_consumer_group():
        return None
    by_topic: dict[str, list[int]] = {}
    if member.assignment:
        try:
            partitions = decode_assignment(member.assignment).partitions
        except ProtocolError:
            return None
        for topic, partition in sorted(partitions):
            by_topic.setdefault(topic, []).append(partition)
    return by_topic
