"""Responses: one Struct a message, with the fields of Kafka's message of that name in snake_case.

Source: clients/src/main/resources/common/message/*Response.json of Apache Kafka.
"""

from uuid import UUID

from msgspec import Struct

from state.errors import ErrorCode
from state.messages import ErrorResponse, ReleaseGroupResponse, Response

NO_GENERATION = -1


class JoinGroupMember(Struct, frozen=True):
    """One member as the leader sees it; `metadata` is the member's for the protocol that was selected."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(Response, frozen=True, kw_only=True, tag="JoinGroup"):
    """`members` is empty for all but the leader."""

    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinGroupMember] = []


class SyncGroupResponse(Response, frozen=True, kw_only=True, tag="SyncGroup"):
    """`assignment` is what the leader gave this member, opaque to the coordinator."""

    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatResponse(Response, frozen=True, kw_only=True, tag="Heartbeat"):
    """Nothing but the error code."""


class LeftMember(Struct, frozen=True):
    """The outcome for one member of a LeaveGroup batch; the ids are echoed as they came."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


class LeaveGroupResponse(Response, frozen=True, kw_only=True, tag="LeaveGroup"):
    """One entry a member of the request, in its order."""

    members: list[LeftMember] = []


class PartitionError(Struct, frozen=True):
    """The outcome for one partition."""

    partition_index: int
    error_code: ErrorCode


class TopicErrors(Struct, frozen=True):
    """The outcomes for the partitions of one topic, in the request's order."""

    name: str
    partitions: list[PartitionError]


class OffsetCommitResponse(Response, frozen=True, kw_only=True, tag="OffsetCommit"):
    """Each partition of the request with its outcome; `error_code` is set where all of them have it."""

    topics: list[TopicErrors] = []


class FetchedPartition(Struct, frozen=True, omit_defaults=True):
    """What is committed for one partition; `committed_offset` -1 where nothing is.

    `topic_id` is that of the topic it was committed for, None where it is not known.
    """

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str
    topic_id: UUID | None = None


class FetchedTopic(Struct, frozen=True):
    """One topic of an OffsetFetch's answer."""

    name: str
    partitions: list[FetchedPartition]


class OffsetFetchResponse(Response, frozen=True, kw_only=True, tag="OffsetFetch"):
    """The partitions asked for, in the request's order; or all that have an offset."""

    topics: list[FetchedTopic] = []


class OffsetDeleteResponse(Response, frozen=True, kw_only=True, tag="OffsetDelete"):
    """Each partition of the request with its outcome; none where `error_code` is set."""

    topics: list[TopicErrors] = []


class DescribedMember(Struct, frozen=True):
    """One member. `member_metadata` is for the selected protocol, and empty unless the group is Stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribeGroupResponse(Response, frozen=True, kw_only=True, tag="DescribeGroup"):
    """`protocol_data` is the selected protocol, "" unless the group is Stable. A group that is not there is
    Dead.
    """

    group_state: str = "Dead"
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedMember] = []


class DeleteGroupResponse(Response, frozen=True, kw_only=True, tag="DeleteGroup"):
    """Nothing but the error code."""


AnyResponse = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetFetchResponse
    | OffsetDeleteResponse
    | DescribeGroupResponse
    | DeleteGroupResponse
    | ReleaseGroupResponse
    | ErrorResponse
)
