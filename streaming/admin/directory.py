"""ListGroups: the groups there are, read from the compacted groups topic at call time.

The list has everything that stood in the topic when its end offsets were asked, at the call's beginning. That
is what the coordinator's last committed batch did, and all before it; what a batch under way does is not in
it. It costs the coordinator nothing.
"""

import time
from collections.abc import Iterable

import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

from assignors.kafka.protocol import PROTOCOL_TYPE
from state.snapshot import GroupSnapshot
from streaming.history_reader import GroupTable, decode_snapshot
from streaming.layout import Layout
from streaming.records import UNREADABLE

# All groups of the classic coordinator are of this type; Kafka's newer ones are "Consumer" groups.
GROUP_TYPE = "Classic"

_POLL_MS = 200

log = structlog.get_logger()


def list_groups(bootstrap_servers: str, layout: Layout, timeout_ms: int) -> list[GroupSnapshot]:
    """Every group, empty ones too, by id. Raises KafkaTimeoutError, or another KafkaError of the broker."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        allow_auto_create_topics=False,
        max_partition_fetch_bytes=layout.response_record_max_bytes,
        metrics_enabled=False,
    )
    try:
        return _read(consumer, layout.groups_topic, timeout_ms)
    finally:
        consumer.close(autocommit=False)


def _read(consumer: KafkaConsumer, topic: str, timeout_ms: int) -> list[GroupSnapshot]:
    give_up_s = time.monotonic() + timeout_ms / 1000
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions, timeout_ms=timeout_ms)
    consumer.seek_to_beginning(*partitions)
    table = GroupTable()
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        if time.monotonic() > give_up_s:
            raise KafkaTimeoutError(f"topic {topic} was not read to its end within {timeout_ms} ms")
        for records in consumer.poll(timeout_ms=_POLL_MS).values():
            for record in records:
                _apply(table, record.key, record.value)
    return table.groups


def _apply(table: GroupTable, key: bytes | None, value: bytes | None) -> None:
    try:
        table.apply((key or b"").decode(), decode_snapshot(value) if value is not None else None)
    except UNREADABLE as error:
        log.warning("a record of the groups topic cannot be read", key=key, error=str(error))


def select_groups(
    groups: Iterable[GroupSnapshot], states: frozenset[str], types: frozenset[str]
) -> list[GroupSnapshot]:
    """The consumer groups among them that are in one of the states and of one of the types; an empty set is
    no filter.

    As in kafka-consumer-groups these are the groups whose protocol type is "consumer" or, with offsets and
    no members yet (simple groups), not set. Source: ListGroupsOptions.forConsumerGroups.
    """
    if types and GROUP_TYPE not in types:
        return []
    return [
        group
        for group in groups
        if (group.protocol_type or "") in ("", PROTOCOL_TYPE) and (not states or group.state in states)
    ]
