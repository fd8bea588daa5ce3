"""Responses: one Struct for each message, with the fields of Kafka's message of that name in snake_case.

Source: clients/src/main/resources/common/message/*Response.json of Apache Kafka.
"""

from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.messages import ErrorCode, Response

NO_GENERATION = -1


class JoinGroupMember(Struct, frozen=True):
    """A member in the list that the leader gets."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes  # for the selected protocol


class JoinGroupResponse(Response, frozen=True, kw_only=True, tag="JoinGroup"):
    """The result of a join. Only the leader gets `members`."""

    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""  # member id of the leader
    skip_assignment: bool = False  # True if the leader must not compute a new assignment
    member_id: str = ""
    members: list[JoinGroupMember] = []


class SyncGroupResponse(Response, frozen=True, kw_only=True, tag="SyncGroup"):
    """The leader's assignment for this member. The coordinator does not decode it."""

    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class OversizedRequestResponse(Response, frozen=True, kw_only=True, tag="OversizedRequest"):
    """A response with only an error code."""


class HeartbeatResponse(Response, frozen=True, kw_only=True, tag="Heartbeat"):
    """A response with only an error code."""


class LeftMember(Struct, frozen=True):
    """The outcome for one member of a LeaveGroup. The ids are as in the request."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


class LeaveGroupResponse(Response, frozen=True, kw_only=True, tag="LeaveGroup"):
    """The outcome for each member of the request, in the request's order."""

    members: list[LeftMember] = []


class PartitionError(Struct, frozen=True):
    """The error code of one partition."""

    partition_index: int
    error_code: ErrorCode


class TopicErrors(Struct, frozen=True):
    """The outcomes for the partitions of one topic, in the request's order."""

    name: str
    partitions: list[PartitionError]


class OffsetCommitResponse(Response, frozen=True, kw_only=True, tag="OffsetCommit"):
    """The outcome of each partition. `error_code` is set if it is the same for all."""

    topics: list[TopicErrors] = []


class TxnOffsetCommitResponse(Response, frozen=True, kw_only=True, tag="TxnOffsetCommit"):
    """The outcome of each partition. `error_code` is set if it is the same for all."""

    topics: list[TopicErrors] = []


class TransactionMarkerResponse(Response, frozen=True, kw_only=True, tag="TransactionMarker"):
    """A response with only an error code."""


class FetchedPartition(Struct, frozen=True, omit_defaults=True):
    """The committed offset of one partition."""

    partition_index: int
    committed_offset: int  # -1 if there is none, or if `error_code` is set
    committed_leader_epoch: int
    metadata: str
    topic_id: UUID | None = None  # id of the topic when the offset was committed; None if unknown
    error_code: ErrorCode = ErrorCode.NONE


class FetchedTopic(Struct, frozen=True):
    """A topic in the response to an OffsetFetch."""

    name: str
    partitions: list[FetchedPartition]


class OffsetFetchResponse(Response, frozen=True, kw_only=True, tag="OffsetFetch"):
    """The requested partitions in the request's order, or all partitions with a committed offset."""

    topics: list[FetchedTopic] = []


class OffsetDeleteResponse(Response, frozen=True, kw_only=True, tag="OffsetDelete"):
    """The outcome of each partition. `topics` is empty if `error_code` is set."""

    topics: list[TopicErrors] = []


class DescribedMember(Struct, frozen=True):
    """A member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes  # for the selected protocol; empty unless the group is Stable
    member_assignment: bytes


class ListedGroup(Struct, frozen=True):
    """A group as ListGroups shows it. A group that does not exist is Dead."""

    group_id: str
    state: str
    protocol_type: str = ""
    group_type: str = "classic"


class DescribeGroupResponse(Response, frozen=True, kw_only=True, tag="DescribeGroup"):
    """A description of a group. A missing group is Dead.

    Kafka's response does not have the fields from `pending_offsets` on.
    """

    # Set for a group of the consumer protocol, in versions of Kafka's response that have the field.
    error_message: str | UnsetType = UNSET
    group_state: str = DEAD
    protocol_type: str = ""
    protocol_data: str = ""  # the selected protocol, or "" unless the group is Stable
    members: list[DescribedMember] = []
    # By topic and partition, the last offset that is pending in a transaction; omitted if there are none.
    pending_offsets: dict[str, dict[int, int]] | UnsetType = UNSET
    # For a request with `lists_changed`, which only a replica answers: the groups of the request's partition
    # whose view in the groups topic may be out of date, because no batch of the query has written it.
    changed: list[ListedGroup] | UnsetType = UNSET


class DeleteGroupResponse(Response, frozen=True, kw_only=True, tag="DeleteGroup"):
    """A response with only an error code."""


class AssignedTopicPartitions(Struct, frozen=True):
    """The sorted partitions of the topic with this id. `topic_name` is "" in the response to a heartbeat."""

    topic_id: UUID
    partitions: list[int]
    topic_name: str = ""


class MemberHeartbeatResponse(Response, frozen=True, kw_only=True):
    """The response to a member's heartbeat. A response with an error has only the error and its text."""

    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    # All partitions that the member may use; None if the member already knows them.
    assignment: list[AssignedTopicPartitions] | None = None


class ConsumerGroupHeartbeatResponse(
    MemberHeartbeatResponse, frozen=True, kw_only=True, tag="ConsumerGroupHeartbeat"
):
    """The response to a heartbeat of the consumer protocol."""

    # The member's pattern, if the group needs the topics that match it. The sender's next request for this
    # member then has the matching topics that the client may DESCRIBE (`ConsumerGroupHeartbeat.looked`).
    look: str | UnsetType = UNSET


class ConsumerGroupMemberDescription(Struct, frozen=True):
    """A member of a consumer group."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str
    assignment: list[AssignedTopicPartitions]  # includes partitions that it still has to give up
    target_assignment: list[AssignedTopicPartitions]
    member_type: int  # 0 classic, 1 consumer (KIP-1099)


class EpochsDescription(Response, frozen=True, kw_only=True):
    """Kafka's description of a group with epochs."""

    error_message: str | None = None  # why the group cannot be described
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""


class ConsumerGroupDescribeResponse(
    EpochsDescription, frozen=True, kw_only=True, tag="ConsumerGroupDescribe"
):
    """A description of a consumer group. `pending_offsets` is as in `DescribeGroupResponse`."""

    members: list[ConsumerGroupMemberDescription] = []
    pending_offsets: dict[str, dict[int, int]] | UnsetType = UNSET


class ShareGroupHeartbeatResponse(
    MemberHeartbeatResponse, frozen=True, kw_only=True, tag="ShareGroupHeartbeat"
):
    """The response to a heartbeat. Other members may have the same partitions."""


class ShareGroupMemberDescription(Struct, frozen=True):
    """A member of a share group, and the partitions that it may fetch from."""

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    assignment: list[AssignedTopicPartitions]


class ShareGroupDescribeResponse(EpochsDescription, frozen=True, kw_only=True, tag="ShareGroupDescribe"):
    """A description of a share group. Several members may have the same partition."""

    members: list[ShareGroupMemberDescription] = []


class ShareTopicPartitions(Struct, frozen=True):
    """The sorted partitions of one topic."""

    topic_name: str
    topic_id: UUID
    partitions: list[int]


class DescribeShareGroupOffsetsResponse(Response, frozen=True, kw_only=True, tag="DescribeShareGroupOffsets"):
    """The partitions whose state the share coordinator has initialized for the group, by topic name."""

    error_message: str | None = None
    topics: list[ShareTopicPartitions] = []


class AlteredSharePartition(Struct, frozen=True, omit_defaults=True):
    """The outcome for one partition. Defaults are omitted, because a group may have thousands of them."""

    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class AlteredShareTopic(Struct, frozen=True):
    """The outcomes for partitions of one topic."""

    topic_name: str
    topic_id: UUID  # zero if no topic has the name
    partitions: list[AlteredSharePartition]


class AlterShareGroupOffsetsResponse(Response, frozen=True, kw_only=True, tag="AlterShareGroupOffsets"):
    """The outcome for each topic of the request. `responses` is empty if the whole request failed."""

    error_message: str | None = None
    responses: list[AlteredShareTopic] = []


class DeletedShareTopic(Struct, frozen=True):
    """The outcome for one topic."""

    topic_name: str
    topic_id: UUID  # zero if no topic has the name
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class DeleteShareGroupOffsetsResponse(Response, frozen=True, kw_only=True, tag="DeleteShareGroupOffsets"):
    """The outcome for each topic of the request.

    `responses` is empty if the group has no state, or the whole request failed.
    """

    error_message: str | None = None
    responses: list[DeletedShareTopic] = []


class GroupConfigValue(Struct, frozen=True, omit_defaults=True):
    """The effective value of a group's setting."""

    name: str
    value: str
    is_default: bool  # True if `value` is the coordinator's
    without_own: str | None = None  # the coordinator's value, if the group overrides it, else None


class DescribeGroupConfigsResponse(Response, frozen=True, kw_only=True, tag="DescribeGroupConfigs"):
    """Every setting of the group, or of the coordinator if the request asks for it."""

    configs: list[GroupConfigValue] = []  # for the coordinator, `is_default` means Kafka's default


class AlterGroupConfigsResponse(Response, frozen=True, kw_only=True, tag="AlterGroupConfigs"):
    """A response with only an error code and its text."""

    error_message: str | None = None


AnyResponse = Response
"""A response to a request of `kafka_why.contract.kafka.requests`, or an ErrorResponse."""
