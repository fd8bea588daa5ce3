"""What the brokers are asked for lags: the bounds of logs, and records by their timestamps.

Only ListOffsets and Metadata, for which DESCRIBE on a topic is enough: no record is read.
"""

from collections.abc import Collection, Mapping

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec

from kafka_why.lag.log import LogBounds, Partition
from kafka_why.lag.record_times import Found

INTERVAL_S = 5.0
"""How often followers of the topics ask for the bounds of logs."""


def log_bounds(admin: KafkaAdminClient, topics: Collection[str]) -> dict[Partition, LogBounds]:
    """Return the bounds of every partition of these topics. Topics that do not exist, and partitions without
    a leader, are omitted. Sends two requests for the topics, and two to each leading broker. Raises
    KafkaError.
    """
    # A consumer's own end_offsets would wait for topics that do not exist, and offsets may outlive a topic.
    described = admin.describe_topics(sorted(topics)) if topics else []
    led = [
        TopicPartition(topic["name"], partition["partition_index"])
        for topic in described
        for partition in topic["partitions"]
        if partition["leader_id"] >= 0
    ]
    # The ends last: no record before an end is younger than the look at the beginnings.
    earliest = admin.list_partition_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST)) if led else {}
    latest = admin.list_partition_offsets(dict.fromkeys(led, OffsetSpec.LATEST)) if led else {}
    return {
        (where.topic, where.partition): LogBounds(earliest[where].offset, answer.offset)
        for where, answer in latest.items()
        if where in earliest
    }


def records_at(admin: KafkaAdminClient, times_ms: Mapping[Partition, int]) -> dict[Partition, Found]:
    """Return the first record of each partition with this timestamp or a greater one, None where there is
    none; for `NEWEST` the record with the greatest timestamp. Sends a request to each leading broker. Raises
    KafkaError.
    """
    asked = {TopicPartition(*where): at_ms for where, at_ms in times_ms.items()}
    found = admin.list_partition_offsets(asked) if asked else {}
    return {
        (where.topic, where.partition): None if at.offset < 0 else (at.offset, at.timestamp)
        for where, at in found.items()
    }
