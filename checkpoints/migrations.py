"""Kafka's groups as earlier state versions stored them, and the migration of each version to the next.

A description of a version here never changes. A struct of `state.kafka.group` that an earlier version uses
unchanged is not repeated here. Before such a struct is changed, its old form must be copied into this module.

Version 2 added the partition counts that the coordinator assigns by. Version 3 added topic ids. Version 4
added offsets in transactions, and the position in the log of each offset. Version 5 added groups of the
consumer protocol and settings of a group; what both protocols have comes first in it. Version 6 added the
patterns of a consumer group whose topics are filtered.
"""

from msgspec import Struct, field
from msgspec.structs import asdict

from state.kafka.classic_group import ClassicGroup, GroupState, JoinPhase, Member, PendingMember
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember, Partitions, ResolvedRegex
from state.kafka.group import NO_POSITION, Ended, Group, Offset, PendingOffsets, Topic


class OffsetV1(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An offset in versions 1 and 2."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int | None


class OffsetV3(OffsetV1, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An offset in version 3."""

    topic_id: bytes | None


class GroupV1(Struct, array_like=True, forbid_unknown_fields=True, tag="Kafka"):
    """A group in version 1. No field has a default, so a row without one is refused."""

    group_id: str
    incarnation: str
    seq: int
    clock_ms: int
    last_fired_ms: int
    state: GroupState
    previous_state: GroupState | None
    state_timestamp_ms: int
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str | None
    members: dict[str, Member]
    static_members: dict[str, str]
    pending_members: dict[str, PendingMember]
    new_member_added: bool
    join_phase: JoinPhase | None
    sync_deadline_ms: int | None
    last_rebalance_at_ms: int | None
    last_rebalance_reason: str
    quarantined: str | None
    subscribed_topics: list[str] | None
    offsets: dict[str, dict[int, OffsetV1]]
    retention_deadline_ms: int | None


class GroupV2(GroupV1, tag="Kafka"):
    """A group in version 2."""

    partitions_per_topic: dict[str, int]
    reported_partition_counts: dict[str, int]


class GroupV3(GroupV2, tag="Kafka"):
    """A group in version 3."""

    offsets: dict[str, dict[int, OffsetV3]]  # type: ignore[assignment]
    deleted_topic_ids: list[bytes]


class GroupV4(GroupV3, tag="Kafka"):
    """A group in version 4."""

    offsets: dict[str, dict[int, Offset]]  # type: ignore[assignment]
    pending: list[PendingOffsets]
    ended: dict[int, Ended]


class ConsumerGroupV5(Group, tag="KafkaConsumer"):
    """A consumer group in version 5. The reader refuses one without a field."""

    group_epoch: int = 1
    assignment_epoch: int = 1
    assignment_timestamp_ms: int = 0
    metadata_hash: bytes = b""
    metadata_stale: bool = True
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    target_assignor: str = ""
    topics: dict[str, Topic | None] = field(default_factory=dict)
    resolved_regexes: dict[str, ResolvedRegex] = field(default_factory=dict)


def v1_to_v2(group: GroupV1) -> GroupV2:
    """Version 1 has no partition counts."""
    return GroupV2(**asdict(group), partitions_per_topic={}, reported_partition_counts={})


def v2_to_v3(group: GroupV2) -> GroupV3:
    """Version 2 has no topic ids."""
    offsets = {
        topic: {
            partition: OffsetV3(**asdict(offset), topic_id=None) for partition, offset in partitions.items()
        }
        for topic, partitions in group.offsets.items()
    }
    return GroupV3(**{**asdict(group), "offsets": offsets}, deleted_topic_ids=[])


def v3_to_v4(group: GroupV3) -> GroupV4:
    """Version 3 has no offsets in transactions. Its offsets precede every request to come."""
    offsets = {
        topic: {
            partition: Offset(**asdict(offset), position=NO_POSITION)
            for partition, offset in partitions.items()
        }
        for topic, partitions in group.offsets.items()
    }
    return GroupV4(**{**asdict(group), "offsets": offsets}, pending=[], ended={})


def v4_to_v5(group: GroupV4) -> ClassicGroup:
    """Version 4 has groups of the classic protocol alone, and no settings of a group."""
    return ClassicGroup(**asdict(group))


def v5_to_v6(group: ConsumerGroupV5) -> ConsumerGroup:
    """Version 5 filters no pattern's topics."""
    return ConsumerGroup(**{name: getattr(group, name) for name in group.__struct_fields__})
