"""The end offsets of topics, from the brokers."""

from collections.abc import Collection

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec

Partition = tuple[str, int]
"""A topic, and a partition's number."""


def end_offsets(admin: KafkaAdminClient, topics: Collection[str]) -> dict[Partition, int]:
    """Return the end offset of every partition of these topics. Topics that do not exist, and partitions
    without a leader, are omitted. Sends two requests for the topics, and one to each leading broker. Raises
    KafkaError.
    """
    # A consumer's own end_offsets would wait for topics that do not exist, and offsets may outlive a topic.
    described = admin.describe_topics(sorted(topics))
    led = {
        TopicPartition(topic["name"], partition["partition_index"]): OffsetSpec.LATEST
        for topic in described
        for partition in topic["partitions"]
        if partition["leader_id"] >= 0
    }
    found = admin.list_partition_offsets(led) if led else {}
    return {(where.topic, where.partition): answer.offset for where, answer in found.items()}
