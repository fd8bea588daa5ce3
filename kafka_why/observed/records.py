"""The contents of records of `__consumer_offsets`, one class for each kind of record.

A tombstone has None as its value, or has its own class. Times are in milliseconds. Consumer, share and
streams groups have the same kinds of records; `kind` is the group's type. The tasks of streams groups are
stored as partitions under a key of role and subtopology (`kafka_why.observed.group.task_key`). Source:
OffsetCommitValue.json, GroupMetadataValue.json, ConsumerGroup*Value.json, ShareGroup*Value.json,
StreamsGroup*Value.json.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from kafka_why.contract.kafka.history import STREAMS, Offset
from kafka_why.contract.kafka.snapshot import Partitions


class OffsetCommitted(Struct, frozen=True, gc=False):
    """The record of a partition's committed offset."""

    topic: str
    partition: int
    offset: Offset | None  # None if it was removed


class ClassicMember(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member of a classic group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes  # as encoded by the client, like `assignment`
    assignment: bytes


class ClassicGeneration(Struct, frozen=True):
    """A generation of a classic group.

    Kafka writes the record when the leader's assignment has arrived, or when the group has no members.
    """

    protocol_type: str
    generation: int
    protocol_name: str | None  # None without members
    leader_id: str | None  # None without members
    since_ms: int | None  # when the generation was formed (current_state_timestamp); None before Kafka 2.1
    members: tuple[ClassicMember, ...]


class ClassicGroupRemoved(Struct, frozen=True):
    """The tombstone of a classic group."""


class GroupEpoch(Struct, frozen=True):
    """The record of the group epoch."""

    epoch: int
    metadata_hash: int  # 0 before Kafka 4.1
    kind: str = "consumer"
    # In a streams group, the topology epoch whose topics were found valid; -1 if they are not valid.
    validated_topology_epoch: int = -1
    assignment_configs: Mapping[str, str] | None = None  # settings of a streams group's assignment


class GroupEpochRemoved(Struct, frozen=True):
    """The tombstone of a group with epochs."""


class SubscribedTopics(Struct, frozen=True):
    """The subscribed topics of a group in Kafka 3.7 to 4.0: names and partition counts by topic id."""

    topics: Mapping[bytes, tuple[str, int]]


class StreamsMember(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fields that only members of streams groups send."""

    topology_epoch: int
    process_id: str
    user_endpoint: str | None  # HOST:PORT
    client_tags: dict[str, str]


class MemberSubscription(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The subscription of a member of a group with epochs."""

    instance_id: str | None  # group.instance.id
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str
    rebalance_timeout_ms: int
    server_assignor: str | None
    is_classic: bool  # True if the member uses the classic protocol
    session_timeout_ms: int  # 0 unless `is_classic`
    streams: StreamsMember | None = None


class MemberSubscribed(Struct, frozen=True):
    """The record of a member's subscription."""

    member_id: str
    subscription: MemberSubscription | None  # None if the member was removed
    kind: str = "consumer"


class RegexResolved(Struct, frozen=True):
    """The record of the topics that a pattern matches."""

    regex: str
    topics: tuple[str, ...] | None  # None if no member subscribes to the pattern any longer


class TargetEpoch(Struct, frozen=True):
    """The record of the epoch of the target assignment."""

    epoch: int | None  # None if the target assignment was removed
    kind: str = "consumer"


class MemberTarget(Struct, frozen=True):
    """The record of a member's target assignment."""

    member_id: str
    partitions: Partitions | None  # None if the target assignment was removed
    kind: str = "consumer"


class MemberAssignment(Struct, frozen=True):
    """A member's current assignment."""

    epoch: int  # the member epoch
    previous_epoch: int
    state: int  # code of the consumer protocol's MemberState
    assigned: Partitions  # that the member may use
    revoking: Partitions  # that the member has to give up


class MemberAssigned(Struct, frozen=True):
    """The record of a member's current assignment."""

    member_id: str
    assignment: MemberAssignment | None  # None if the member was removed
    kind: str = "consumer"


class SharePartitions(Struct, frozen=True):
    """The states of a share group's partitions at the share coordinator. A tombstone is empty."""

    initializing: Partitions
    initialized: Partitions
    deleting: tuple[bytes, ...]  # topics whose state is being deleted
    names: Mapping[bytes, str]  # of topics, by id


class TopologySent(Struct, frozen=True):
    """The record of a streams group's topology."""

    epoch: int | None  # None if the topology was removed
    # Topics that each subtopology reads, including repartition topics, or `/PATTERN/`.
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


def topic_ids_in(record: object) -> Iterable[bytes]:
    """Return the topic ids in a record's assignment or target, or () if it has none."""
    if isinstance(record, MemberTarget) and record.kind != STREAMS:
        return record.partitions or ()
    if isinstance(record, MemberAssigned) and record.kind != STREAMS and record.assignment is not None:
        return {**record.assignment.assigned, **record.assignment.revoking}
    return ()
