"""Requests: one Struct for each message, with the fields of Kafka's message of that name in snake_case.

Requests are decoded once, at the edge (`kafka_why.contract.codec`), so the coordinator's core (the packages
`state` and `assignors`) receives only well-formed requests. Numbers have the bounds of Kafka's wire format.
Bytes are base64 in JSON. Unknown fields are ignored. Source:
clients/src/main/resources/common/message/*Request.json of Apache Kafka.
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
"""A digest in text form, of at most 64 characters."""


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
    reason: ShortStr | None = None  # why the client joins (KIP-800)
    # Numbers of partitions, for groups whose partitions the coordinator assigns.
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
    """A notice, which the sender appends instead of a JoinGroup or SyncGroup whose record would be too large.

    The fields from `generation_id` on are as in the JoinGroup or SyncGroup. Kafka has no such request,
    because its coordinator gets the client's request itself.
    """

    kind: Literal["JoinGroup", "SyncGroup"]
    size_bytes: Int64  # of the record, or of the client's frame
    max_bytes: Int64  # the limit that it exceeds
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


class CommittedPartition(Struct, frozen=True, gc=False):
    """The committed offset of one partition, which is the offset of the next record to read."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    committed_metadata: str | None = None


class CommittedTopic(Struct, frozen=True, gc=False):
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

    The markers topic is one of the coordinator's topics. The brokers record there how transactions with
    offsets end. The sender reads `txn_position`, the end of the partition with the transaction's markers,
    before it checks that the transaction is open. So the markers of the producer's earlier transactions are
    before `txn_position`, and the marker of this transaction is not.
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
    # The marker applies to pending offsets whose `txn_position` is at least this. The sender has found no
    # earlier marker for them.
    first_position: Int64
    committed: bool  # False if the transaction was aborted


class TopicPartitions(Struct, frozen=True):
    """Partitions of one topic."""

    name: ShortStr
    partition_indexes: list[Int32]
    # Only in OffsetFetch, to omit offsets of other topics that had this name; None to omit none.
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
    """Describe one group. A client's DescribeGroups with several groups becomes several requests."""

    # True to get the groups that have changed, from a replica in an early answer
    # (`DescribeGroupResponse.changed`). Requires `waits_for_views`.
    lists_changed: bool | UnsetType = UNSET


class DeleteGroup(Request[DeleteGroupResponse], frozen=True, kw_only=True, tag=True):
    """Delete a group without members, with its offsets.

    A client's DeleteGroups with several groups becomes several requests.
    """


class TopicIdPartitions(Struct, frozen=True):
    """Partitions of the topic with this id."""

    topic_id: UUID
    partitions: list[Int32]


class RegexResolution(Struct, frozen=True):
    """The topics that match a pattern, by name. The sender read the cluster's topics at `at_ms`."""

    topics: dict[ShortStr, TopicImage] = {}
    at_ms: Int64 = 0
    error: str | None = None  # why the pattern is not a regular expression of RE2
    # Digest of all matching topics (`records.topic_patterns.digest`), set only if `topics` omits topics that
    # the client may not DESCRIBE.
    seen: Digest | UnsetType = UNSET


Looked = Annotated[dict[ShortStr, RegexResolution], Meta(max_length=1)]
"""The resolution of at most one pattern, by the pattern."""


class ConsumerGroupHeartbeat(Request[ConsumerGroupHeartbeatResponse], frozen=True, kw_only=True, tag=True):
    """The only request of a member on the consumer protocol (KIP-848).

    It joins, keeps the session alive, reports the owned partitions, and leaves. A field that is None, or
    `rebalance_timeout_ms` -1, has not changed. Kafka's request has the fields up to `topic_partitions`.
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
    # The topics of `subscribed_topic_regex`; None without a pattern, or if the sender could not reach the
    # brokers.
    regex: RegexResolution | None = None
    # True if the sender shows its client only topics that the client may DESCRIBE.
    checks_topics: bool | UnsetType = UNSET
    # The topics of the pattern that the last response named in `look` (`ConsumerGroupHeartbeatResponse`).
    looked: Looked | UnsetType = UNSET


class ConsumerGroupDescribe(Request[ConsumerGroupDescribeResponse], frozen=True, kw_only=True, tag=True):
    """Describe one group of the consumer protocol (KIP-848).

    A client's request with several groups becomes several requests.
    """


class DescribeGroupConfigs(Request[DescribeGroupConfigsResponse], frozen=True, kw_only=True, tag=True):
    """Ask for the settings of one group: the resource GROUP of a DescribeConfigs."""

    # True to get the coordinator's own settings instead. Kafka's brokers have them under the same names.
    of_coordinator: bool = False


class AlterGroupConfigs(Request[AlterGroupConfigsResponse], frozen=True, kw_only=True, tag=True):
    """Set settings of one group: the resource GROUP of an IncrementalAlterConfigs."""

    configs: dict[ShortStr, str | None]  # values by Kafka's names; None returns to the coordinator's value
    validate_only: bool = False  # only check the values


class RegexResolved(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """The topics in the cluster's metadata that match a group's patterns, by pattern.

    The topic watcher, a thread of the coordinator's service, sends it, and gets no answer. Kafka's
    coordinator reads the metadata itself.
    """

    group_id: ShortStr
    patterns: dict[ShortStr, RegexResolution]
    version: int = RECORD_VERSION


class TopicMetadata(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """Topics in the cluster's metadata, by name. A topic that does not exist is None.

    The topic watcher, a thread of the coordinator's service, sends it, and gets no answer.
    """

    group_id: ShortStr
    topics: TopicImages
    version: int = RECORD_VERSION


AnyAnsweredRequest = (
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
ANSWERS = tuple(dict.fromkeys(kind.response_type for kind in get_args(AnyAnsweredRequest)))
"""The response classes of these requests."""

Unanswered = TopicMetadata | RegexResolved | ShareStateResult
"""A request of the coordinator's own service, which has no answer and no principal."""
UNANSWERED = (TopicMetadata, RegexResolved, ShareStateResult)  # for `isinstance`, which is slow with a union
AnyRequest = AnyAnsweredRequest | Unanswered


class ReplyTo(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The address of an answer.

    Readers drop duplicates by `request`, the request's id (`kafka_why.contract.codec.request_id`).
    """

    reply_partition: int
    correlation_id: str
    request: str
