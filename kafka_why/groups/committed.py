"""Offsets of groups: committed, and pending in transactions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import decode_offset, decode_offset_key
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.topic_reader import TopicReader


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a partition; `leader_epoch` is -1 if the committer sent none."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """All committed offsets of a group, empty if `error_code` is set.

    `pending` are the offsets that will be the committed ones if their transactions commit.
    """

    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    pending: Mapping[TopicPartition, int] = field(default_factory=dict)
    error_code: ErrorCode = ErrorCode.NONE


def committed_offsets(
    client_config: ClientConfig, layout: TopicLayout, group_ids: Collection[str], timeout_ms: int
) -> dict[str, GroupOffsets]:
    """Return the committed offsets of these groups, as the offsets topic has them now.

    Raises KafkaTimeoutError, or another KafkaError of the broker.
    """
    found: dict[str, dict[TopicPartition, Committed]] = {group_id: {} for group_id in group_ids}
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        for record in reader.read_all(layout.offsets_topic, timeout_ms=timeout_ms):
            group_id, topic, number = decode_offset_key(record.key)
            if group_id not in found:
                continue
            found[group_id].pop(TopicPartition(topic, number), None)
            if record.value is not None:
                now = decode_offset(record.value)
                found[group_id][TopicPartition(topic, number)] = Committed(now.offset, now.leader_epoch)
    return {group_id: GroupOffsets(offsets) for group_id, offsets in found.items()}
