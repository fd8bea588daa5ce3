"""AlterShareGroupOffsets: a group without members begins elsewhere. Rows SO9 to SO12, SK2, SK6.

The share coordinator writes the state of a partition anew, above the state epoch that it has. Meanwhile the
partition is assigned to nobody. Source: GroupCoordinatorService.alterShareGroupOffsets,
GroupMetadataManager.alterShareGroupOffsets.
"""

from collections.abc import Mapping

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import AlterShareGroupOffsetsResponse
from kafka_why.contract.kafka.share_requests import AlterShareGroupOffsets
from state.kafka.context import StepContext
from state.kafka.modern.epochs import bump, come_to_rest
from state.kafka.modern.refusal import Refused
from state.kafka.modern.topics import merge_reported
from state.kafka.share.admin_checks import check_empty, check_open, check_room, topics_of
from state.kafka.share.initialization import ask
from state.kafka.share.parked import park, reply_altered
from state.kafka.share_group import Asked, ParkedKind, ParkedTopic, ShareGroup
from state.kafka.topic_facts import Topics

_Offsets = dict[str, dict[int, int]]
"""Start offsets by topic name and partition."""


def alter_offsets(context: StepContext, request: AlterShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Handle the request to a share group, or to a group id without a group."""
    try:
        if context.has_group:
            check_empty(context, "SO9")
        topics = topics_of(context, [topic.topic_name for topic in request.topics], request.images)
        wanted, named = _sort_out(request, topics)
        if wanted:
            _check(context, wanted, named, topics)
    except Refused as refused:
        response, message = AlterShareGroupOffsetsResponse, refused.message
        context.reply(reply_to, response, refused.rule, refused.error, error_message=message)
        return
    if wanted:
        _alter(context, request, wanted, topics)
        park(context, ParkedKind.ALTER_OFFSETS, reply_to, named)
    else:
        reply_altered(context, context.rule("SO9c"), reply_to, named)


def _sort_out(request: AlterShareGroupOffsets, topics: Topics) -> tuple[_Offsets, list[ParkedTopic]]:
    """Return the start offsets of the partitions that exist, and the topics of the answer. A partition that
    is named twice gets the last start offset.
    """
    wanted: _Offsets = {}
    named: dict[str, ParkedTopic] = {}
    for asked in request.topics:
        name, topic = asked.topic_name, topics[asked.topic_name]
        answer = named.setdefault(name, ParkedTopic(name, b"" if topic is None else topic.topic_id, {}))
        for partition in asked.partitions:
            number = partition.partition
            if topic is not None and 0 <= number < topic.partitions:
                answer.outcomes[number] = None
                wanted.setdefault(name, {})[number] = partition.start_offset
            else:
                answer.outcomes[number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return wanted, list(named.values())


def _check(context: StepContext, wanted: _Offsets, named: list[ParkedTopic], topics: Topics) -> None:
    """Raise Refused if the group has no room for these partitions, or one of them has an open task."""
    new = sum(map(len, wanted.values()))
    if context.has_group:
        group = context.group_of(ShareGroup)
        known = {topic_id: numbers for topic_id, _, numbers in group.state_partitions()}
        for name, offsets in wanted.items():
            topic = topics[name]
            assert topic is not None
            check_open(context, name, topic, offsets.keys())
            new -= len(offsets.keys() & known.get(topic.topic_id, ()))
    check_room(context, named, new)


def _alter(context: StepContext, request: AlterShareGroupOffsets, wanted: _Offsets, topics: Topics) -> None:
    """Ask for the new state of the partitions, above the group epoch of any state before (SK2)."""
    row = context.rule("SO10")
    if not context.has_group:
        context.create_group(ShareGroup, row, "first AlterShareGroupOffsets for this group id")
    group = context.group_of(ShareGroup)
    images = request.images or {}
    merge_reported(context, group, {name: images[name] for name in wanted if name in images})
    bump(context, row, "an administrator altered offsets")
    come_to_rest(context)
    asked = {}
    for name, offsets in sorted(wanted.items()):
        topic = topics[name]
        assert topic is not None
        asked[topic.topic_id] = (name, _asked(context, group, offsets))
        _forget_failed_deletion(group, topic.topic_id, offsets)
    ask(context, row, asked)


def _asked(context: StepContext, group: ShareGroup, offsets: Mapping[int, int]) -> dict[int, Asked]:
    how = (context.cause, group.group_epoch)
    return {number: Asked(*how, offset, context.now_ms, altered=True) for number, offset in offsets.items()}


def _forget_failed_deletion(group: ShareGroup, topic_id: bytes, numbers: Mapping[int, int]) -> None:
    """What could not be deleted is written anew."""
    deleting = group.deleting.get(topic_id)
    if deleting is None:
        return
    deleting.partitions = {n: code for n, code in deleting.partitions.items() if n not in numbers}
    if not deleting.partitions:
        del group.deleting[topic_id]
