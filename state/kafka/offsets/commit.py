"""OffsetCommit to a group. Rows O9, O12.

Who may commit is for the protocol to say (`KafkaProtocol.check_commit`). Source:
OffsetMetadataManager.commitOffset.
"""

from collections.abc import Callable, Iterable

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.offsets import LogPosition, Offset
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommit,
    ReplyTo,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import OffsetCommitResponse, PartitionError, TopicErrors
from state.kafka.context import StepContext, Verdict
from state.kafka.group import Group

OWN_RETENTION_TIME = -1  # the coordinator's, not the request's

# The record of a committed offset holds the names of its group and topic in its key and in its value.
# A commit of 10,000 partitions may have names of 400 characters together.
NAMES_MAX_CHARS = 8 * 1024 * 1024

END_OF_TIME_MS = 253_402_300_799_999  # the year 9999, so that a deadline is a time that Spark can hold


def commit(context: StepContext, request: OffsetCommit, reply_to: ReplyTo, verdict: Verdict) -> None:
    """Store each offset whose metadata is not too long, if the committer is valid: `verdict` is about it."""
    row, error = verdict
    if error is not ErrorCode.NONE:
        context.reply(reply_to, OffsetCommitResponse, row, error)
        return
    if names_chars(request) > NAMES_MAX_CHARS:
        context.reply(
            reply_to, OffsetCommitResponse, context.rule("O12"), ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        )
        return
    position = context.position
    topics = partition_errors(
        request.topics, lambda topic, p: _commit_partition(context, request, topic, p, position)
    )
    context.reply(reply_to, OffsetCommitResponse, row, topics=topics)


def partition_errors(
    topics: Iterable[CommittedTopic], error_of: Callable[[CommittedTopic, CommittedPartition], ErrorCode]
) -> list[TopicErrors]:
    """The outcome of each partition of a commit, in the order of the request."""
    return [
        TopicErrors(
            topic.name, [PartitionError(p.partition_index, error_of(topic, p)) for p in topic.partitions]
        )
        for topic in topics
    ]


def names_chars(request: OffsetCommit | TxnOffsetCommit) -> int:
    """Row O12: the number of characters of names in the records of this commit."""
    return 2 * sum(
        len(topic.partitions) * (len(request.group_id) + len(topic.name)) for topic in request.topics
    )


def _commit_partition(
    context: StepContext,
    request: OffsetCommit,
    topic: CommittedTopic,
    partition: CommittedPartition,
    position: LogPosition,
) -> ErrorCode:
    metadata = partition.committed_metadata or ""
    if is_metadata_too_long(context, metadata):
        context.rule("O9")
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    kept_for_ms = request.retention_time_ms
    offset = Offset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=metadata,
        committed_at_ms=context.now_ms,
        expire_at_ms=None
        if kept_for_ms == OWN_RETENTION_TIME
        else _expire_at_ms(context.now_ms, kept_for_ms),
        topic_id=topic_id_of(context.group, topic, partition.partition_index),
        position=position,
    )
    context.commit(topic.name, partition.partition_index, offset)
    return ErrorCode.NONE


def topic_id_of(group: Group, topic: CommittedTopic, partition: int) -> bytes | None:
    """The topic id of the request, else that of the offset that the commit replaces.

    The offset of a client without topic ids therefore belongs to the topic that it was committed for.
    """
    if topic.topic_id is not None:
        return topic.topic_id.bytes
    replaced = group.offsets.get(topic.name, {}).get(partition)
    return None if replaced is None else replaced.topic_id


def _expire_at_ms(now_ms: int, kept_for_ms: int) -> int:
    return min(now_ms + kept_for_ms, END_OF_TIME_MS)


def is_metadata_too_long(context: StepContext, metadata: str) -> bool:
    """Whether the metadata of an offset is longer than the setting allows."""
    return _java_length(metadata) > context.config.offset_metadata_max_bytes


def _java_length(text: str) -> int:
    """String.length() of the text, because Kafka counts UTF-16 units although the setting is named bytes."""
    return len(text) + sum(character > "\uffff" for character in text)
