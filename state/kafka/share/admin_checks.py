"""What the requests that change the offsets of a share group are refused for, and the topics that they name.
Rows SO9 to SO9d, SO14, SK6, SP17, TA31.

Source: GroupMetadataManager (throwIfShareGroupIsNotEmpty, alterShareGroupOffsets,
sharePartitionsEligibleForOffsetDeletion).
"""

from collections.abc import Collection

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.topic_images import TopicImages
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.modern.refusal import Refused
from state.kafka.share.deletion import refuse_while_deleted
from state.kafka.share_group import ParkedKind, ParkedTopic, ShareGroup
from state.kafka.topic_facts import Topics, reported

PARKED_AT_MOST = 10
"""The requests of one group about its offsets that wait at a time: each may be as large as a record."""


def check_empty(context: StepContext, row: str) -> None:
    """Raise Refused, by this row or by SP17, if the group has members or is being deleted."""
    if not context.group_of(ShareGroup).is_empty:
        raise Refused(context.rule(row), ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    refuse_while_deleted(context)


def topics_of(context: StepContext, names: Collection[str], images: TopicImages | None) -> Topics:
    """Return the topics of these names, as the group or the request knows them. Raise Refused if the sender
    could not reach the brokers, and the group does not know them all either.
    """
    known: Topics = {}
    deleted: Collection[bytes] = ()
    if context.has_group:
        group = context.group_of(ShareGroup)
        known, deleted = group.topics, group.deleted_topic_ids
    if images is None and not known.keys() >= set(names):
        message = "The topics are not known, because the brokers could not be reached."
        raise Refused(context.rule("SO9b"), ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    found = known | reported(known, images or {}, deleted)
    return {name: found.get(name) for name in names}


def check_open(context: StepContext, name: str, topic: Topic, numbers: Collection[int]) -> None:
    """Row SK6: raise Refused if one of these partitions has an open task. Clients try again."""
    group = context.group_of(ShareGroup)
    initializing, deleting = group.initializing.get(topic.topic_id), group.deleting.get(topic.topic_id)
    asked = {} if initializing is None else initializing.partitions
    is_open = any(asked[number].task for number in asked.keys() & numbers)
    if deleting is not None and deleting.task:
        is_open = is_open or not deleting.partitions.keys().isdisjoint(numbers)
    if is_open:
        message = f"The share coordinator has still to answer about topic {name}."
        raise Refused(context.rule("SK6"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)


def check_room(context: StepContext, topics: Collection[ParkedTopic], new: int) -> None:
    """Raise Refused if the request names more than the coordinator keeps of one group (row TA31), or more
    requests wait than it keeps (row SO9d). `new` is the number of partitions that the group gets to those of
    which the share coordinator may know.
    """
    most = context.config.group_max_partitions
    group = context.group_of(ShareGroup) if context.has_group else None
    has = 0 if group is None else sum(len(numbers) for _, _, numbers in group.state_partitions())
    named = sum(max(1, len(topic.outcomes)) for topic in topics)
    if named > most or (new and has + new > most):
        message = f"Group {context.group_id} would have more partitions than group.max.partitions, {most}."
        raise Refused(context.rule("TA31"), ErrorCode.GROUP_MAX_SIZE_REACHED, message)
    parked = [] if group is None else group.parked
    if sum(one.kind is not ParkedKind.DELETE_GROUP for one in parked) >= PARKED_AT_MOST:
        message = f"{PARKED_AT_MOST} requests about the offsets of group {context.group_id} wait already."
        raise Refused(context.rule("SO9d"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
