"""Requests: one Struct a message, with the fields of Kafka's message of that name in snake_case.

They are decoded once, at the edge (`records.codec`); the core only ever sees well-formed ones. Numbers
are bounded as on Kafka's wire, bytes are base64 in JSON, fields that are not known are ignored.
Source: clients/src/main/resources/common/message/*Request.json of Apache Kafka.
"""

from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from state.messages import RECORD_VERSION, Int32, Int64, ReleaseGroup, Request, ShortStr

PartitionCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Protocol(Struct, frozen=True):
    """One assignment protocol a member offers: its name (`range`, ...) and the member's metadata for it."""

    name: ShortStr
    metadata: bytes = b""


class JoinGroup(Request, frozen=True, kw_only=True, tag=True):
    """Enter the group, or enter its next generation. Parked until the rebalance completes.

    `partitions_per_topic` is for groups that leave their assignment to the coordinator.
    """

    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    protocol_type: ShortStr
    protocols: list[Protocol]
    reason: ShortStr | None = None
    partitions_per_topic: dict[ShortStr, PartitionCount] = {}


class MemberAssignment(Struct, frozen=True):
    """What the leader gives one member."""

    member_id: ShortStr
    assignment: bytes = b""


class SyncGroup(Request, frozen=True, kw_only=True, tag=True):
    """Ask for this generation's assignment; the leader brings it for everyone."""

    generation_id: Int32
    member_id: ShortStr
    group_instance_id: ShortStr | None = None
    protocol_type: ShortStr | None = None
    protocol_name: ShortStr | None = None
    assignments: list[MemberAssignment] = []


class Heartbeat(Request, frozen=True, kw_only=True, tag=True):
    """I am alive, in this generation."""

    generation_id: Int32
    member_id: ShortStr
    group_instance_id: ShortStr | None = None


class LeavingMember(Struct, frozen=True):
    """One member of a LeaveGroup batch; `member_id` "" with an instance id names a static member
    (KIP-345).
    """

    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    reason: ShortStr | None = None


class LeaveGroup(Request, frozen=True, kw_only=True, tag=True):
    """Take members out of the group now instead of at their session's end."""

    members: list[LeavingMember]


class CommittedPartition(Struct, frozen=True):
    """The next record to read of one partition, and what the committer notes beside it."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    committed_metadata: str | None = None


class CommittedTopic(Struct, frozen=True):
    """One topic of an OffsetCommit. `topic_id` is Kafka's, None where the sender does not know it."""

    name: ShortStr
    partitions: list[CommittedPartition]
    topic_id: UUID | None = None


class OffsetCommit(Request, frozen=True, kw_only=True, tag=True):
    """Keep these offsets. Without members a group can be committed to by anyone (`generation_id` -1).

    Whether a topic or partition exists is for the sender to check. `retention_time_ms` is that of versions 2
    to 4, -1 for the coordinator's own.
    """

    generation_id: Int32 = -1
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    retention_time_ms: Int64 = -1
    topics: list[CommittedTopic]


class TopicPartitions(Struct, frozen=True):
    """Partitions of one topic.

    `topic_id` counts in an OffsetFetch alone: offsets of another topic of this name are not told. None: of
    any.
    """

    name: ShortStr
    partition_indexes: list[Int32]
    topic_id: UUID | None = None


class OffsetFetch(Request, frozen=True, kw_only=True, tag=True):
    """What is committed for these partitions; for all that have an offset where `topics` is None."""

    topics: list[TopicPartitions] | None = None


class OffsetDelete(Request, frozen=True, kw_only=True, tag=True):
    """Forget offsets of topics that no member subscribes to (KIP-496)."""

    topics: list[TopicPartitions]


class DescribeGroup(Request, frozen=True, kw_only=True, tag=True):
    """One group of a DescribeGroups."""


class DeleteGroup(Request, frozen=True, kw_only=True, tag=True):
    """One group of a DeleteGroups: a group without members goes, with its offsets."""


class TopicImage(Struct, frozen=True):
    """A topic as the cluster's metadata shows it: Kafka's id of it, and how many partitions it has.

    No rule looks at `partitions` yet.
    """

    id: UUID
    partitions: PartitionCount


class TopicMetadata(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """What the cluster's metadata shows of topics, by name; None: no topic has that name.

    Not Kafka's, whose coordinator sees the metadata itself. The watcher of the coordinator's service sends
    it. It has no answer.
    """

    group_id: ShortStr
    topics: dict[ShortStr, TopicImage | None]
    version: int = RECORD_VERSION


AnyAnswered = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | OffsetFetch
    | OffsetDelete
    | DescribeGroup
    | DeleteGroup
    | ReleaseGroup
)
AnyRequest = AnyAnswered | TopicMetadata


class ReplyTo(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where an answer goes. `request` is the id `<topic>-<partition>-<offset>` readers drop duplicates by."""

    reply_partition: int
    correlation_id: str
    request: str
