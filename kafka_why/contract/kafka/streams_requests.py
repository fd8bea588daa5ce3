"""The requests of streams groups (KIP-1071): see `kafka_why.contract.kafka.requests`."""

from msgspec import Struct

from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.streams_responses import (
    KeyValue,
    StreamsEndpoint,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatResponse,
    StreamsTopicInfo,
    TaskIds,
    TaskOffset,
)
from kafka_why.contract.messages import Int16, Int32, Request, ShortStr


class CopartitionGroup(Struct, frozen=True):
    """Topics that must have equal numbers of partitions. The numbers are indexes into the subtopology's
    lists.
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
    """The only request of a streams group's member: it joins, keeps its session alive, reports its tasks, and
    leaves.

    A field that is None, or `rebalance_timeout_ms` -1, has not changed. Kafka's request has the fields up to
    `shutdown_application`.
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
    # From the brokers' metadata: in a request with a topology, all that it requires (sources, repartition
    # sources, changelogs), else those of the last answer's `needs_topics`; None if there are none, or if the
    # sender could not reach the brokers.
    topics: TopicImages | None = None


class StreamsGroupDescribe(Request[StreamsGroupDescribeResponse], frozen=True, kw_only=True, tag=True):
    """One group of a StreamsGroupDescribe."""
