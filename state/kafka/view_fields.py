"""What the views of groups of all of Kafka's protocols have in common."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from msgspec import UNSET

from kafka_why.contract.kafka.snapshot import TopicSnapshot
from state.kafka.any_group import KafkaGroup
from state.kafka.group import Topic


def common_fields(group: KafkaGroup) -> dict[str, Any]:
    """Return the fields that groups of all protocols have."""
    return {
        "group_id": group.group_id,
        "incarnation": group.incarnation,
        "seq": group.seq,
        "at_ms": group.clock_ms,
        "state": group.state.value,
        "state_timestamp_ms": group.state_timestamp_ms,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "last_rebalance_at_ms": group.last_rebalance_at_ms,
        "last_rebalance_reason": group.last_rebalance_reason,
        "quarantined": group.quarantined,
        "configs": group.configs or UNSET,
    }


def topic_snapshots(topics: Mapping[str, Topic | None]) -> dict[str, TopicSnapshot | None]:
    """Return the topics, sorted by name, as a view shows them."""
    return {
        name: None if topic is None else TopicSnapshot(str(UUID(bytes=topic.topic_id)), topic.partitions)
        for name, topic in sorted(topics.items())
    }
