"""Requests that change the offsets of a share group: AlterShareGroupOffsets and DeleteShareGroupOffsets."""

from collections.abc import Collection, Mapping

from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    TopicImages,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import StepContext
from state.kafka.group import Topic, Topics, reported
from state.kafka.modern import RequestRefused, answer_refused, bump, merge_reported, settle_emptied
from state.kafka.share.state import (
    park,
    refuse_while_deleted,
    reply_altered,
    reply_deleted,
    request_deletion,
    request_initialization,
)
from state.kafka.share_group import InitializationTask, ParkedKind, ParkedTopic, ShareGroup

# The requests that change the offsets of a share group: refusals and named topics. Rows SO9 to SO9d, SO14,
# SK6, SP17, TA31.
#
# Source: GroupMetadataManager (throwIfShareGroupIsNotEmpty, alterShareGroupOffsets,
# sharePartitionsEligibleForOffsetDeletion).


PARKED_AT_MOST = 10
"""The maximum number of a group's offset requests that wait at a time. Each may be as large as a record."""


def check_empty(context: StepContext, row: str) -> None:
    """Raise RequestRefused if the group has members (by `row`) or is being deleted (by row SP17)."""
    if not context.group_of(ShareGroup).is_empty:
        raise RequestRefused(context.rule(row), ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    refuse_while_deleted(context)


def topics_of(context: StepContext, names: Collection[str], images: TopicImages | None) -> Topics:
    """Return the topics with these names, as the group or the request knows them.

    Raise RequestRefused if the sender could not reach the brokers and the group does not know all the topics.
    """
    known: Topics = {}
    deleted: Collection[bytes] = ()
    if context.has_group:
        group = context.group_of(ShareGroup)
        known, deleted = group.topics, group.deleted_topic_ids
    if images is None and not known.keys() >= set(names):
        message = "The topics are not known, because the brokers could not be reached."
        raise RequestRefused(context.rule("SO9b"), ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    found = known | reported(known, images or {}, deleted)
    return {name: found.get(name) for name in names}


def refuse_open_tasks(
    context: StepContext, group: ShareGroup, name: str, topic: Topic, numbers: Collection[int]
) -> None:
    """Row SK6: raise RequestRefused if one of these partitions has an open task. Clients retry."""
    initializing, deleting = group.initializing.get(topic.topic_id), group.deleting.get(topic.topic_id)
    asked = {} if initializing is None else initializing.partitions
    is_open = any(asked[number].task for number in asked.keys() & numbers)
    if deleting is not None and deleting.task:
        is_open = is_open or not deleting.partitions.keys().isdisjoint(numbers)
    if is_open:
        message = f"The share coordinator has still to answer about topic {name}."
        raise RequestRefused(context.rule("SK6"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)


def check_capacity(context: StepContext, topics: Collection[ParkedTopic], new: int) -> None:
    """Raise RequestRefused if the group would have state of too many partitions (row TA31), or if too many
    requests are parked (row SO9d).

    `new` is the number of partitions for which the request adds state.
    """
    most = context.config.group_max_partitions
    group = context.group_of(ShareGroup) if context.has_group else None
    has = 0 if group is None else sum(len(numbers) for _, _, numbers in group.state_partitions())
    named = sum(max(1, len(topic.outcomes)) for topic in topics)
    if named > most or (new and has + new > most):
        message = f"Group {context.group_id} would have more partitions than group.max.partitions, {most}."
        raise RequestRefused(context.rule("TA31"), ErrorCode.GROUP_MAX_SIZE_REACHED, message)
    parked = [] if group is None else group.parked
    if sum(one.kind is not ParkedKind.DELETE_GROUP for one in parked) >= PARKED_AT_MOST:
        message = f"{PARKED_AT_MOST} requests about the offsets of group {context.group_id} wait already."
        raise RequestRefused(context.rule("SO9d"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)


# AlterShareGroupOffsets: move the start of a group without members. Rows SO9 to SO12, SK2, SK6.
#
# The share coordinator rewrites the state of a partition under a higher state epoch. Meanwhile the partition
# is assigned to no member. Source: GroupCoordinatorService.alterShareGroupOffsets,
# GroupMetadataManager.alterShareGroupOffsets.


_Offsets = dict[str, dict[int, int]]
"""Start offsets by topic name and partition."""


def alter_offsets(context: StepContext, request: AlterShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Handle an AlterShareGroupOffsets to a share group, or to a group id without a group."""
    try:
        if context.has_group:
            check_empty(context, "SO9")
        topics = topics_of(context, [topic.topic_name for topic in request.topics], request.images)
        wanted, named = _existing_partitions(request, topics)
        if wanted:
            _check_wanted(context, wanted, named, topics)
    except RequestRefused as refused:
        return answer_refused(context, request, reply_to, refused)
    if wanted:
        _alter(context, request, wanted, topics)
        park(context, ParkedKind.ALTER_OFFSETS, reply_to, named)
    else:
        reply_altered(context, context.rule("SO9c"), reply_to, named)


def _existing_partitions(
    request: AlterShareGroupOffsets, topics: Topics
) -> tuple[_Offsets, list[ParkedTopic]]:
    """Return the start offsets of existing partitions, and the topics of the answer."""
    wanted: _Offsets = {}
    named: dict[str, ParkedTopic] = {}
    for asked in request.topics:
        name, topic = asked.topic_name, topics[asked.topic_name]
        answer = named.setdefault(name, ParkedTopic(name, b"" if topic is None else topic.topic_id, {}))
        for partition in asked.partitions:
            number = partition.partition
            if topic is not None and 0 <= number < topic.partitions:
                answer.outcomes[number] = None
                # If the request names a partition twice, its last start offset counts.
                wanted.setdefault(name, {})[number] = partition.start_offset
            else:
                answer.outcomes[number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return wanted, list(named.values())


def _check_wanted(context: StepContext, wanted: _Offsets, named: list[ParkedTopic], topics: Topics) -> None:
    """Raise RequestRefused if the group would have too many partitions, or one in `wanted` has an
    open task.
    """
    new = sum(map(len, wanted.values()))
    if context.has_group:
        group = context.group_of(ShareGroup)
        known = {topic_id: numbers for topic_id, _, numbers in group.state_partitions()}
        for name, offsets in wanted.items():
            topic = topics[name]
            assert topic is not None
            refuse_open_tasks(context, context.group_of(ShareGroup), name, topic, offsets.keys())
            new -= len(offsets.keys() & known.get(topic.topic_id, ()))
    check_capacity(context, named, new)


def _alter(context: StepContext, request: AlterShareGroupOffsets, wanted: _Offsets, topics: Topics) -> None:
    """Request new state of the partitions, with an epoch above any earlier one (SK2)."""
    row = context.rule("SO10")
    if not context.has_group:
        context.create_group(ShareGroup, row, "first AlterShareGroupOffsets for this group id")
    group = context.group_of(ShareGroup)
    images = request.images or {}
    merge_reported(context, group, {name: images[name] for name in wanted if name in images})
    bump(context, row, "an administrator altered offsets")
    settle_emptied(context)
    asked = {}
    for name, offsets in sorted(wanted.items()):
        topic = topics[name]
        assert topic is not None
        asked[topic.topic_id] = (
            name,
            {
                number: InitializationTask(
                    context.cause, group.group_epoch, offset, context.now_ms, altered=True
                )
                for number, offset in offsets.items()
            },
        )
        _forget_failed_deletion(group, topic.topic_id, offsets)
    request_initialization(context, group, row, asked)


def _forget_failed_deletion(group: ShareGroup, topic_id: bytes, numbers: Mapping[int, int]) -> None:
    """Forget the failed deletion of these partitions, because their state is rewritten."""
    deleting = group.deleting.get(topic_id)
    if deleting is None:
        return
    deleting.partitions = {n: code for n, code in deleting.partitions.items() if n not in numbers}
    if not deleting.partitions:
        del group.deleting[topic_id]


# DeleteShareGroupOffsets: a group without members forgets its offsets in topics. Rows SO14 to SO20, SK6.
#
# Source: GroupCoordinatorShard.initiateDeleteShareGroupOffsets, GroupMetadataManager
# (sharePartitionsEligibleForOffsetDeletion, completeDeleteShareGroupOffsets).


_Asked = dict[bytes, tuple[str, list[int]]]
"""Names and partitions by topic id."""


def delete_offsets(context: StepContext, request: DeleteShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Handle a DeleteShareGroupOffsets to a share group."""
    group = context.group_of(ShareGroup)
    try:
        check_empty(context, "SO14")
        if next(group.state_partitions(), None) is None:
            reply_deleted(context, context.rule("SO15"), reply_to, [])
            return
        topics = topics_of(context, request.topics, request.images)
        asked: _Asked = {}
        named = [_parked_topic(context, group, name, topic, asked) for name, topic in topics.items()]
        if any(topic.outcomes for topic in named):
            check_capacity(context, named, 0)
    except RequestRefused as refused:
        return answer_refused(context, request, reply_to, refused)
    if not any(topic.outcomes for topic in named):
        row = context.rule(named[0].refused if named else "SO15")
        reply_deleted(context, row, reply_to, named)
        return
    deadline_ms = park(context, ParkedKind.DELETE_OFFSETS, reply_to, named)
    if asked:
        _delete_state(context, group, asked, deadline_ms)


def _parked_topic(
    context: StepContext, group: ShareGroup, name: str, topic: Topic | None, asked: _Asked
) -> ParkedTopic:
    """Return the parked topic: the partitions whose outcomes the answer waits for.

    Partitions whose deletion has to be requested are added to `asked`. Raise RequestRefused if one has
    another open task.
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
    refuse_open_tasks(
        context, group, name, topic, numbers.union(initializing.partitions if initializing else ())
    )
    if deleting is not None:
        context.rule("SO18")
    asked[topic_id] = name, sorted(numbers)
    return ParkedTopic(name, topic_id, dict.fromkeys(sorted(numbers)))


def _delete_state(context: StepContext, group: ShareGroup, asked: _Asked, deadline_ms: int) -> None:
    """Request the deletion of these partitions' state, and forget everything else about them."""
    row = context.rule("SO17a")
    group.initialized = {id_: topic for id_, topic in group.initialized.items() if id_ not in asked}
    group.initializing = {id_: topic for id_, topic in group.initializing.items() if id_ not in asked}
    request_deletion(context, row, asked, "an administrator deleted offsets", deadline_ms)
