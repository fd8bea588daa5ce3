"""Offsets that are forgotten by request: OffsetDelete (rows D1 to D5, KIP-496), TopicsDeleted (row D6).

Source: OffsetMetadataManager.deleteOffsets, onPartitionsDeleted, ClassicGroup.validateOffsetDelete.
"""

from state.errors import ErrorCode
from state.kafka.context import Turn
from state.kafka.group import GroupState
from state.kafka.history import EventType
from state.kafka.requests import OffsetDelete, ReplyTo, TopicsDeleted
from state.kafka.responses import OffsetDeleteResponse, PartitionError, TopicErrors, TopicsDeletedResponse


def delete_offsets(turn: Turn, request: OffsetDelete, reply_to: ReplyTo) -> None:
    """Forget offsets of topics that no member of the group subscribes to."""
    if not turn.has_group:
        turn.rule("D1")
        turn.reply(reply_to, OffsetDeleteResponse, ErrorCode.GROUP_ID_NOT_FOUND)
        return
    group = turn.group
    if group.state is not GroupState.EMPTY and not group.is_consumer_group():
        turn.rule("D2")
        turn.reply(reply_to, OffsetDeleteResponse, ErrorCode.NON_EMPTY_GROUP)
        return
    gone: dict[str, list[int]] = {}
    topics = []
    for topic in request.topics:
        error = _judge(turn, topic.name)
        topics.append(TopicErrors(topic.name, [PartitionError(p, error) for p in topic.partition_indexes]))
        if error is ErrorCode.NONE:
            there = group.offsets.get(topic.name, {}).keys() - set(gone.get(topic.name, []))
            found = sorted(there & set(topic.partition_indexes))
            turn.rule("D4" if found else "D5")
            if found:
                gone[topic.name] = gone.get(topic.name, []) + found
    _forget(turn, gone, "deleted by request")
    turn.reply(reply_to, OffsetDeleteResponse, topics=topics)


def _judge(turn: Turn, topic: str) -> ErrorCode:
    if turn.group.is_subscribed(topic):
        turn.rule("D3")
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def topics_deleted(turn: Turn, request: TopicsDeleted, reply_to: ReplyTo) -> None:
    """Forget all offsets of topics that are no more, subscribed or not."""
    turn.rule("D6")
    gone = {}
    if turn.has_group:
        offsets = turn.group.offsets
        gone = {topic: list(offsets[topic]) for topic in dict.fromkeys(request.topics) if topic in offsets}
        _forget(turn, gone, "the topic was deleted")
    turn.reply(reply_to, TopicsDeletedResponse, offsets=sum(map(len, gone.values())))


def _forget(turn: Turn, gone: dict[str, list[int]], why: str) -> None:
    if gone:
        turn.forget(gone)
        turn.record(EventType.OFFSETS_DELETED, why, partitions=gone)
