"""Requests: one Struct for each message, with the fields of Kafka's message of that name in snake_case.

Requests are decoded once, at the edge (`kafka_why.contract.codec`), so the core receives only well-formed
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
from kafka_why.contract.kafka.streams_responses import StreamsGroupDescribe, StreamsGroupHeartbeat
from kafka_why.contract.messages import RECORD_VERSION, Int16, Int32, Int64, ReleaseGroup, Request, ShortStr

Digest = Annotated[str, Meta(max_length=64)]


class Protocol(Struct, frozen=True):
    """An assignment protocol of a member: its name (`range`, ...) and the member's metadata for it."""

    name: ShortStr
    metadata: bytes = b""


class JoinGroup(Request[JoinGroupResponse], frozen=True, kw_only=True, tag=True):
    """Join the group or its next generation. The request is parked until the rebalance completes."""

    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    protocol_type: ShortStr
    protocols: list[Protocol]
    reason: ShortStr | None = None
    # For groups whose partitions the coordinator assigns.
    partitions_per_topic: dict[ShortStr, PartitionCount] = {}
    # Topics in the protocols' metadata, for a group of the consumer protocol; None if the sender could not
    # read them.
    topics: TopicImages | None = None


class MemberAssignment(Struct, frozen=True):
    """The leader's assignment for one member."""

    member_id: ShortStr
    assignment: bytes = b""


class SyncGroup(Request[SyncGroupResponse], frozen=True, kw_only=True, tag=True):
    """Ask for the member's assignment in this generation."""

    generation_id: Int32
    member_id: ShortStr
    group_instance_id: ShortStr | None = None
    protocol_type: ShortStr | None = None
    protocol_name: ShortStr | None = None
    assignments: list[MemberAssignment] = []  # of all members, in the leader's request


class OversizedRequest(Request[OversizedRequestResponse], frozen=True, kw_only=True, tag=True):
    """A notice of a JoinGroup or SyncGroup whose record would be too large. The sender appends it instead.

    The fields from `generation_id` on are as in the request. Kafka has no such request, because its
    coordinator reads the client's own.
    """

    kind: Literal["JoinGroup", "SyncGroup"]
    size_bytes: Int64  # of the record, or of the client's frame
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
    """A member in a LeaveGroup request.

    A static member may be named by `group_instance_id` alone (KIP-345).
    """

    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    reason: ShortStr | None = None


class LeaveGroup(Request[LeaveGroupResponse], frozen=True, kw_only=True, tag=True):
    """Remove members now, before their sessions end."""

    members: list[LeavingMember]


class CommittedPartition(Struct, frozen=True):
    """The committed offset of one partition, which is the offset of the next record to read."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    committed_metadata: str | None = None


class CommittedTopic(Struct, frozen=True):
    """A topic of an OffsetCommit."""

    name: ShortStr
    partitions: list[CommittedPartition]
    topic_id: UUID | None = None  # Kafka's; None if the sender does not know it


class OffsetCommit(Request[OffsetCommitResponse], frozen=True, kw_only=True, tag=True):
    """Store offsets. Any client may commit to a group without members (`generation_id` -1).

    The sender checks that topics and partitions exist.
    """

    generation_id: Int32 = -1
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    retention_time_ms: Int64 = -1  # the client's, in versions 2 to 4; -1 means the coordinator's
    topics: list[CommittedTopic]


class TxnOffsetCommit(Request[TxnOffsetCommitResponse], frozen=True, kw_only=True, tag=True):
    """Store offsets as a part of a producer's transaction. They are pending until the transaction ends.

    Before the sender checked that the transaction is open, it read `txn_position`: the end of the partition
    with the markers of this transaction. So the markers of the producer's earlier transactions are before
    `txn_position`, and the marker of this transaction is not.
    """

    transactional_id: ShortStr
    producer_id: Int64
    producer_epoch: Int16
    txn_version: Literal[1, 2]  # 2 if the end of the transaction raises the producer's epoch by one (KIP-890)
    txn_partition: Int32  # of the markers topic
    txn_position: Int64
    txn_topic_id: UUID | None = None  # of the markers topic; None if unknown
    generation_id: Int32 = -1
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    topics: list[CommittedTopic]


class TransactionMarker(Request[TransactionMarkerResponse], frozen=True, kw_only=True, tag=True):
    """The end of a producer's transaction.

    Kafka's transaction coordinator wrote this marker to the markers topic. Kafka has no such request, because
    its coordinator reads the markers in its own log.
    """

    producer_id: Int64
    producer_epoch: Int16
    txn_partition: Int32  # of the markers topic
    txn_position: Int64  # offset of the marker
    txn_topic_id: UUID | None = None  # of the markers topic; None if unknown
    # The marker applies to pending offsets with at least this `txn_position`; the sender has found no other
    # marker for them before this one.
    first_position: Int64
    committed: bool  # False: aborted


class TopicPartitions(Struct, frozen=True):
    """Partitions of one topic."""

    name: ShortStr
    partition_indexes: list[Int32]
    # Only in OffsetFetch, to omit offsets of earlier topics with this name; None: all topics with the name.
    topic_id: UUID | None = None


class OffsetFetch(Request[OffsetFetchResponse], frozen=True, kw_only=True, tag=True):
    """Fetch the committed offsets of these partitions, or of all partitions if `topics` is None."""

    topics: list[TopicPartitions] | None = None
    require_stable: bool = False  # return an error for a partition with a pending offset
    member_id: ShortStr | None = None  # of a consumer group; None if the client is not a member
    member_epoch: Int32 = -1  # -1 if the client is not a member


class OffsetDelete(Request[OffsetDeleteResponse], frozen=True, kw_only=True, tag=True):
    """Remove offsets of topics that no member subscribes to (KIP-496)."""

    topics: list[TopicPartitions]


class DescribeGroup(Request[DescribeGroupResponse], frozen=True, kw_only=True, tag=True):
    """One group of a DescribeGroups."""

    # A replica lists changed groups in an early answer (`DescribeGroupResponse.changed`); requires
    # `waits_for_views`.
    lists_changed: bool | UnsetType = UNSET


class DeleteGroup(Request[DeleteGroupResponse], frozen=True, kw_only=True, tag=True):
    """One group of a DeleteGroups. A group without members is deleted with its offsets."""


class TopicIdPartitions(Struct, frozen=True):
    """Partitions of the topic with this id."""

    topic_id: UUID
    partitions: list[Int32]


class RegexResolution(Struct, frozen=True):
    """The topics, by name, that a pattern matched when the sender read the cluster's topics at `at_ms`."""

    topics: dict[ShortStr, TopicImage] = {}
    at_ms: Int64 = 0
    error: str | None = None  # why the pattern is not a regular expression of RE2
    # Digest of all matching topics (`records.topic_patterns.digest`), set only if the sender left out topics
    # that the client may not DESCRIBE.
    seen: Digest | UnsetType = UNSET


Looked = Annotated[dict[ShortStr, RegexResolution], Meta(max_length=1)]
"""The resolutions by pattern."""


class ConsumerGroupHeartbeat(Request[ConsumerGroupHeartbeatResponse], frozen=True, kw_only=True, tag=True):
    """The only request of a member on the consumer protocol (KIP-848): it joins, keeps its session alive,
    reports what it owns, and leaves.

    A field that is None, or `rebalance_timeout_ms` -1, has not changed. Kafka's request has the fields up to
    `topic_partitions`.
    """

    member_id: ShortStr = ""
    member_epoch: Int32  # 0 to join, -1 to leave, -2 if a static member leaves temporarily
    instance_id: ShortStr | None = None
    rack_id: ShortStr | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[ShortStr] | None = None
    subscribed_topic_regex: ShortStr | None = None
    server_assignor: ShortStr | None = None
    topic_partitions: list[TopicIdPartitions] | None = None
    # The topics of `subscribed_topic_names` in the brokers' metadata; None without names, or if the sender
    # could not reach the brokers.
    topics: TopicImages | None = None
    regex: RegexResolution | None = None  # of `subscribed_topic_regex`; None as for `topics`
    # The sender shows its client only topics that the client may DESCRIBE.
    checks_topics: bool | UnsetType = UNSET
    # Topics of the pattern in the last response's `look` (`ConsumerGroupHeartbeatResponse`).
    looked: Looked | UnsetType = UNSET


class ConsumerGroupDescribe(Request[ConsumerGroupDescribeResponse], frozen=True, kw_only=True, tag=True):
    """One group of a ConsumerGroupDescribe (KIP-848)."""


class DescribeGroupConfigs(Request[DescribeGroupConfigsResponse], frozen=True, kw_only=True, tag=True):
    """Ask for the settings of one group: the resource GROUP of a DescribeConfigs."""

    # Return the coordinator's settings instead, which brokers have under the same names.
    of_coordinator: bool = False


class AlterGroupConfigs(Request[AlterGroupConfigsResponse], frozen=True, kw_only=True, tag=True):
    """Set settings of one group: the resource GROUP of an IncrementalAlterConfigs."""

    configs: dict[ShortStr, str | None]  # values by Kafka's names; None returns to the coordinator's value
    validate_only: bool = False  # only check the values


class RegexResolved(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """The topics in the cluster's metadata that match a group's patterns, by pattern.

    The topic watcher sends it, and gets no answer. Kafka's coordinator reads the metadata itself.
    """

    group_id: ShortStr
    patterns: dict[ShortStr, RegexResolution]
    version: int = RECORD_VERSION


class TopicMetadata(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """Topics in the cluster's metadata, by name. A topic that does not exist is None.

    The topic watcher sends it, and gets no answer.
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
"""The response classes of these requests."""

Unanswered = TopicMetadata | RegexResolved | ShareStateResult
"""A request of the coordinator's own service, which has no answer and no principal."""
UNANSWERED = (TopicMetadata, RegexResolved, ShareStateResult)  # for `isinstance`, which is slow with a union
AnyRequest = AnyAnswered | Unanswered


class ReplyTo(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The address of an answer.

    Readers drop duplicates by `request`, the id `<topic>-<partition>-<offset>`.
    """

    reply_partition: int
    correlation_id: str
    request: str
