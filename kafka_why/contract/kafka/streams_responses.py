"""The requests and responses of streams groups (KIP-1071): see `kafka_why.contract.kafka.requests` and
`responses`.
"""

from enum import IntEnum

from msgspec import UNSET, Struct, UnsetType

from kafka_why.contract.kafka.responses import EpochsDescription
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.snapshot import StreamsSnapshot
from kafka_why.contract.messages import Int16, Int32, Int64, Request, Response, ShortStr


class KeyValue(Struct, frozen=True):
    """A tag of a client, or a setting of an internal topic."""

    key: ShortStr
    value: ShortStr


class StreamsTopicInfo(Struct, frozen=True, kw_only=True):
    """An internal topic of a streams application."""

    name: ShortStr
    partitions: Int32 = 0  # 0 if still to be decided
    replication_factor: Int16 = 0  # 0 for the brokers' default
    topic_configs: list[KeyValue] = []


class StreamsEndpoint(Struct, frozen=True):
    """The address at which an application answers interactive queries."""

    host: ShortStr
    port: Int32

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class TaskIds(Struct, frozen=True):
    """Tasks of one subtopology, by partition."""

    subtopology_id: ShortStr
    partitions: list[Int32]


class TaskOffset(Struct, frozen=True):
    """A sum over the changelog topics of a task: of the member's offsets in them, or of their end offsets."""

    subtopology_id: ShortStr
    partition: Int32
    offset: Int64


class StatusCode(IntEnum):
    """A condition in a member's answer, which is not an error.

    Source: StreamsGroupHeartbeatResponse.Status.
    """

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class StreamsStatus(Struct, frozen=True):
    """A condition, and its text for people."""

    status_code: StatusCode
    status_detail: str


class StreamsTopicPartitions(Struct, frozen=True):
    """The sorted partitions of one topic."""

    topic: str
    partitions: list[int]


class EndpointToPartitions(Struct, frozen=True):
    """The partitions that the application at one endpoint processes or keeps copies of."""

    user_endpoint: StreamsEndpoint
    active_partitions: list[StreamsTopicPartitions]
    standby_partitions: list[StreamsTopicPartitions]


class CreatableStreamsTopic(Struct, frozen=True):
    """An internal topic to create."""

    name: str
    partitions: int
    replication_factor: int  # -1 for the brokers' default
    topic_configs: list[KeyValue]


class StreamsGroupHeartbeatResponse(Response, frozen=True, kw_only=True, tag="StreamsGroupHeartbeat"):
    """The response to a heartbeat of a streams group's member.

    A response with an error has only the error and its text. The three lists of tasks are all set, or all
    None if the member already knows its tasks. `create_topics` and `needs_topics` are for the sender's
    gateway, and are not sent to the client.
    """

    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = -1
    task_offset_interval_ms: int = 0
    status: list[StreamsStatus] = []
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    endpoint_information_epoch: int = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None
    # The gateway creates them with the client's rights; omitted if empty.
    create_topics: list[CreatableStreamsTopic] | UnsetType = UNSET
    # The gateway sends their metadata in the member's next heartbeats (`StreamsGroupHeartbeat.topics`) until
    # an answer has none; omitted if empty.
    needs_topics: list[str] | UnsetType = UNSET


class SubtopologyDescription(Struct, frozen=True, kw_only=True):
    """A subtopology, with its topics sorted by name. `partitions` of a topic is 0 until it is decided."""

    subtopology_id: str
    source_topics: list[str]
    repartition_sink_topics: list[str]
    state_changelog_topics: list[StreamsTopicInfo]
    repartition_source_topics: list[StreamsTopicInfo]


class TopologyDescription(Struct, frozen=True):
    """The topology of a group as the first member sent it. In a ready group, all numbers are decided."""

    epoch: int
    subtopologies: list[SubtopologyDescription]


class StreamsAssignment(Struct, frozen=True):
    """The tasks of a member by role."""

    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]


NO_TASKS = StreamsAssignment(active_tasks=[], standby_tasks=[], warmup_tasks=[])


class StreamsGroupMemberDescription(Struct, frozen=True, kw_only=True):
    """A member of a streams group. Its `assignment` does not have the tasks that it must give up."""

    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topology_epoch: int
    process_id: str
    user_endpoint: StreamsEndpoint | None
    client_tags: list[KeyValue]
    task_offsets: list[TaskOffset]
    task_end_offsets: list[TaskOffset]
    assignment: StreamsAssignment
    target_assignment: StreamsAssignment


class StreamsGroupDescribeResponse(EpochsDescription, frozen=True, kw_only=True, tag="StreamsGroupDescribe"):
    """A description of a streams group.

    `streams` and `pending` are for the project's own tools, and are not sent to clients.
    """

    topology: TopologyDescription | None = None  # None if the group has none
    members: list[StreamsGroupMemberDescription] = []
    streams: StreamsSnapshot | UnsetType = UNSET
    # The tasks that members still have to give up, by member id.
    pending: dict[str, StreamsAssignment] | UnsetType = UNSET


# Requests.


class CopartitionGroup(Struct, frozen=True):
    """Topics that must have equal numbers of partitions.

    The numbers are indexes into the subtopology's lists.
    """

    source_topics: list[Int16] = []
    source_topic_regex: list[Int16] = []
    repartition_source_topics: list[Int16] = []


class Subtopology(Struct, frozen=True, kw_only=True):
    """A part of a topology, with tasks of its own. Lists are in the client's order."""

    subtopology_id: ShortStr
    source_topics: list[ShortStr] = []
    source_topic_regex: list[ShortStr] = []
    state_changelog_topics: list[StreamsTopicInfo] = []
    repartition_sink_topics: list[ShortStr] = []
    repartition_source_topics: list[StreamsTopicInfo] = []
    copartition_groups: list[CopartitionGroup] = []


class StreamsTopology(Struct, frozen=True):
    """The topology of an application."""

    epoch: Int32
    subtopologies: list[Subtopology] = []


class StreamsGroupHeartbeat(Request[StreamsGroupHeartbeatResponse], frozen=True, kw_only=True, tag=True):
    """The only request of a streams group's member.

    It joins, keeps its session alive, reports its tasks, and leaves. A field that is None, or
    `rebalance_timeout_ms` -1, has not changed. Kafka's request has the fields up to `shutdown_application`.
    """

    member_id: ShortStr = ""
    member_epoch: Int32  # 0 to join, -1 to leave, -2 if a static member leaves temporarily
    endpoint_information_epoch: Int32 = -1
    instance_id: ShortStr | None = None
    rack_id: ShortStr | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: StreamsTopology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: ShortStr | None = None
    user_endpoint: StreamsEndpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: bool = False
    # Topics in the brokers' metadata: the topology's sources, repartition sources and changelogs or, in a
    # request without a topology, the topics in the last answer's `needs_topics`. None if there are none, or
    # if the sender could not reach the brokers.
    topics: TopicImages | None = None
    # Why the gateway did not create internal topics of the member's last answer; omitted if it did.
    not_created: ShortStr | UnsetType = UNSET


class StreamsGroupDescribe(Request[StreamsGroupDescribeResponse], frozen=True, kw_only=True, tag=True):
    """Describe one streams group. A client's request with several groups becomes several requests."""
