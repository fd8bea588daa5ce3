"""The contents of records of `__consumer_offsets`, one class for each kind of record.

A tombstone has None as its value, or a class of its own. Times are in milliseconds. Consumer, share and
streams groups have the same kinds of records; `kind` says which of them the group is. The tasks of streams
groups are stored as partitions under a key of role and subtopology (`kafka_why.observed.group.task_key`).
Source: OffsetCommitValue.json, GroupMetadataValue.json, ConsumerGroup*Value.json, ShareGroup*Value.json,
StreamsGroup*Value.json.
"""

from collections.abc import Mapping

from msgspec import Struct

from kafka_why.contract.kafka.offsets import Offset
from kafka_why.contract.kafka.snapshot import Partitions


class OffsetCommitted(Struct, frozen=True, gc=False):
    """The committed offset of a partition, or None if it was removed."""

    topic: str
    partition: int
    offset: Offset | None


class ClassicMember(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member of a classic group. `subscription` and `assignment` are the bytes of its client."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    assignment: bytes


class ClassicGeneration(Struct, frozen=True):
    """A generation of a classic group. Kafka writes it when it has its assignment, or has no members.

    `since_ms` is when the generation was formed, because it is the time at which the group entered the state
    before that. It is None before Kafka 2.1. `protocol_name` and `leader_id` are None without members.
    """

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader_id: str | None
    since_ms: int | None
    members: tuple[ClassicMember, ...]


class ClassicGroupRemoved(Struct, frozen=True):
    """The tombstone of a classic group."""


class GroupEpoch(Struct, frozen=True):
    """The group epoch. `metadata_hash` is 0 before Kafka 4.1.

    Only streams groups have the topology epoch whose topics were found valid (-1 if they are not) and the
    settings of the assignment.
    """

    epoch: int
    metadata_hash: int
    kind: str = "consumer"
    validated_topology_epoch: int = -1
    assignment_configs: Mapping[str, str] | None = None


class GroupEpochRemoved(Struct, frozen=True):
    """The tombstone of a group with epochs."""


class SubscribedTopics(Struct, frozen=True):
    """The subscribed topics of a group, in Kafka 3.7 to 4.0: name and number of partitions by topic id."""

    topics: Mapping[bytes, tuple[str, int]]


class StreamsMember(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Fields that only a member of a streams group sends. `user_endpoint` is HOST:PORT."""

    topology_epoch: int
    process_id: str
    user_endpoint: str | None
    client_tags: dict[str, str]


class MemberSubscription(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The subscription of a member of a group with epochs. `is_classic`: it uses the classic protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str
    rebalance_timeout_ms: int
    server_assignor: str | None
    is_classic: bool
    session_timeout_ms: int
    streams: StreamsMember | None = None


class MemberSubscribed(Struct, frozen=True):
    """A member's subscription, or None if the member was removed."""

    member_id: str
    subscription: MemberSubscription | None
    kind: str = "consumer"


class RegexResolved(Struct, frozen=True):
    """The topics that a pattern matches, or None if no member has the pattern any longer."""

    regex: str
    topics: tuple[str, ...] | None


class TargetEpoch(Struct, frozen=True):
    """The epoch of the target assignment, or None if it was removed, and when the assignment was computed, or
    None before Kafka 4.3.
    """

    epoch: int | None
    computed_ms: int | None
    kind: str = "consumer"


class MemberTarget(Struct, frozen=True):
    """A member's target assignment, or None if it was removed."""

    member_id: str
    partitions: Partitions | None
    kind: str = "consumer"


class MemberAssignment(Struct, frozen=True):
    """The partitions that a member has and has to give up. `state` is the number of the consumer protocol's
    MemberState.
    """

    epoch: int
    previous_epoch: int
    state: int
    assigned: Partitions
    revoking: Partitions


class MemberAssigned(Struct, frozen=True):
    """A member's assignment, or None if it was removed."""

    member_id: str
    assignment: MemberAssignment | None
    kind: str = "consumer"


class SharePartitions(Struct, frozen=True):
    """The partitions of a share group whose state the share coordinator was asked to initialize, or has
    initialized, and the topics whose state it was asked to delete. `names` are topic names by id. All fields
    of the tombstone are empty.
    """

    initializing: Partitions
    initialized: Partitions
    deleting: tuple[bytes, ...]
    names: Mapping[bytes, str]


class TopologySent(Struct, frozen=True):
    """The topology of a streams group: its epoch, and the topics that each subtopology reads, including
    repartition topics, or `/PATTERN/`. The epoch is None if the topology was removed.
    """

    epoch: int | None
    sources: Mapping[str, tuple[str, ...]]


AnyRecord = (
    OffsetCommitted
    | ClassicGeneration
    | ClassicGroupRemoved
    | GroupEpoch
    | GroupEpochRemoved
    | SubscribedTopics
    | MemberSubscribed
    | RegexResolved
    | TargetEpoch
    | MemberTarget
    | MemberAssigned
    | SharePartitions
    | TopologySent
)
