"""ListGroups: the existing groups of both protocols, from the compacted groups topic at the time of the call.

The list contains every record before the topic's end offsets, which the call reads first: the results of the
coordinator's last committed batch and of all earlier ones. A result of the running batch may be missing, even
if a client already has the response. The list costs the coordinator nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import msgspec
import structlog
from msgspec import Struct

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, PendingTransaction, decode_offset, decode_offset_key
from kafka_why.contract.history_reader import AnyView, GroupTable, decode_any_snapshot
from kafka_why.contract.kafka.history import CLASSIC, CONSUMER, SHARE, STREAMS
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode, GroupType
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE, TopicPartition
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.rocketmq_group import client_version, group_state
from kafka_why.topic_reader import TopicReader

# The types as Kafka's tool prints them. Source: GroupType.java.
TYPES = {kind: kind.capitalize() for kind in (CLASSIC, CONSUMER, SHARE, STREAMS)}
"""The types by their names in the history."""
ROCKETMQ_TYPE = GroupType.ROCKETMQ.value

log = structlog.get_logger()


class GroupListRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group's row in the list.

    Only RocketMQ's groups have `clients`, the number of client ids, and `client_versions`, the versions that
    their connections report.
    """

    group: str
    type: str
    state: str
    protocol_type: str
    clients: int | None = None
    client_versions: list[str] = []

    @property
    def is_of_consumers(self) -> bool:
        """True for a group of Kafka's consumers, a group with epochs, and a group that never had members."""
        of_epochs = self.type in (TYPES[SHARE], TYPES[STREAMS])
        return self.type != ROCKETMQ_TYPE and (of_epochs or self.protocol_type in ("", PROTOCOL_TYPE))


def list_groups(client_config: ClientConfig, layout: TopicLayout, timeout_ms: int) -> list[AnyView]:
    """Return every group of either protocol, including empty groups, by id.

    Raises KafkaTimeoutError, or another KafkaError of the broker.
    """
    table: GroupTable[AnyView] = GroupTable(decode_any_snapshot)
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        for record in reader.read_all(layout.groups_topic, timeout_ms=timeout_ms):
            _apply(table, record.key, record.value)
    return table.groups


def _apply(table: GroupTable[AnyView], key: bytes | None, value: bytes | None) -> None:
    try:
        table.apply(key, value)
    except UNREADABLE as error:
        log.warning("a record of the groups topic cannot be read", key=key, error=str(error))


def consumer_groups(groups: Iterable[AnyView]) -> list[AnyView]:
    """Return RocketMQ's groups, and those of Kafka's groups that the consumer, share and streams tools list.

    The protocol type of a Kafka group of consumers is "consumer", or unset if the group has offsets but never
    had members (a simple group).

    Source: ListGroupsOptions.forConsumerGroups, forShareGroups, forStreamsGroups.
    """
    return [g for g in groups if isinstance(g, RocketMqSnapshot) or listed(g).is_of_consumers]


def listed(group: AnyView) -> GroupListRow:
    """Return the group's row."""
    if isinstance(group, RocketMqSnapshot):
        return GroupListRow(
            group=group.group_id,
            type=ROCKETMQ_TYPE,
            state=group_state(group),
            protocol_type="",
            clients=len({consumer.client_id for consumer in group.consumers}),
            client_versions=sorted({client_version(consumer) for consumer in group.consumers}),
        )
    return GroupListRow(
        group=group.group_id,
        type=TYPES[group.group_type],
        state=group.state,
        protocol_type=group.protocol_type or "",
    )


def list_broker_groups(client_config: ClientConfig) -> list[GroupListRow]:
    """Return the groups of the cluster's own coordinator that the principal may describe, by id.

    They are those of the brokers' ListGroups. Raises KafkaError.
    """
    with closing(kafka_clients.admin(client_config)) as admin:
        groups: list[dict[str, str]] = admin.list_groups()
    rows = [
        GroupListRow(
            group=group["group_id"],
            type=TYPES.get(group.get("group_type", "").lower(), TYPES[CLASSIC]),
            state=group.get("group_state", ""),
            protocol_type=group["protocol_type"],
        )
        for group in groups
    ]
    return sorted(rows, key=lambda row: row.group)


def select_groups(
    rows: Iterable[GroupListRow],
    states: frozenset[str],
    types: frozenset[str],
    protocols: frozenset[str] = frozenset(),
) -> list[GroupListRow]:
    """Return the rows that match one of the states, one of the types and one of the protocol types.

    An empty set does not filter. Source: GroupsCommand.listGroups.
    """
    return [
        row
        for row in rows
        if (not types or row.type in types)
        and (not states or row.state in states)
        and (not protocols or row.protocol_type in protocols)
    ]


# Offsets of groups: committed, and pending in transactions.


@dataclass(frozen=True, slots=True)
class OffsetWithEpoch:
    """The committed offset of a partition; `leader_epoch` is -1 if the committer sent none."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """All committed offsets of a group, or none if `error_code` is set.

    `pending` are the offsets that become committed if their transactions commit.
    """

    committed: Mapping[TopicPartition, OffsetWithEpoch] = field(default_factory=dict)
    pending: Mapping[TopicPartition, int] = field(default_factory=dict)
    error_code: ErrorCode = ErrorCode.NONE


def committed_offsets(
    client_config: ClientConfig, layout: TopicLayout, group_ids: Collection[str], timeout_ms: int
) -> dict[str, GroupOffsets]:
    """Return the committed offsets of these groups, from the offsets topic as it is now.

    Raises KafkaTimeoutError, or another KafkaError of the broker.
    """
    found: dict[str, dict[TopicPartition, OffsetWithEpoch]] = {group_id: {} for group_id in group_ids}
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        for record in reader.read_all(layout.offsets_topic, timeout_ms=timeout_ms):
            group_id, topic, number = decode_offset_key(record.key)
            if group_id not in found:
                continue
            found[group_id].pop(TopicPartition(topic, number), None)
            if record.value is not None:
                now = decode_offset(record.value)
                found[group_id][TopicPartition(topic, number)] = OffsetWithEpoch(now.offset, now.leader_epoch)
    return {group_id: GroupOffsets(offsets) for group_id, offsets in found.items()}


_decode = msgspec.json.Decoder(PendingTransaction).decode


def pending_transactions(
    client_config: ClientConfig, layout: TopicLayout, timeout_ms: int
) -> list[PendingTransaction]:
    """Return the offsets now pending in transactions, the oldest first. Raises KafkaError."""
    found: dict[bytes, bytes] = {}
    with TopicReader(client_config, timeout_ms=timeout_ms) as reader:
        for record in reader.read_all(layout.transactions_topic, timeout_ms=timeout_ms):
            if record.value is None:
                found.pop(record.key, None)
            else:
                found[record.key] = record.value
    return sorted(filter(None, map(_decoded, found.values())), key=lambda pending: pending.at_ms)


def _decoded(value: bytes) -> PendingTransaction | None:
    try:
        return _decode(value)
    except UNREADABLE:
        return None
