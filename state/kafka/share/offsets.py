"""Requests that change the offsets of a share group: AlterShareGroupOffsets and DeleteShareGroupOffsets.

A row, such as SO9, is a rule of docs/rules-share.md. `context.cite` records that a row was applied.
"""

from collections.abc import Collection, Mapping

from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    TopicImages,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import StepContext
from state.kafka.group import Topic, Topics, topics_from_request
from state.kafka.modern import (
    RequestRefused,
    answer_refused,
    bump,
    merge_reported_topics,
    too_many_partitions,
)
from state.kafka.share.state import (
    park,
    refuse_during_deletion,
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


PARKED_MAX = 10
"""The maximum number of a group's offset requests that wait at a time. Each may be as large as a record."""


def check_empty(context: StepContext, row: str) -> None:
    """Raise RequestRefused if the group has members (by `row`) or is being deleted (by row SP17)."""
    if not context.group_of(ShareGroup).is_empty:
        raise RequestRefused(context.cite(row), ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    refuse_during_deletion(context)


def topics_of(context: StepContext, names: Collection[str], images: TopicImages | None) -> Topics:
    """Return the topics with these names, from the group and from `images`. A missing topic is None.

    Raise RequestRefused if `images` is None, because the brokers could not be reached, and the group does not
    know all the topics.
    """
    known: Topics = {}
    deleted: Collection[bytes] = ()
    if context.has_group:
        group = context.group_of(ShareGroup)
        known, deleted = group.topics, group.deleted_topic_ids
    if images is None and not known.keys() >= set(names):
        message = "The topics are not known, because the brokers could not be reached."
        raise RequestRefused(context.cite("SO9b"), ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    merged = known | topics_from_request(known, images or {}, deleted)
    return {name: merged.get(name) for name in names}


def refuse_open_tasks(
    context: StepContext, group: ShareGroup, name: str, topic: Topic, numbers: Collection[int]
) -> None:
    """Row SK6: raise RequestRefused if one of these partitions has an open task. Clients retry."""
    initializing, deleting = group.initializing.get(topic.topic_id), group.deleting.get(topic.topic_id)
    initializations = {} if initializing is None else initializing.partitions
    is_open = any(initializations[number].task for number in initializations.keys() & numbers)
    if deleting is not None and deleting.task:
        is_open = is_open or not deleting.partitions.keys().isdisjoint(numbers)
    if is_open:
        message = f"The share coordinator has still to answer about topic {name}."
        raise RequestRefused(context.cite("SK6"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)


def check_capacity(context: StepContext, topics: Collection[ParkedTopic], new: int) -> None:
    """Raise RequestRefused if the group would have state of too many partitions (row TA31), or if too many
    requests are parked (row SO9d).

    `topics` are those that the request names, and `new` is the number of partitions for which it adds state.
    """
    max_partitions = context.config.group_max_partitions
    group = context.group_of(ShareGroup) if context.has_group else None
    stored_count = 0 if group is None else sum(len(numbers) for _, _, numbers in group.state_partitions())
    # A topic without outcomes counts as one partition.
    named_count = sum(max(1, len(topic.outcomes)) for topic in topics)
    if named_count > max_partitions or (new and stored_count + new > max_partitions):
        raise too_many_partitions(context)
    parked = [] if group is None else group.parked
    if sum(request.kind is not ParkedKind.DELETE_GROUP for request in parked) >= PARKED_MAX:
        message = f"{PARKED_MAX} requests about the offsets of group {context.group_id} wait already."
        raise RequestRefused(context.cite("SO9d"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)


# AlterShareGroupOffsets: set the start offsets of a group without members. Rows SO9 to SO12, SK2, SK6.
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
        new_offsets, answer_topics = _existing_partitions(request, topics)
        if new_offsets:
            _check_alteration(context, new_offsets, answer_topics, topics)
    except RequestRefused as refused:
        return answer_refused(context, request, reply_to, refused)
    if new_offsets:
        _request_new_offsets(context, request, new_offsets, topics)
        park(context, ParkedKind.ALTER_OFFSETS, reply_to, answer_topics)
    else:
        reply_altered(context, context.cite("SO9c"), reply_to, answer_topics)


def _existing_partitions(
    request: AlterShareGroupOffsets, topics: Topics
) -> tuple[_Offsets, list[ParkedTopic]]:
    """Return the requested start offsets of partitions that exist, and the topics of the answer, in which the
    other partitions already have an error.
    """
    new_offsets: _Offsets = {}
    answer_topics: dict[str, ParkedTopic] = {}
    for requested in request.topics:
        name, topic = requested.topic_name, topics[requested.topic_name]
        answer = answer_topics.setdefault(
            name, ParkedTopic(name, b"" if topic is None else topic.topic_id, {})
        )
        for partition in requested.partitions:
            number = partition.partition
            if topic is not None and 0 <= number < topic.partitions:
                answer.outcomes[number] = None
                # If the request names a partition twice, its last start offset counts.
                new_offsets.setdefault(name, {})[number] = partition.start_offset
            else:
                answer.outcomes[number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return new_offsets, list(answer_topics.values())


def _check_alteration(
    context: StepContext, new_offsets: _Offsets, answer_topics: list[ParkedTopic], topics: Topics
) -> None:
    """Raise RequestRefused if a partition in `new_offsets` has an open task, or if the group would have too
    many partitions.
    """
    new_count = sum(map(len, new_offsets.values()))  # partitions that have no state yet
    if context.has_group:
        group = context.group_of(ShareGroup)
        with_state = {topic_id: numbers for topic_id, _, numbers in group.state_partitions()}
        for name, offsets in new_offsets.items():
            topic = topics[name]
            assert topic is not None
            refuse_open_tasks(context, group, name, topic, offsets.keys())
            new_count -= len(offsets.keys() & with_state.get(topic.topic_id, ()))
    check_capacity(context, answer_topics, new_count)


def _request_new_offsets(
    context: StepContext, request: AlterShareGroupOffsets, new_offsets: _Offsets, topics: Topics
) -> None:
    """Request new state of the partitions, with an epoch above any earlier one (SK2)."""
    row = context.cite("SO10")
    if not context.has_group:
        context.create_group(ShareGroup, row, "first AlterShareGroupOffsets for this group id")
    group = context.group_of(ShareGroup)
    images = request.images or {}
    merge_reported_topics(context, group, {name: images[name] for name in new_offsets if name in images})
    bump(context, row, "an administrator altered offsets")
    tasks = {}
    for name, offsets in sorted(new_offsets.items()):
        topic = topics[name]
        assert topic is not None
        tasks[topic.topic_id] = (
            name,
            {
                number: InitializationTask(
                    context.cause, group.group_epoch, offset, context.now_ms, altered=True
                )
                for number, offset in offsets.items()
            },
        )
        _forget_failed_deletion(group, topic.topic_id, offsets)
    request_initialization(context, group, row, tasks)


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


_DeletedPartitions = dict[bytes, tuple[str, list[int]]]
"""Names and partitions by topic id."""


def delete_offsets(context: StepContext, request: DeleteShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Handle a DeleteShareGroupOffsets to a share group."""
    group = context.group_of(ShareGroup)
    try:
        check_empty(context, "SO14")
        if next(group.state_partitions(), None) is None:
            reply_deleted(context, context.cite("SO15"), reply_to, [])
            return
        topics = topics_of(context, request.topics, request.images)
        deleted: _DeletedPartitions = {}
        answer_topics = [
            _parked_topic(context, group, name, topic, deleted) for name, topic in topics.items()
        ]
        if any(topic.outcomes for topic in answer_topics):
            check_capacity(context, answer_topics, new=0)
    except RequestRefused as refused:
        return answer_refused(context, request, reply_to, refused)
    if not any(topic.outcomes for topic in answer_topics):
        # Each topic has its own refusal. The row of the first one stands for the whole answer.
        row = context.cite(answer_topics[0].refused if answer_topics else "SO15")
        reply_deleted(context, row, reply_to, answer_topics)
        return
    deadline_ms = park(context, ParkedKind.DELETE_OFFSETS, reply_to, answer_topics)
    if deleted:
        _delete_state(context, group, deleted, deadline_ms)


def _parked_topic(
    context: StepContext, group: ShareGroup, name: str, topic: Topic | None, deleted: _DeletedPartitions
) -> ParkedTopic:
    """Return the topic with the partitions whose outcomes the answer waits for, or with the row that refuses
    it.

    Partitions whose deletion has to be requested are added to `deleted`. Raise RequestRefused if one of them
    has an open task.
    """
    if topic is None:
        return ParkedTopic(name, b"", refused="SO17")
    topic_id = topic.topic_id
    initialized, initializing = group.initialized.get(topic_id), group.initializing.get(topic_id)
    deleting = group.deleting.get(topic_id)
    # An earlier request already deletes the state of the whole topic.
    if deleting is not None and deleting.task and initialized is None:
        context.cite("SO18a")
        # A partition with code 0 has no outcome yet, so the answer awaits it.
        return ParkedTopic(
            name, topic_id, {number: code or None for number, code in deleting.partitions.items()}
        )
    with_state = [topic_state for topic_state in (initialized, deleting) if topic_state is not None]
    numbers = {number for topic_state in with_state for number in topic_state.partitions}
    if not numbers:
        return ParkedTopic(name, b"", refused="SO19")
    refuse_open_tasks(
        context, group, name, topic, numbers.union(initializing.partitions if initializing else ())
    )
    if deleting is not None:
        context.cite("SO18")
    deleted[topic_id] = name, sorted(numbers)
    return ParkedTopic(name, topic_id, dict.fromkeys(sorted(numbers)))


def _delete_state(
    context: StepContext, group: ShareGroup, deleted: _DeletedPartitions, deadline_ms: int
) -> None:
    """Request the deletion of these partitions' state, and forget everything else about them."""
    row = context.cite("SO17a")
    group.initialized = {id_: topic for id_, topic in group.initialized.items() if id_ not in deleted}
    group.initializing = {id_: topic for id_, topic in group.initializing.items() if id_ not in deleted}
    request_deletion(context, row, deleted, "an administrator deleted offsets", deadline_ms)
