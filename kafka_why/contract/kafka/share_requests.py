"""The requests of share groups (KIP-932): see `kafka_why.contract.kafka.requests`."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from kafka_why.contract.kafka.responses import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatResponse,
)
from kafka_why.contract.messages import RECORD_VERSION, Int16, Int32, Int64, Request, ShortStr

PartitionCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TopicImage(Struct, frozen=True):
    """A topic in the cluster's metadata: Kafka's topic id, and the number of partitions."""

    id: UUID
    partitions: PartitionCount


TopicImages = dict[ShortStr, TopicImage | None]
"""The topics that the sender of a request knows, by name, or None if no topic has that name."""


PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ShareGroupHeartbeat(Request[ShareGroupHeartbeatResponse], frozen=True, kw_only=True, tag=True):
    """The only request of a share group's member: it joins, keeps its session alive, and leaves.

    `member_epoch` is 0 to join and -1 to leave. A field that is None has not changed. Kafka's request has the
    fields up to `subscribed_topic_names`. `topics` are the topics with these names in the brokers' metadata,
    or None if the request has no names or the sender could not reach the brokers.
    """

    member_id: ShortStr = ""
    member_epoch: Int32
    rack_id: ShortStr | None = None
    subscribed_topic_names: list[ShortStr] | None = None
    topics: TopicImages | None = None


class ShareGroupDescribe(Request[ShareGroupDescribeResponse], frozen=True, kw_only=True, tag=True):
    """One group of a ShareGroupDescribe."""


class DescribeShareGroupOffsets(
    Request[DescribeShareGroupOffsetsResponse], frozen=True, kw_only=True, tag=True
):
    """Return the group's partitions whose state is initialized. Only the share coordinator knows the group's
    positions in them, so the sender has to query the share coordinator, too, as Kafka does.
    """


class AlterSharePartition(Struct, frozen=True):
    """The new start offset of a partition, or -1 to use `share.auto.offset.reset`."""

    partition: Int32
    start_offset: Int64


class AlterShareTopic(Struct, frozen=True):
    """Partitions of one topic of an AlterShareGroupOffsets."""

    topic_name: ShortStr
    partitions: list[AlterSharePartition]


class AlterShareGroupOffsets(Request[AlterShareGroupOffsetsResponse], frozen=True, kw_only=True, tag=True):
    """Set the start offsets of a group without members. The answer waits for the share coordinator.

    `images` are the topics in the brokers' metadata by name, or None if the sender could not reach the
    brokers.
    """

    topics: list[AlterShareTopic]
    images: TopicImages | None = None


class DeleteShareGroupOffsets(Request[DeleteShareGroupOffsetsResponse], frozen=True, kw_only=True, tag=True):
    """Delete the positions of a group without members in these topics. The answer waits for the share
    coordinator. `images` are as in AlterShareGroupOffsets.
    """

    topics: list[ShortStr]
    images: TopicImages | None = None


class ShareStatePartition(Struct, frozen=True):
    """The outcome of a task for one partition.

    `error_code` is from the share coordinator. If it refused the task because of its recorded state
    (FENCED_STATE_EPOCH), `state_epoch` and `start_offset` are the recorded state, else None.
    """

    topic_id: UUID
    partition: PartitionNumber
    error_code: Int16 = 0
    state_epoch: Int32 | None = None
    start_offset: Int64 | None = None


class ShareStateResult(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """The outcome of a share group's task at the cluster's share coordinator, by partition. Partitions
    without an outcome are omitted.

    The coordinator's own service sends this request, which has no answer. The tasks are in
    `kafka_why.contract.kafka.snapshot.ShareSnapshot`. Kafka does not need this request, because its
    coordinator calls the share coordinator itself.
    """

    group_id: ShortStr
    task: ShortStr
    partitions: list[ShareStatePartition]
    version: int = RECORD_VERSION
