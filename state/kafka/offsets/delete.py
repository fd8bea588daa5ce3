"""Offsets that are forgotten by request: OffsetDelete (rows D1 to D5, KIP-496), TopicsDeleted (row D6).

Source: OffsetMetadataManager.deleteOffsets, onPartitionsDeleted, ClassicGroup.validateOffsetDelete.
"""

from state.errors import ErrorCode
from state.kafka.context import StepContext
from state.kafka.group import GroupState
from state.kafka.history import EntryType
from state.kafka.requests import OffsetDelete, ReplyTo, TopicsDeleted
from state.kafka.responses import OffsetDeleteResponse, PartitionError, TopicErrors, TopicsDeletedResponse


def delete_offsets(context: StepContext, request: OffsetDelete, reply_to: ReplyTo) -> None:
    """Forget offsets of topics that no member of the group subscribes to."""
    if not context.has_group:
        context.rule("D1")
        context.reply(reply_to, OffsetDeleteResponse, ErrorCode.GROUP_ID_NOT_FOUND)
        return
    group = context.group
    if group.state is not GroupState.EMPTY and not group.is_consumer_group():
        context.rule("D2")
        context.reply(reply_to, OffsetDeleteResponse, ErrorCode.NON_EMPTY_GROUP)
        return
    gone: dict[str, list[int]] = {}
    topics = []
    for topic in request.topics:
        error = _validate(context, topic.name)
        topics.append(TopicErrors(topic.name, [PartitionError(p, error) for p in topic.partition_indexes]))
        if error is ErrorCode.NONE:
            there = group.offsets.get(topic.name, {}).keys() - set(gone.get(topic.name, []))
            found = sorted(there & set(topic.partition_indexes))
            context.rule("D4" if found else "D5")
            if found:
                gone[topic.name] = gone.get(topic.name, []) + found
    _forget(context, gone, "deleted by request")
    context.reply(reply_to, OffsetDeleteResponse, topics=topics)


def _validate(context: StepContext, topic: str) -> ErrorCode:
    if context.group.is_subscribed(topic):
        context.rule("D3")
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def topics_deleted(context: StepContext, request: TopicsDeleted, reply_to: ReplyTo) -> None:
    """Forget all offsets of topics that are no more, subscribed or not."""
    context.rule("D6")
    gone = {}
    if context.has_group:
        offsets = context.group.offsets
        gone = {topic: list(offsets[topic]) for topic in dict.fromkeys(request.topics) if topic in offsets}
        _forget(context, gone, "the topic was deleted")
    context.reply(reply_to, TopicsDeletedResponse, offsets=sum(map(len, gone.values())))


def _forget(context: StepContext, gone: dict[str, list[int]], why: str) -> None:
    if gone:
        context.forget(gone)
        context.record(EntryType.OFFSETS_DELETED, why, partitions=gone)
