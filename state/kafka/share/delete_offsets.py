"""DeleteShareGroupOffsets: a group without members forgets where it stands in topics. Rows SO14 to SO20, SK6.

Source: GroupCoordinatorShard.initiateDeleteShareGroupOffsets, GroupMetadataManager
(sharePartitionsEligibleForOffsetDeletion, completeDeleteShareGroupOffsets).
"""

from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import DeleteShareGroupOffsetsResponse
from kafka_why.contract.kafka.share_requests import DeleteShareGroupOffsets
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.modern.refusal import Refused
from state.kafka.share.admin_checks import check_empty, check_open, check_room, topics_of
from state.kafka.share.deletion import ask_for_deletion
from state.kafka.share.parked import park, reply_deleted
from state.kafka.share_group import ParkedKind, ParkedTopic, ShareGroup

_Asked = dict[bytes, tuple[str, list[int]]]
"""Names and partitions by topic id."""


def delete_offsets(context: StepContext, request: DeleteShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Handle the request to a share group."""
    group = context.group_of(ShareGroup)
    try:
        check_empty(context, "SO14")
        if next(group.state_partitions(), None) is None:
            reply_deleted(context, context.rule("SO15"), reply_to, [])
            return
        topics = topics_of(context, request.topics, request.images)
        asked: _Asked = {}
        named = [_named(context, group, name, topic, asked) for name, topic in topics.items()]
        if any(topic.outcomes for topic in named):
            check_room(context, named, 0)
    except Refused as refused:
        response, message = DeleteShareGroupOffsetsResponse, refused.message
        context.reply(reply_to, response, refused.rule, refused.error, error_message=message)
        return
    if not any(topic.outcomes for topic in named):
        row = context.rule(named[0].refused if named else "SO15")
        reply_deleted(context, row, reply_to, named)
        return
    deadline_ms = park(context, ParkedKind.DELETE_OFFSETS, reply_to, named)
    if asked:
        _ask(context, group, asked, deadline_ms)


def _named(
    context: StepContext, group: ShareGroup, name: str, topic: Topic | None, asked: _Asked
) -> ParkedTopic:
    """Return what the answer waits for of a topic, and put what has to be asked for into `asked`. Raise
    Refused if a partition has another open task.
    """
    if topic is None:
        return ParkedTopic(name, b"", refused="SO17")
    topic_id = topic.topic_id
    parts = (group.initialized.get(topic_id), group.deleting.get(topic_id), group.initializing.get(topic_id))
    initialized, deleting, initializing = parts
    if deleting is not None and deleting.task and initialized is None:
        context.rule("SO18a")
        return ParkedTopic(
            name, topic_id, {number: code or None for number, code in deleting.partitions.items()}
        )
    numbers = {n for part in (initialized, deleting) if part is not None for n in part.partitions}
    if not numbers:
        return ParkedTopic(name, b"", refused="SO19")
    check_open(context, name, topic, numbers.union(initializing.partitions if initializing else ()))
    if deleting is not None:
        context.rule("SO18")
    asked[topic_id] = name, sorted(numbers)
    return ParkedTopic(name, topic_id, dict.fromkeys(sorted(numbers)))


def _ask(context: StepContext, group: ShareGroup, asked: _Asked, deadline_ms: int) -> None:
    """Of what is to be deleted nothing else is left in the group."""
    row = context.rule("SO17a")
    group.initialized = {id_: topic for id_, topic in group.initialized.items() if id_ not in asked}
    group.initializing = {id_: topic for id_, topic in group.initializing.items() if id_ not in asked}
    ask_for_deletion(context, row, asked, "an administrator deleted offsets", deadline_ms)
