"""Reads the metrics that a group's clients pushed, and their poll intervals."""

from collections.abc import Iterator, Mapping, Sequence

from kafka import TopicPartition

from kafka_why.contract.codec import decode_request, number_in_pack, record_of
from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat, JoinGroup
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.pack import unpack
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.contract.telemetry import decode_telemetry, is_of_group
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicReader
from kafka_why.why.client_telemetry import NOTHING_SAID, Push, Telemetry
from kafka_why.why.segments import JOINS, REMOVALS

LOOKBACK_MS = 3_600_000
"""The longest interval between pushes: a member's last push may be this much older than an entry."""
MAX_MEMBERS = 20
"""The maximum number of removed members whose joins are read: the last ones whose clients pushed metrics."""


def read_telemetry(
    reader: TopicReader, layout: TopicLayout, group_id: str, entries: Sequence[AnyHistoryEntry]
) -> Telemetry:
    """Return the metrics pushed since shortly before the first of these entries. Raises KafkaError."""
    partition = TopicPartition(layout.telemetry_topic, partition_of(group_id, layout.request_partitions))
    if not entries or partition not in reader.partitions_of(partition.topic):
        return NOTHING_SAID  # observers and coordinators of earlier versions have no such topic
    pushes: dict[MemberId, list[Push]] = {}
    for member_id, push in _pushes(reader, partition, group_id, entries[0].at_ms - LOOKBACK_MS):
        pushes.setdefault(member_id, []).append(push)
    joins = _joins_of_removed(entries, pushes)
    return Telemetry(pushes, _poll_intervals_ms(reader, layout.requests_topic, joins))


def _pushes(
    reader: TopicReader, partition: TopicPartition, group_id: str, since_ms: int
) -> Iterator[tuple[MemberId, Push]]:
    first = reader.offsets_at([partition], since_ms)[partition]
    if first is None:
        return
    ends = reader.ends([partition])
    reader.start(at={partition: first})
    for record in reader.read_to(ends):
        if record.value is not None and is_of_group(record.key, group_id):
            said = decode_telemetry(record.value)
            if said is not None:
                yield said.member_id, Push(record.timestamp, said.metrics)


def _joins_of_removed(
    entries: Sequence[AnyHistoryEntry], said: Mapping[MemberId, object]
) -> dict[MemberId, str]:
    """Return the id of the last join request of each removed member that pushed metrics."""
    joins: dict[MemberId, str] = {}
    removed: dict[MemberId, str] = {}
    for entry in entries:
        member_id = entry.member_id if isinstance(entry, HistoryEntry) else None
        if member_id is None or member_id not in said:
            continue
        if entry.type in JOINS:
            joins[member_id] = entry.cause
        elif entry.type in REMOVALS and member_id in joins:
            removed[member_id] = joins[member_id]
    return dict(list(removed.items())[-MAX_MEMBERS:])


def _poll_intervals_ms(
    reader: TopicReader, requests_topic: str, joins: Mapping[MemberId, str]
) -> dict[MemberId, int]:
    """Return the poll interval of each member, from its join: Kafka's clients send max.poll.interval.ms as
    their rebalance timeout.
    """
    found: dict[MemberId, int] = {}
    for member_id, request_id in joins.items():
        topic, number, offset = record_of(request_id)
        if topic != requests_topic:
            continue  # the coordinator had a different requests topic at that time
        at = TopicPartition(topic, number), offset
        request = _request(reader, *at, number_in_pack(request_id))
        if isinstance(request, JoinGroup | ConsumerGroupHeartbeat):
            found[member_id] = request.rebalance_timeout_ms
    return found


def _request(reader: TopicReader, partition: TopicPartition, offset: int, number: int) -> object:
    """Return the request with this number in a record, or None if the topic no longer has the record."""
    if not reader.beginnings([partition])[partition] <= offset < reader.ends([partition])[partition]:
        return None
    reader.start(at={partition: offset})
    (record,) = reader.read_to({partition: offset + 1})
    return decode_request(unpack(record.value)[number])
