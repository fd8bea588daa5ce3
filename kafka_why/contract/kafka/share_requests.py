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
"""Topics in the metadata of a request's sender, by name. None means that no topic has the name."""


PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ShareGroupHeartbeat(Request[ShareGroupHeartbeatResponse], frozen=True, kw_only=True, tag=True):
    """The only request of a share group's member: it joins, keeps its session alive, and leaves.

    A field that is None has not changed. Kafka's request has the fields up to `subscribed_topic_names`.
    """

    member_id: ShortStr = ""
    member_epoch: Int32  # 0 to join, -1 to leave
    rack_id: ShortStr | None = None
    subscribed_topic_names: list[ShortStr] | None = None
    # The topics of `subscribed_topic_names` in the brokers' metadata; None without names, or if the sender
    # could not reach the brokers.
    topics: TopicImages | None = None


class ShareGroupDescribe(Request[ShareGroupDescribeResponse], frozen=True, kw_only=True, tag=True):
    """Describe one share group. A client's request with several groups becomes several requests."""


class DescribeShareGroupOffsets(
    Request[DescribeShareGroupOffsetsResponse], frozen=True, kw_only=True, tag=True
):
    """Return the group's partitions whose state is initialized.

    The sender also queries the share coordinator, as Kafka does, because only the share coordinator knows the
    group's positions in these partitions.
    """


class AlterSharePartition(Struct, frozen=True):
    """The new start offset of a partition. -1 means `share.auto.offset.reset`."""

    partition: Int32
    start_offset: Int64


class AlterShareTopic(Struct, frozen=True):
    """Partitions of one topic of an AlterShareGroupOffsets."""

    topic_name: ShortStr
    partitions: list[AlterSharePartition]


class AlterShareGroupOffsets(Request[AlterShareGroupOffsetsResponse], frozen=True, kw_only=True, tag=True):
    """Set the start offsets of a group without members. The answer waits for the share coordinator."""

    topics: list[AlterShareTopic]
    # Topics in the brokers' metadata by name; None if the sender could not reach the brokers.
    images: TopicImages | None = None


class DeleteShareGroupOffsets(Request[DeleteShareGroupOffsetsResponse], frozen=True, kw_only=True, tag=True):
    """Delete the positions in these topics of a group without members.

    The answer waits for the share coordinator.
    """

    topics: list[ShortStr]
    images: TopicImages | None = None  # as in AlterShareGroupOffsets


class ShareStatePartition(Struct, frozen=True):
    """The outcome of a task of the share coordinator for one partition."""

    topic_id: UUID
    partition: PartitionNumber
    error_code: Int16 = 0  # from the share coordinator
    # With the error FENCED_STATE_EPOCH, the share coordinator's state epoch and start offset.
    state_epoch: Int32 | None = None
    start_offset: Int64 | None = None


class ShareStateResult(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """The outcome of a share group's task, by partition. Partitions without an outcome are omitted.

    The share coordinator of the cluster executes the tasks of
    `kafka_why.contract.kafka.snapshot.ShareSnapshot`. A service of this project's group coordinator sends
    this request, and gets no answer. Kafka's group coordinator calls the share coordinator itself.
    """

    group_id: ShortStr
    task: ShortStr  # its id
    partitions: list[ShareStatePartition]
    version: int = RECORD_VERSION
