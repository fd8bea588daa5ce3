"""Requests: one Struct for each message, with the fields of Kafka's message of that name in snake_case.

Requests are decoded once, at the edge (`kafka_why.contract.codec`); the core receives only well-formed
requests. Numbers have the bounds of Kafka's wire format. Bytes are base64 in JSON. Unknown fields are
ignored. Source: clients/src/main/resources/common/message/*Request.json of Apache Kafka.
"""

from typing import Annotated, Literal, get_args
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from kafka_why.contract.kafka.responses import (
    AlterGroupConfigsResponse,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupResponse,
    DescribeGroupConfigsResponse,
    DescribeGroupResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    OversizedRequestResponse,
    SyncGroupResponse,
    TransactionMarkerResponse,
    TxnOffsetCommitResponse,
)
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    PartitionCount,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStateResult,
    TopicImage,
    TopicImages,
)
from kafka_why.contract.kafka.streams_requests import StreamsGroupDescribe, StreamsGroupHeartbeat
from kafka_why.contract.messages import RECORD_VERSION, Int16, Int32, Int64, ReleaseGroup, Request, ShortStr

Digest = Annotated[str, Meta(max_length=64)]


class Protocol(Struct, frozen=True):
    """An assignment protocol of a member: its name (`range`, ...) and the member's metadata for it."""

    name: ShortStr
    metadata: bytes = b""


class JoinGroup(Request[JoinGroupResponse], frozen=True, kw_only=True, tag=True):
    """Join the group or its next generation. The request is parked until the rebalance completes.

    `partitions_per_topic` is for groups that the coordinator assigns. `topics` are the topics in the
    protocols' metadata, for a group of the consumer protocol, or None if the sender could not read them.
    """

    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    protocol_type: ShortStr
    protocols: list[Protocol]
    reason: ShortStr | None = None
    partitions_per_topic: dict[ShortStr, PartitionCount] = {}
    topics: TopicImages | None = None


class MemberAssignment(Struct, frozen=True):
    """The leader's assignment for one member."""

    member_id: ShortStr
    assignment: bytes = b""


class SyncGroup(Request[SyncGroupResponse], frozen=True, kw_only=True, tag=True):
    """Ask for the assignment of this generation. The leader's request carries the assignments of
    all members.
    """

    generation_id: Int32
    member_id: ShortStr
    group_instance_id: ShortStr | None = None
    protocol_type: ShortStr | None = None
    protocol_name: ShortStr | None = None
    assignments: list[MemberAssignment] = []


class OversizedRequest(Request[OversizedRequestResponse], frozen=True, kw_only=True, tag=True):
    """A JoinGroup or SyncGroup whose record would be too large, so that its sender appends this instead.

    `size_bytes` is the size of the record, or of the client's frame, and `max_bytes` the limit. The other
    fields are those of the request. Kafka has no such request, because its coordinator reads the client's.
    """

    kind: Literal["JoinGroup", "SyncGroup"]
    size_bytes: Int64
    max_bytes: Int64
    generation_id: Int32 = -1
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    protocol_type: ShortStr | None = None
    protocol_name: ShortStr | None = None


class Heartbeat(Request[HeartbeatResponse], frozen=True, kw_only=True, tag=True):
    """Renew the member's session in this generation."""

    generation_id: Int32
    member_id: ShortStr
    group_instance_id: ShortStr | None = None


class LeavingMember(Struct, frozen=True):
    """A member of a LeaveGroup batch. A static member may be named by its instance id with `member_id` ""
    (KIP-345).
    """

    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    reason: ShortStr | None = None


class LeaveGroup(Request[LeaveGroupResponse], frozen=True, kw_only=True, tag=True):
    """Remove members now, before their sessions end."""

    members: list[LeavingMember]


class CommittedPartition(Struct, frozen=True):
    """The offset of the next record to read from one partition, and the committer's metadata text."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    committed_metadata: str | None = None


class CommittedTopic(Struct, frozen=True):
    """A topic of an OffsetCommit. `topic_id` is Kafka's topic id, or None if the sender does not know it."""

    name: ShortStr
    partitions: list[CommittedPartition]
    topic_id: UUID | None = None


class OffsetCommit(Request[OffsetCommitResponse], frozen=True, kw_only=True, tag=True):
    """Store offsets. Any client may commit to a group without members (`generation_id` -1).

    The sender checks that topics and partitions exist. `retention_time_ms` is the field of versions 2 to 4,
    -1 for the coordinator's own retention time.
    """

    generation_id: Int32 = -1
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    retention_time_ms: Int64 = -1
    topics: list[CommittedTopic]


class TxnOffsetCommit(Request[TxnOffsetCommitResponse], frozen=True, kw_only=True, tag=True):
    """Store offsets as a part of a producer's transaction: they are pending until the transaction ends.

    The sender has checked that the transaction is open, and read `txn_position` before that check: the end of
    partition `txn_partition` of the markers topic, whose topic id is `txn_topic_id` (None if unknown). So the
    markers of the producer's earlier transactions are below `txn_position`, and the marker that ends this
    transaction will be at or above it. `txn_version` is 2 if the transaction's end raises the producer's
    epoch by one (KIP-890), else 1.
    """

    transactional_id: ShortStr
    producer_id: Int64
    producer_epoch: Int16
    txn_version: Literal[1, 2]
    txn_partition: Int32
    txn_position: Int64
    txn_topic_id: UUID | None = None
    generation_id: Int32 = -1
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    topics: list[CommittedTopic]


class TransactionMarker(Request[TransactionMarkerResponse], frozen=True, kw_only=True, tag=True):
    """A marker that Kafka's transaction coordinator wrote at `txn_position` of a partition of the markers
    topic, whose topic id is `txn_topic_id` (None if unknown). It ends a transaction of the producer. If
    `committed` is False, the transaction was aborted. The marker applies to pending offsets whose own
    `txn_position` is at least `first_position`. The sender has checked that no other marker from
    `first_position` to before `txn_position` applies to them. Kafka has no such request, because its
    coordinator reads the markers in its own log.
    """

    producer_id: Int64
    producer_epoch: Int16
    txn_partition: Int32
    txn_position: Int64
    txn_topic_id: UUID | None = None
    first_position: Int64
    committed: bool


class TopicPartitions(Struct, frozen=True):
    """Partitions of one topic.

    `topic_id` is used by OffsetFetch alone: offsets of another topic with this name are not returned. None:
    offsets are returned whatever their topic id.
    """

    name: ShortStr
    partition_indexes: list[Int32]
    topic_id: UUID | None = None


class OffsetFetch(Request[OffsetFetchResponse], frozen=True, kw_only=True, tag=True):
    """Fetch the committed offsets of these partitions. If `topics` is None, fetch all.

    `require_stable`: a partition with an offset that is pending in a transaction is an error. `member_id` and
    `member_epoch` name a member of a consumer group. They are None and -1 if the client is not a member.
    """

    topics: list[TopicPartitions] | None = None
    require_stable: bool = False
    member_id: ShortStr | None = None
    member_epoch: Int32 = -1


class OffsetDelete(Request[OffsetDeleteResponse], frozen=True, kw_only=True, tag=True):
    """Remove offsets of topics that no member subscribes to (KIP-496)."""

    topics: list[TopicPartitions]


class DescribeGroup(Request[DescribeGroupResponse], frozen=True, kw_only=True, tag=True):
    """One group of a DescribeGroups. `lists_changed` asks a replica to list changed groups in an early answer
    (`DescribeGroupResponse.changed`); it requires `waits_for_views`, and does not affect the query's answer.
    """

    lists_changed: bool | UnsetType = UNSET


class DeleteGroup(Request[DeleteGroupResponse], frozen=True, kw_only=True, tag=True):
    """One group of a DeleteGroups. A group without members is deleted with its offsets."""


class TopicIdPartitions(Struct, frozen=True):
    """Partitions of the topic with this id."""

    topic_id: UUID
    partitions: list[Int32]


class RegexResolution(Struct, frozen=True):
    """The topics that a pattern matched when the sender read the cluster's topics at `at_ms`: the topics by
    name.

    `error` is the text of the fault if the pattern is not a regular expression of RE2. `seen` is set if
    `topics` may lack matching topics, because the client may not DESCRIBE them. It is the digest of all
    matching topics (`records.topic_patterns.digest`).
    """

    topics: dict[ShortStr, TopicImage] = {}
    at_ms: Int64 = 0
    error: str | None = None
    seen: Digest | UnsetType = UNSET


Looked = Annotated[dict[ShortStr, RegexResolution], Meta(max_length=1)]
"""The resolutions by pattern."""


class ConsumerGroupHeartbeat(Request[ConsumerGroupHeartbeatResponse], frozen=True, kw_only=True, tag=True):
    """The only request of a member on the consumer protocol (KIP-848): it joins, keeps its session alive,
    reports what it owns, and leaves.

    `member_epoch` is 0 to join, -1 to leave, -2 if a static member leaves for a while. A field that is None,
    or `rebalance_timeout_ms` -1, says that nothing has changed.

    Kafka's request has the fields up to `topic_partitions`. `topics` are the topics of
    `subscribed_topic_names` and `regex` is the resolution of `subscribed_topic_regex`, as the sender knows
    them from the brokers' metadata. They are None in a request without names or without a pattern, and where
    the sender could not reach the brokers. With `checks_topics` the sender shows its client only topics that
    the client may DESCRIBE. `looked` has the resolution of the pattern that the last answer asked to resolve
    (`ConsumerGroupHeartbeatResponse.look`).
    """

    member_id: ShortStr = ""
    member_epoch: Int32
    instance_id: ShortStr | None = None
    rack_id: ShortStr | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[ShortStr] | None = None
    subscribed_topic_regex: ShortStr | None = None
    server_assignor: ShortStr | None = None
    topic_partitions: list[TopicIdPartitions] | None = None
    topics: TopicImages | None = None
    regex: RegexResolution | None = None
    checks_topics: bool | UnsetType = UNSET
    looked: Looked | UnsetType = UNSET


class ConsumerGroupDescribe(Request[ConsumerGroupDescribeResponse], frozen=True, kw_only=True, tag=True):
    """One group of a ConsumerGroupDescribe (KIP-848)."""


class DescribeGroupConfigs(Request[DescribeGroupConfigsResponse], frozen=True, kw_only=True, tag=True):
    """A query for the settings of one group: the resource GROUP of a DescribeConfigs. `of_coordinator` asks
    for the coordinator's own settings instead, which brokers have under the same names.
    """

    of_coordinator: bool = False


class AlterGroupConfigs(Request[AlterGroupConfigsResponse], frozen=True, kw_only=True, tag=True):
    """Set settings of one group: the resource GROUP of an IncrementalAlterConfigs.

    `configs` are values by Kafka's names, or None to return to the coordinator's value. With `validate_only`
    nothing is changed.
    """

    configs: dict[ShortStr, str | None]
    validate_only: bool = False


class RegexResolved(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """The topics that the patterns of a group match in the cluster's metadata, by pattern.

    Kafka has no such request, because its coordinator reads the metadata itself. The coordinator service's
    watcher sends it. It has no answer.
    """

    group_id: ShortStr
    patterns: dict[ShortStr, RegexResolution]
    version: int = RECORD_VERSION


class TopicMetadata(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """Topics in the cluster's metadata, by name, or None if no topic has that name.

    Kafka has no such request, because its coordinator reads the metadata itself. The coordinator service's
    watcher sends it. It has no answer.
    """

    group_id: ShortStr
    topics: TopicImages
    version: int = RECORD_VERSION


AnyAnswered = (
    JoinGroup
    | SyncGroup
    | OversizedRequest
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | TxnOffsetCommit
    | TransactionMarker
    | OffsetFetch
    | OffsetDelete
    | DescribeGroup
    | DeleteGroup
    | ConsumerGroupHeartbeat
    | ConsumerGroupDescribe
    | ShareGroupHeartbeat
    | ShareGroupDescribe
    | DescribeShareGroupOffsets
    | AlterShareGroupOffsets
    | DeleteShareGroupOffsets
    | StreamsGroupHeartbeat
    | StreamsGroupDescribe
    | DescribeGroupConfigs
    | AlterGroupConfigs
    | ReleaseGroup
)
ANSWERS = tuple(dict.fromkeys(kind.answer for kind in get_args(AnyAnswered)))
"""The classes of their answers."""

Unanswered = TopicMetadata | RegexResolved | ShareStateResult
"""A request of the coordinator's own service. It has no answer and no principal."""

AnyRequest = AnyAnswered | Unanswered


class ReplyTo(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The address of an answer. `request` is the id `<topic>-<partition>-<offset>` by which readers drop
    duplicates.
    """

    reply_partition: int
    correlation_id: str
    request: str
