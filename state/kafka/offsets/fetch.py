"""OffsetFetch: the committed offsets. Rows Q1 to Q5.

Source: OffsetMetadataManager.fetchOffsets, fetchAllOffsets, isMismatchedTopicId.
"""

from collections.abc import Container, Mapping, Sequence
from uuid import UUID

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.offsets import Offset
from kafka_why.contract.kafka.requests import OffsetFetch, ReplyTo, TopicPartitions
from kafka_why.contract.kafka.responses import FetchedPartition, FetchedTopic, OffsetFetchResponse
from state.kafka.context import RuleId, StepContext

_NOTHING = Offset(
    offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1, expire_at_ms=None, topic_id=None
)

Offsets = Mapping[str, Mapping[int, Offset]]
Partitions = Mapping[str, Container[int]]


def fetch(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    """Answer with the committed offsets of a group. Who may fetch is for its protocol to say."""
    group = context.group
    unstable = group.pending_partitions() if request.require_stable else {}
    answer(context, request, reply_to, group.offsets, unstable)


def answer(
    context: StepContext,
    request: OffsetFetch,
    reply_to: ReplyTo,
    offsets: Offsets,
    unstable: Partitions,
    decided: RuleId | None = None,
) -> None:
    """Answer with these offsets. A missing offset is not an error. `decided` is the row of the answer, if it
    is neither Q2 nor Q3.
    """
    if request.topics is None:
        row = context.rule("Q2")
        topics = [
            FetchedTopic(
                name,
                [_fetched(context, p, offset, unstable.get(name, ())) for p, offset in partitions.items()],
            )
            for name, partitions in offsets.items()
        ]
    else:
        topics = [
            _requested(context, topic, offsets.get(topic.name, {}), unstable.get(topic.name, ()))
            for topic in _each_once(request.topics)
        ]
        row = context.rule("Q3")
    context.reply(reply_to, OffsetFetchResponse, decided or row, topics=topics)


def _each_once(topics: Sequence[TopicPartitions]) -> list[TopicPartitions]:
    """The request's topics and partitions without repetitions, because a small request could otherwise fetch
    a large metadata text many thousand times.
    """
    partitions: dict[tuple[str, UUID | None], dict[int, None]] = {}
    for topic in topics:
        partitions.setdefault((topic.name, topic.topic_id), {}).update(dict.fromkeys(topic.partition_indexes))
    return [
        TopicPartitions(name=name, partition_indexes=list(numbers), topic_id=topic_id)
        for (name, topic_id), numbers in partitions.items()
    ]


def _requested(
    context: StepContext, topic: TopicPartitions, offsets: Mapping[int, Offset], unstable: Container[int]
) -> FetchedTopic:
    topic_id = None if topic.topic_id is None else topic.topic_id.bytes
    partitions = []
    for partition in topic.partition_indexes:
        offset = offsets.get(partition, _NOTHING)
        if is_of_another_topic(offset, topic_id):
            context.rule("Q5")
            offset = _NOTHING
        partitions.append(_fetched(context, partition, offset, unstable))
    return FetchedTopic(topic.name, partitions)


def is_of_another_topic(offset: Offset, topic_id: bytes | None) -> bool:
    """Whether the offset was committed for another topic of the same name. False if either topic id is
    unknown.
    """
    return offset.topic_id is not None and topic_id is not None and offset.topic_id != topic_id


def _fetched(
    context: StepContext, partition: int, offset: Offset, unstable: Container[int]
) -> FetchedPartition:
    if partition in unstable:
        context.rule("Q4")
        return FetchedPartition(partition, -1, -1, "", error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    topic_id = None if offset.topic_id is None else UUID(bytes=offset.topic_id)
    return FetchedPartition(partition, offset.offset, offset.leader_epoch, offset.metadata, topic_id)
