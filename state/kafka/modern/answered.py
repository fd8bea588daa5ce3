"""Partitions in answers to members and administrators."""

from collections.abc import Collection, Mapping
from uuid import UUID

from kafka_why.contract.kafka.responses import AssignedTopicPartitions


def assigned_partitions(assigned: Mapping[bytes, Collection[int]]) -> list[AssignedTopicPartitions]:
    """Return the partitions by topic id, as a response to a heartbeat has them."""
    return [
        AssignedTopicPartitions(UUID(bytes=topic_id), sorted(numbers))
        for topic_id, numbers in sorted(assigned.items())
    ]


def described_partitions(
    partitions: Mapping[bytes, Collection[int]], names: Mapping[bytes, str]
) -> list[AssignedTopicPartitions]:
    """Return the partitions by topic name (row AD5). Topics that no longer exist are left out."""
    return [
        AssignedTopicPartitions(UUID(bytes=topic_id), sorted(numbers), names[topic_id])
        for topic_id, numbers in sorted(partitions.items(), key=lambda item: names.get(item[0], ""))
        if topic_id in names
    ]
