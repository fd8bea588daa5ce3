"""Deletion of the state of partitions at the share coordinator, for topics or for the whole group. Rows SD14
to SD17, SP12, SP17, SI10.

A group is deleted with its state: DeleteGroups waits for the outcome, which comes from the log, and nobody
joins meanwhile. Source: GroupCoordinatorShard.sharePartitionDeleteRequests,
GroupCoordinatorService.deleteGroups.
"""

from collections.abc import Mapping
from typing import TypeVar

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import DeleteGroup, ReplyTo, TopicMetadata
from kafka_why.contract.kafka.responses import DeleteGroupResponse
from kafka_why.contract.kafka.share_requests import ShareStateResult
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.responses import Refused
from state.kafka.modern.topics import forget_topics, store_watched
from state.kafka.share.tasks import (
    RETRIABLE,
    Ended,
    Numbers,
    error_of,
    in_words,
    note_gone,
    ordered,
    park,
    refuse_parked,
    stop_watching,
    watch_tasks,
)
from state.kafka.share_group import DeletingTopic, Parked, ParkedKind, ShareGroup


def delete_group(context: StepContext, _: DeleteGroup, reply_to: ReplyTo) -> None:
    """Delete an Empty group, at once if the share coordinator knows nothing of it."""
    group = context.group_of(ShareGroup)
    if not group.is_empty:
        context.reply(reply_to, DeleteGroupResponse, context.rule("SD14"), ErrorCode.NON_EMPTY_GROUP)
        return
    partitions = {id_: (name, numbers) for id_, name, numbers in group.state_partitions()}
    if not partitions:
        row = context.rule("SD16")
        _delete(context, row)
        context.reply(reply_to, DeleteGroupResponse, row)
        return
    row = context.rule("SP17")
    deadline_ms = park(context, ParkedKind.DELETE_GROUP, reply_to, [])
    if group.deletion:
        return
    group.deletion = context.cause
    group.initializing, group.initialized = {}, {}
    ask_for_deletion(context, row, partitions, "the group is to be deleted", deadline_ms)
    _give_up_altering(context, row)


def refuse_while_deleted(context: StepContext) -> None:
    """Row SP17: raise Refused if the group is being deleted."""
    if context.group_of(ShareGroup).deletion:
        raise Refused(
            context.rule("SP17"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _is_being_deleted(context.group_id)
        )


def _is_being_deleted(group_id: str) -> str:
    return f"Group {group_id} is being deleted."


def _give_up_altering(context: StepContext, row: RuleId) -> None:
    """What an AlterShareGroupOffsets waits for is deleted with the group. DeleteShareGroupOffsets goes on."""
    group = context.group_of(ShareGroup)
    altering = [parked for parked in group.parked if parked.kind is ParkedKind.ALTER_OFFSETS]
    group.parked = [parked for parked in group.parked if parked.kind is not ParkedKind.ALTER_OFFSETS]
    error, message = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _is_being_deleted(group.group_id)
    refuse_parked(context, altering, row, error, message)


def ask_for_deletion(
    context: StepContext,
    row: RuleId,
    partitions: Mapping[bytes, tuple[str, list[int]]],
    why: str,
    deadline_ms: int,
) -> None:
    """Ask the share coordinator to delete the state of these partitions, which are nothing else any more.
    `partitions` are names and numbers by topic id, `why` begins a sentence, and `row` has asked for it.
    """
    group = context.group_of(ShareGroup)
    asked = {
        id_: DeletingTopic(name, dict.fromkeys(numbers, 0), context.cause, context.now_ms)
        for id_, (name, numbers) in partitions.items()
    }
    group.deleting = dict(sorted({**group.deleting, **asked}.items()))
    watch_tasks(context)
    named = dict(sorted(partitions.values()))
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_DELETING,
        f"{why}: the share coordinator is asked to delete {in_words(named)}",
        partitions=named,
        deadline_ms=deadline_ms,
    )


def note_deletion(context: StepContext, result: ShareStateResult) -> Ended:
    """Take the outcome of a task to delete, and return the partitions whose tasks have ended. What is not of
    an open task changes nothing (row SP12).
    """
    group = context.group_of(ShareGroup)
    ended: Ended = {}
    deleted: Numbers = {}
    failed: dict[int, Numbers] = {}  # by error code
    for outcome in result.partitions:
        topic_id, number, code = outcome.topic_id.bytes, outcome.partition, outcome.error_code
        topic = group.deleting.get(topic_id)
        if topic is None or topic.task != result.task or topic.partitions.get(number) != 0:
            continue
        if code == ErrorCode.NONE:
            del topic.partitions[number]
            deleted.setdefault(topic.name, []).append(number)
        else:
            failed.setdefault(code, {}).setdefault(topic.name, []).append(number)
            topic.partitions[number] = 0 if code in RETRIABLE else code
        if code not in RETRIABLE:
            ended.setdefault(topic_id, {})[number] = code
    for topic_id in ended:
        _maybe_close(group, topic_id)
    if deleted:
        context.record(
            context.rule("SO20"),
            EntryType.SHARE_PARTITIONS_REMOVED,
            f"the share coordinator has deleted {in_words(deleted)}",
            partitions=ordered(deleted),
        )
    for code, partitions in sorted(failed.items()):
        _record_failure(context, code, partitions)
    if not deleted and not failed:
        context.rule("SP12")
    return ended


def _maybe_close(group: ShareGroup, topic_id: bytes) -> None:
    """Forget the topic if all of it is deleted. If all the rest has failed, its task has ended."""
    topic = group.deleting[topic_id]
    if not topic.partitions:
        del group.deleting[topic_id]
    elif 0 not in topic.partitions.values():
        topic.task = ""


def _record_failure(context: StepContext, code: int, partitions: Numbers) -> None:
    stays = code in RETRIABLE
    then = "it goes on trying" if stays else "who deletes it again, or joins, asks again"
    context.record(
        context.rule("SI10" if stays else "SD15"),
        EntryType.SHARE_PARTITIONS_NOT_DELETED,
        f"the share coordinator has not deleted {in_words(partitions)}, error {code}: {then}",
        partitions=ordered(partitions),
        error_code=code,
    )


def maybe_end_deletion(context: StepContext) -> None:
    """Delete the group if nothing of its state is left. If the rest has failed, the group stays."""
    group = context.group_of(ShareGroup)
    codes = [code for topic in group.deleting.values() for code in topic.partitions.values()]
    if not group.deletion or 0 in codes:
        return
    parked, group.parked, group.deletion = group.parked, [], ""
    error = error_of(codes[0]) if codes else ErrorCode.NONE
    row = context.rule("SD15" if codes else "SD16")
    if not codes:
        _delete(context, row)
    _answer(context, parked, row, error)


def _delete(context: StepContext, row: RuleId) -> None:
    context.delete_group(row, "deleted by request")


def _answer(context: StepContext, parked: list[Parked], row: RuleId, error: ErrorCode) -> None:
    for waiting in parked:
        context.reply(waiting.reply_to, DeleteGroupResponse, row, error)


# The topics of a share group: what the topic watcher reports, and what is forgotten. Rows MI8 to MI15,
# SI18.
#
# Source: GroupMetadataManager (onMetadataUpdate, maybeCleanupShareGroupState).


T = TypeVar("T")


def topic_metadata(context: StepContext, request: TopicMetadata) -> None:
    """Keep what the topic watcher reports of the topics that the group knows or subscribes to (row MI8).

    The share coordinator deletes the state of deleted topics by itself, so the group forgets their ids.
    """
    group = context.group_of(ShareGroup)
    known = group.names_by_id().keys()
    if not store_watched(context, group, request.topics, {*group.topics, *group.subscribed()}):
        return
    gone = known - group.names_by_id().keys()
    if gone & {topic_id for topic_id, _, _ in group.state_partitions()}:
        forgotten = {name: numbers for id_, name, numbers in group.state_partitions() if id_ in gone}
        context.record(
            context.rule("SI18"),
            EntryType.SHARE_PARTITIONS_REMOVED,
            f"the topic was deleted, and with it the state of {in_words(forgotten)}",
            partitions=forgotten,
        )
        group.initializing = _without(group.initializing, gone)
        group.initialized = _without(group.initialized, gone)
        group.deleting = _without(group.deleting, gone)
        stop_watching(group)
        note_gone(context, gone)
    forget_unused(context)
    maybe_end_deletion(context)


def forget_unused(context: StepContext) -> None:
    """Forget the topics that no subscription, no state, no member's partitions and no target refers to (row
    MI15).
    """
    group = context.group_of(ShareGroup)
    used = {id_ for target in group.target.values() for id_ in target}
    used.update(topic_id for topic_id, _, _ in group.state_partitions())
    for member in group.members.values():
        used.update(member.assigned)
    forget_topics(context, group, used)


def _without(topics: dict[bytes, T], gone: set[bytes]) -> dict[bytes, T]:
    return {topic_id: topic for topic_id, topic in topics.items() if topic_id not in gone}
