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
from kafka_why.contract.kafka.streams_requests import StreamsGroupDescribe, StreamsGroupHeartbeat
from kafka_why.contract.messages import RECORD_VERSION, Int16, Int32, Int64, ReleaseGroup, Request, ShortStr

Digest = Annotated[str, Meta(max_length=64)]


class Protocol(Struct, frozen=True):
    """An assignment protocol of a member: its name (`range`, ...) and the member's metadata for it."""

    name: ShortStr
    metadata: bytes = b""


class JoinGroup(Request[JoinGroupResponse], frozen=True, kw_only=True, tag=True):
    """Join the group or its next generation. The request is parked until the rebalance completes.

    `partitions_per_topic` is for groups whose partitions the coordinator assigns. `topics` are the topics in
    the protocols' metadata, for a group of the consumer protocol, or None if the sender could not read them.
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
    """Return the member's assignment in this generation. The leader's request has the assignments of all
    members.
    """

    generation_id: Int32
    member_id: ShortStr
    group_instance_id: ShortStr | None = None
    protocol_type: ShortStr | None = None
    protocol_name: ShortStr | None = None
    assignments: list[MemberAssignment] = []


class OversizedRequest(Request[OversizedRequestResponse], frozen=True, kw_only=True, tag=True):
    """A notice of a JoinGroup or SyncGroup whose record would be too large. The sender appends the notice
    instead.

    `size_bytes` is the size of the record, or of the client's frame, and `max_bytes` the limit. The other
    fields are as in the request. Kafka does not need this request, because its coordinator reads the client's
    own request.
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
    """A member in a LeaveGroup request. `member_id` may be "" if `group_instance_id` names a static member
    (KIP-345).
    """

    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    reason: ShortStr | None = None


class LeaveGroup(Request[LeaveGroupResponse], frozen=True, kw_only=True, tag=True):
    """Remove members now, before their sessions end."""

    members: list[LeavingMember]


class CommittedPartition(Struct, frozen=True):
    """The committed offset of one partition: the offset of the next record to read, and the client's
    metadata.
    """

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    committed_metadata: str | None = None


class CommittedTopic(Struct, frozen=True):
    """A topic of an OffsetCommit. `topic_id` is Kafka's topic id, or None if the sender does not
    know the id.
    """

    name: ShortStr
    partitions: list[CommittedPartition]
    topic_id: UUID | None = None


class OffsetCommit(Request[OffsetCommitResponse], frozen=True, kw_only=True, tag=True):
    """Store offsets. Any client may commit to a group without members (`generation_id` -1).

    The sender checks that topics and partitions exist. `retention_time_ms` is the client's retention time in
    versions 2 to 4, or -1 for the coordinator's retention time.
    """

    generation_id: Int32 = -1
    member_id: ShortStr = ""
    group_instance_id: ShortStr | None = None
    retention_time_ms: Int64 = -1
    topics: list[CommittedTopic]


class TxnOffsetCommit(Request[TxnOffsetCommitResponse], frozen=True, kw_only=True, tag=True):
    """Store offsets as a part of a producer's transaction. The offsets are pending until the transaction
    ends.

    `txn_position` is the end of partition `txn_partition` of the markers topic, whose topic id is
    `txn_topic_id` (None if unknown). The sender read this end, and then checked that the transaction is open.
    So the markers of the producer's earlier transactions are before `txn_position`, and the marker of this
    transaction will be at or after it. `txn_version` is 2 if the end of the transaction raises the producer's
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
    """A marker, which ends a transaction of the producer. If `committed` is False, the transaction was
    aborted. Kafka does not need this request, because its coordinator reads the markers in its own log.

    Kafka's transaction coordinator wrote the marker at `txn_position` of partition `txn_partition` of the
    markers topic, whose topic id is `txn_topic_id` (None if unknown). The marker applies to pending offsets
    whose own `txn_position` is at least `first_position`. The sender has checked that no other marker from
    `first_position` to before `txn_position` applies to them.
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

    Only OffsetFetch uses `topic_id`. It then omits offsets of other topics that had this name. If `topic_id`
    is None, it returns the offsets of all topics with this name.
    """

    name: ShortStr
    partition_indexes: list[Int32]
    topic_id: UUID | None = None


class OffsetFetch(Request[OffsetFetchResponse], frozen=True, kw_only=True, tag=True):
    """Fetch the committed offsets of these partitions, or of all partitions if `topics` is None.

    If `require_stable`, partitions with an offset that is pending in a transaction return an error.
    `member_id` and `member_epoch` are of a member of a consumer group, or None and -1 if the client is not a
    member.
    """

    topics: list[TopicPartitions] | None = None
    require_stable: bool = False
    member_id: ShortStr | None = None
    member_epoch: Int32 = -1


class OffsetDelete(Request[OffsetDeleteResponse], frozen=True, kw_only=True, tag=True):
    """Remove offsets of topics that no member subscribes to (KIP-496)."""

    topics: list[TopicPartitions]


class DescribeGroup(Request[DescribeGroupResponse], frozen=True, kw_only=True, tag=True):
    """One group of a DescribeGroups. If `lists_changed`, a replica lists changed groups in an early answer
    (`DescribeGroupResponse.changed`). This requires `waits_for_views`, and does not affect the query's
    answer.
    """

    lists_changed: bool | UnsetType = UNSET


class DeleteGroup(Request[DeleteGroupResponse], frozen=True, kw_only=True, tag=True):
    """One group of a DeleteGroups. A group without members is deleted with its offsets."""


class TopicIdPartitions(Struct, frozen=True):
    """Partitions of the topic with this id."""

    topic_id: UUID
    partitions: list[Int32]


class RegexResolution(Struct, frozen=True):
    """The topics, by name, that a pattern matched when the sender read the cluster's topics at `at_ms`.

    `error` describes the fault if the pattern is not a regular expression of RE2. `seen` is the digest of all
    matching topics (`records.topic_patterns.digest`). It is set only if `topics` may omit matching topics
    that the client may not DESCRIBE.
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

    `member_epoch` is 0 to join, -1 to leave, and -2 if a static member leaves temporarily. A field that is
    None, or `rebalance_timeout_ms` -1, has not changed.

    Kafka's request has the fields up to `topic_partitions`. `topics` are the topics of
    `subscribed_topic_names` in the brokers' metadata, and `regex` is the resolution of
    `subscribed_topic_regex`. They are None if the request has no names or no pattern, or if the sender could
    not reach the brokers. If `checks_topics`, the sender shows its client only topics that the client may
    DESCRIBE. `looked` has the resolution of the pattern in the last response's `look`
    (`ConsumerGroupHeartbeatResponse`).
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
    """Return the settings of one group: the resource GROUP of a DescribeConfigs. If `of_coordinator`, return
    the coordinator's own settings instead, which brokers have under the same names.
    """

    of_coordinator: bool = False


class AlterGroupConfigs(Request[AlterGroupConfigsResponse], frozen=True, kw_only=True, tag=True):
    """Set settings of one group: the resource GROUP of an IncrementalAlterConfigs.

    `configs` are values by Kafka's names, or None to return to the coordinator's value. If `validate_only`,
    only check the values.
    """

    configs: dict[ShortStr, str | None]
    validate_only: bool = False


class RegexResolved(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """The topics in the cluster's metadata that match a group's patterns, by pattern. The topic watcher
    sends it, without an answer. Kafka's coordinator reads the metadata itself.
    """

    group_id: ShortStr
    patterns: dict[ShortStr, RegexResolution]
    version: int = RECORD_VERSION


class TopicMetadata(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """Topics in the cluster's metadata, by name, or None if no topic has that name. The coordinator service's
    watcher sends this request, as `RegexResolved`.
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
    """The address of an answer. Readers drop duplicates by `request`, the request's id
    `<topic>-<partition>-<offset>`.
    """

    reply_partition: int
    correlation_id: str
    request: str
