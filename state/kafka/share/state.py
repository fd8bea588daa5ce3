"""The state of a share group's partitions at the cluster's share coordinators: the tasks that initialize and
delete it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import DeleteGroup, ReplyTo, TopicMetadata
from kafka_why.contract.kafka.responses import (
    AlteredSharePartition,
    AlteredShareTopic,
    AlterShareGroupOffsetsResponse,
    AnyResponse,
    DeletedShareTopic,
    DeleteGroupResponse,
    DeleteShareGroupOffsetsResponse,
)
from kafka_why.contract.kafka.share_requests import ShareStatePartition, ShareStateResult
from kafka_why.contract.kafka.snapshot import listed
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import RuleId, StepContext
from state.kafka.group import DeadlineReached, Topic
from state.kafka.modern import (
    RequestRefused,
    assignable_topics,
    bump,
    forget_topics,
    settle_emptied,
    store_watched,
)
from state.kafka.share_group import (
    NO_START_OFFSET,
    DeletingTopic,
    InitializationTask,
    InitializedTopic,
    InitializingTopic,
    Parked,
    ParkedKind,
    ParkedTopic,
    ShareGroup,
)

# The share coordinator's answers for a partition. Row SI10.


RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Temporary errors. The task stays open, and its executor retries."""

_CODES = frozenset(ErrorCode)

PartitionsByTopic = dict[str, list[int]]
"""Partitions by topic name."""

EndedTasks = dict[bytes, dict[int, int]]
"""Error codes of partitions whose tasks have ended, by topic id."""


def error_of(code: int) -> ErrorCode:
    """Return the error of the code, UNKNOWN_SERVER_ERROR if the coordinator never answers with it."""
    return ErrorCode(code) if code in _CODES else ErrorCode.UNKNOWN_SERVER_ERROR


def ordered(partitions: Mapping[str, Collection[int]]) -> PartitionsByTopic:
    """Return the partitions sorted, as the history has them."""
    return {name: sorted(numbers) for name, numbers in sorted(partitions.items())}


def in_words(partitions: Mapping[str, Collection[int]]) -> str:
    """Return partitions by topic name as `topic-number`."""
    texts = [f"{name}-{number}" for name, numbers in ordered(partitions).items() for number in numbers]
    return listed(texts, "partition")


# Tasks that the share coordinator has left open for too long. Row SP15.
#
# Nobody is fenced: members continue with their partitions. Kafka does not report this.


OVERDUE_MS = 60_000
"""The age of an open task at which the history gets an entry."""

_ENTRIES = {
    EntryType.SHARE_PARTITIONS_NOT_INITIALIZED: "initialized",
    EntryType.SHARE_PARTITIONS_NOT_DELETED: "deleted",
}
_OpenTask = tuple[str, int, str, int]
"""The open task of a partition: its kind, the time of the request, and the partition."""


def watch_tasks(context: StepContext, group: ShareGroup) -> None:
    """Arm a timer for the time at which an open task can be overdue."""
    if group.overdue_deadline_ms is None:
        group.overdue_deadline_ms = context.deadline(OVERDUE_MS)


def stop_watching(group: ShareGroup) -> None:
    """Disarm the timer if no task is open."""
    if next(_open_tasks(group), None) is None:
        group.overdue_deadline_ms = None


def tasks_overdue(context: StepContext, group: ShareGroup) -> None:
    """Record each task that is overdue now, once. The timer is armed again for younger tasks."""
    noted_until_ms, until_ms = group.noted_until_ms, context.now_ms - OVERDUE_MS
    group.overdue_deadline_ms, group.noted_until_ms = None, until_ms
    overdue: dict[str, PartitionsByTopic] = {}
    later = []
    for what, at_ms, name, number in _open_tasks(group):
        if at_ms > until_ms:
            later.append(at_ms)
        elif at_ms > noted_until_ms:
            overdue.setdefault(what, {}).setdefault(name, []).append(number)
    if later:
        group.overdue_deadline_ms = context.deadline_at(min(later) + OVERDUE_MS)
    for entry, what in _ENTRIES.items():
        partitions = overdue.get(what)
        if partitions is None:
            continue
        reason = f"the share coordinator has not {what} {in_words(partitions)} within {OVERDUE_MS // 1_000} s"
        row = context.rule("SP15")
        context.record(row, entry, f"{reason}: it will retry", partitions=ordered(partitions))


def _open_tasks(group: ShareGroup) -> Iterator[_OpenTask]:
    for initializing in group.initializing.values():
        for number, asked in initializing.partitions.items():
            if asked.task:
                yield "initialized", asked.at_ms, initializing.name, number
    for deleting in group.deleting.values():
        for number, code in deleting.partitions.items():
            if deleting.task and not code:
                yield "deleted", deleting.at_ms, deleting.name, number


# Requests that are answered when the share coordinator has carried them out: DeleteGroups,
# AlterShareGroupOffsets, DeleteShareGroupOffsets. Rows SP9, SO11, SO12, SO20, F2.
#
# Outcomes are per partition, so those of a request may arrive in parts. Source: GroupCoordinatorService
# (persisterInitialize, deleteShareGroupOffsetsState, deleteGroups).


PARKED_MS = 60_000
"""The time for which a request waits for the share coordinator."""

RESPONSES: dict[ParkedKind, type[AnyResponse]] = {
    ParkedKind.DELETE_GROUP: DeleteGroupResponse,
    ParkedKind.ALTER_OFFSETS: AlterShareGroupOffsetsResponse,
    ParkedKind.DELETE_OFFSETS: DeleteShareGroupOffsetsResponse,
}
UNKNOWN_PARTITION = "This server does not host this topic-partition."
NOTHING_TO_DELETE = "There is no offset information to delete."
_NOT_ANSWERED = "The share coordinator has not answered in time."


def park(context: StepContext, kind: ParkedKind, reply_to: ReplyTo, topics: list[ParkedTopic]) -> int:
    """Park the request until the share coordinator has answered, and return its deadline in ms."""
    deadline_ms = context.deadline(PARKED_MS)
    context.group_of(ShareGroup).parked.append(Parked(kind, reply_to, deadline_ms, topics))
    return deadline_ms


def note_ended(context: StepContext, group: ShareGroup, ended: EndedTasks) -> None:
    """Store the outcomes of partitions whose tasks have ended, and answer the parked requests that now have
    all outcomes.
    """
    waiting = []
    for parked in group.parked:
        for topic in parked.topics:
            for number, code in ended.get(topic.topic_id, {}).items():
                if topic.outcomes.get(number, code) is None:
                    topic.outcomes[number] = code
        if parked.kind is ParkedKind.DELETE_GROUP or any(
            None in topic.outcomes.values() for topic in parked.topics
        ):
            waiting.append(parked)
        else:
            _answer_with_outcomes(context, parked)
    group.parked = waiting


def note_gone(context: StepContext, group: ShareGroup, gone: Iterable[bytes]) -> None:
    """Record that topics were deleted. The share coordinator deletes their state itself."""
    for parked in group.parked:
        deletes = parked.kind is ParkedKind.DELETE_OFFSETS
        outcome = ErrorCode.NONE if deletes else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic in parked.topics:
            if topic.topic_id in gone:
                topic.outcomes = {n: outcome if o is None else o for n, o in topic.outcomes.items()}
    note_ended(context, group, {})


def _answer_with_outcomes(context: StepContext, parked: Parked) -> None:
    if parked.kind is ParkedKind.DELETE_OFFSETS:
        reply_deleted(context, context.rule("SO20"), parked.reply_to, parked.topics)
        return
    failed = any(code for topic in parked.topics for code in topic.outcomes.values())
    row = context.rule("SO12" if failed else "SO11")
    reply_altered(context, row, parked.reply_to, parked.topics)


def reply_altered(context: StepContext, row: RuleId, to: ReplyTo, topics: Iterable[ParkedTopic]) -> None:
    """Answer an AlterShareGroupOffsets with the outcomes of all partitions."""
    responses = [
        AlteredShareTopic(
            topic.name,
            _uuid(topic.topic_id),
            [
                AlteredSharePartition(number, error_of(code or 0), _text_of(code or 0))
                for number, code in sorted(topic.outcomes.items())
            ],
        )
        for topic in topics
    ]
    context.reply(to, AlterShareGroupOffsetsResponse, row, responses=responses)


def reply_deleted(context: StepContext, row: RuleId, to: ReplyTo, topics: Iterable[ParkedTopic]) -> None:
    """Answer a DeleteShareGroupOffsets with the outcomes of all topics. As in Kafka, a topic without a
    requested deletion has no id.
    """
    responses = [_deleted(topic) for topic in topics]
    context.reply(to, DeleteShareGroupOffsetsResponse, row, responses=responses)


def _deleted(topic: ParkedTopic) -> DeletedShareTopic:
    if topic.refused:
        text = UNKNOWN_PARTITION if topic.refused == "SO17" else NOTHING_TO_DELETE
        return DeletedShareTopic(topic.name, _uuid(b""), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    code = next((code for _, code in sorted(topic.outcomes.items()) if code), 0)
    return DeletedShareTopic(topic.name, _uuid(topic.topic_id), error_of(code), _text_of(code))


def _uuid(topic_id: bytes) -> UUID:
    return UUID(bytes=topic_id) if topic_id else UUID(int=0)


def _text_of(code: int) -> str | None:
    if not code:
        return None
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UNKNOWN_PARTITION
    return f"The share coordinator answered with error {code}."


def parked_overdue(context: StepContext, group: ShareGroup, deadline: DeadlineReached) -> None:
    """Row SP9: answer each parked request whose deadline is over. The tasks stay open."""
    overdue = [parked for parked in group.parked if parked.deadline_ms <= deadline.deadline_ms]
    group.parked = [parked for parked in group.parked if parked.deadline_ms > deadline.deadline_ms]
    refuse_parked(context, overdue, context.rule("SP9"), ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_ANSWERED)


def answer_parked(context: StepContext, group: ShareGroup, row: RuleId) -> None:
    """Answer all parked requests with an error, because the group's deadlines stop."""
    parked, group.parked = group.parked, []
    refuse_parked(context, parked, row, ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_ANSWERED)


def refuse_parked(
    context: StepContext, parked: Iterable[Parked], row: RuleId, error: ErrorCode, message: str
) -> None:
    """Answer each of these requests with the same error, and its text if the answer has a field for it."""
    for waiting in parked:
        response = RESPONSES[waiting.kind]
        fields = {"error_message": message} if "error_message" in response.__struct_fields__ else {}
        context.reply(waiting.reply_to, response, row, error, **fields)


# The state of a share group's partitions at the cluster's share coordinator, before they can be assigned.
# Rows SI1 to SI20, SK6, SP12, SP16.
#
# The core requests by a task in the group's state, which the group's view shows. The share coordinator's
# answers come from the log (`ShareStateResult`). Source: GroupMetadataManager
# (maybeCreateInitializeShareGroupStateRequest, initializeShareGroupState, uninitializeShareGroupState).


_Consequence = tuple[str, str]
"""The consequence of a partition's failure, as text, and its row."""
_RETRIED: _Consequence = "it will retry", "SI10"
_REQUESTED_AGAIN: _Consequence = "the next heartbeat requests it again", "SI14"
_UNCHANGED: _Consequence = "the start offset does not change", "SO12"
_ABOVE: _Consequence = "it is requested again with a higher epoch", "SI11"


def request_missing_initializations(context: StepContext, group: ShareGroup) -> None:
    """Request the initialization of subscribed partitions that are neither initialized nor requested. This
    heartbeat cannot assign them yet.
    """
    topics, _ = assignable_topics(group, context.config.group_max_partitions)
    wanted = {
        name: asked
        for name, topic in topics.items()
        if (asked := _needed_initializations(context, group, topic))
    }
    if wanted:
        row = context.rule("SI5")
        for name in wanted:
            group.deleting.pop(topics[name].topic_id, None)
        request_initialization(
            context, group, row, {topics[name].topic_id: (name, asked) for name, asked in wanted.items()}
        )


def request_initialization(
    context: StepContext,
    group: ShareGroup,
    row: RuleId,
    wanted: Mapping[bytes, tuple[str, Mapping[int, InitializationTask]]],
) -> None:
    """Request the initialization of these partitions, by topic id. `row` is the row that demands it."""
    for topic_id, (name, asked) in wanted.items():
        initializing = group.initializing.setdefault(topic_id, InitializingTopic(name, {}))
        initializing.partitions = dict(sorted({**initializing.partitions, **asked}.items()))
    group.initializing = dict(sorted(group.initializing.items()))
    watch_tasks(context, group)
    by_name = dict(sorted(wanted.values()))
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_INITIALIZING,
        f"the share coordinator is asked to initialize {_sentence(by_name)}",
        partitions=ordered(by_name),
    )


def _needed_initializations(
    context: StepContext, group: ShareGroup, topic: Topic
) -> dict[int, InitializationTask]:
    deleting = group.deleting.get(topic.topic_id)
    if deleting is not None and deleting.task:
        # New state waits until earlier state is deleted.
        context.rule("SK6")
        return {}
    initialized, initializing = group.initialized.get(topic.topic_id), group.initializing.get(topic.topic_id)
    asked = {} if initializing is None else initializing.partitions
    known = asked.keys() | (() if initialized is None else initialized.partitions)
    # A failed initialization is requested again unchanged (SP16).
    again = {number: one for number, one in asked.items() if not one.task and number < topic.partitions}
    wanted = {number: replace(one, task=context.cause, at_ms=context.now_ms) for number, one in again.items()}
    if wanted:
        context.rule("SP16")
    if len(known) < topic.partitions:
        row = "SI6" if initialized is None and initializing is None else "SI7"
        context.rule(row)
        start_offset = NO_START_OFFSET if row == "SI6" else 0
        first = InitializationTask(context.cause, group.group_epoch, start_offset, context.now_ms)
        wanted |= dict.fromkeys(set(range(topic.partitions)) - known, first)
    return wanted


def _sentence(wanted: Mapping[str, Mapping[int, InitializationTask]]) -> str:
    """Return `foo-0, foo-1 at epoch 2`, and their start offsets unless the brokers decide them."""
    texts: dict[tuple[int, int], list[str]] = {}
    for name, asked in wanted.items():
        for number, one in sorted(asked.items()):
            texts.setdefault((one.state_epoch, one.start_offset), []).append(f"{name}-{number}")
    parts = []
    for (epoch, start_offset), partitions in sorted(texts.items()):
        begin = "" if start_offset == NO_START_OFFSET else f" from offset {start_offset}"
        parts.append(f"{listed(partitions, 'partition')} at epoch {epoch}{begin}")
    return " and ".join(parts)


def note_initialization(context: StepContext, group: ShareGroup, result: ShareStateResult) -> EndedTasks:
    """Apply the outcome of an initialization task, and return the partitions whose tasks have ended.
    Partitions without an open task are ignored (row SP12).
    """
    ended: EndedTasks = {}
    ready: dict[bytes, set[int]] = {}
    failed: dict[tuple[int, _Consequence], PartitionsByTopic] = {}  # by error code and consequence
    recorded_epoch, asked_at_ms = 0, context.now_ms
    for outcome in result.partitions:
        topic_id, number = outcome.topic_id.bytes, outcome.partition
        topic = group.initializing.get(topic_id)
        asked = None if topic is None else topic.partitions.get(number)
        if topic is None or asked is None or asked.task != result.task or number in ready.get(topic_id, ()):
            continue
        asked_at_ms = min(asked_at_ms, asked.at_ms)
        recorded_epoch = max(recorded_epoch, outcome.state_epoch or 0)
        if _is_initialized(asked, outcome):
            ready.setdefault(topic_id, set()).add(number)
            ended.setdefault(topic_id, {})[number] = ErrorCode.NONE
            continue
        remaining, consequence = _next_task(asked, outcome)
        failed.setdefault((outcome.error_code, consequence), {}).setdefault(topic.name, []).append(number)
        if remaining is None:
            topic.partitions.pop(number)
        else:
            topic.partitions[number] = remaining
        if remaining is None or not remaining.task:
            ended.setdefault(topic_id, {})[number] = outcome.error_code
    if ready:
        _mark_initialized(context, group, ready, context.now_ms - asked_at_ms)
    group.initializing = {id_: topic for id_, topic in group.initializing.items() if topic.partitions}
    for (code, consequence), partitions in sorted(failed.items()):
        _record_not_initialized(context, code, consequence, partitions)
    if recorded_epoch >= group.group_epoch:
        _raise_epoch_above(context, group, recorded_epoch)
    if not ready and not failed:
        context.rule("SP12")
    return ended


def _mark_initialized(
    context: StepContext, group: ShareGroup, ready: Mapping[bytes, set[int]], took_ms: int
) -> None:
    names: PartitionsByTopic = {}
    for topic_id, numbers in ready.items():
        topic = group.initializing[topic_id]
        topic.partitions = {n: asked for n, asked in topic.partitions.items() if n not in numbers}
        initialized = group.initialized.setdefault(topic_id, InitializedTopic(topic.name, []))
        initialized.partitions = sorted(numbers.union(initialized.partitions))
        names[topic.name] = sorted(numbers)
    group.initialized = dict(sorted(group.initialized.items()))
    if context.config.share_assign_at_once:
        group.assignment_timestamp_ms = 0
    context.record(
        context.rule("SI13"),
        EntryType.SHARE_PARTITIONS_INITIALIZED,
        f"the share coordinator has initialized {in_words(names)}",
        partitions=ordered(names),
        took_ms=took_ms,
    )


def _is_initialized(asked: InitializationTask, outcome: ShareStatePartition) -> bool:
    """Return True if the share coordinator has a state of the partition that the group can use.

    State of a later epoch with a start offset is this group's own, from an earlier coordinator (SK11). It
    does not count if an administrator requested another start offset.
    """
    is_adopted = (
        not asked.altered
        and outcome.error_code == ErrorCode.FENCED_STATE_EPOCH
        and outcome.start_offset is not None
        and outcome.start_offset != NO_START_OFFSET
    )
    return outcome.error_code == ErrorCode.NONE or is_adopted


def _next_task(
    asked: InitializationTask, outcome: ShareStatePartition
) -> tuple[InitializationTask | None, _Consequence]:
    """Return the remaining task of a partition whose initialization failed, and what happens next."""
    code = outcome.error_code
    if code in RETRIABLE:
        return replace(asked, error_code=code), _RETRIED
    epoch = asked.state_epoch
    if code == ErrorCode.FENCED_STATE_EPOCH and outcome.state_epoch is not None:
        epoch = max(epoch, outcome.state_epoch + 1)
    if not asked.altered:
        return replace(asked, task="", error_code=code, state_epoch=epoch), _REQUESTED_AGAIN
    if epoch == asked.state_epoch:
        # The administrator's start offset failed: the partition keeps its earlier state.
        return None, _UNCHANGED
    # The request and the epoch name the task, so that outcomes in parts lead to the same one.
    task = f"{asked.task.partition('@')[0]}@{epoch}"
    return replace(asked, task=task, error_code=code, state_epoch=epoch), _ABOVE


def _record_not_initialized(
    context: StepContext, code: int, consequence: _Consequence, partitions: PartitionsByTopic
) -> None:
    words, row = consequence
    context.record(
        context.rule(row),
        EntryType.SHARE_PARTITIONS_NOT_INITIALIZED,
        f"the share coordinator has not initialized {in_words(partitions)}, error {code}: {words}",
        partitions=ordered(partitions),
        error_code=code,
    )


def _raise_epoch_above(context: StepContext, group: ShareGroup, recorded_epoch: int) -> None:
    """Raise the group epoch above the state epoch that the share coordinator has stored (SK11)."""
    group.group_epoch = recorded_epoch
    reason = f"the share coordinator has recorded state epoch {recorded_epoch}: "
    reason += "the group was coordinated elsewhere"
    bump(context, context.rule("SI11"), reason)
    if not group.members:
        settle_emptied(context)


# Deletion of partitions' state at the share coordinator, for topics or for the whole group. Rows SD14 to
# SD17, SP12, SP17, SI10.
#
# A group is deleted with its state: DeleteGroups waits for the outcome from the log, and no member joins
# meanwhile. Source: GroupCoordinatorShard.sharePartitionDeleteRequests, GroupCoordinatorService.deleteGroups.


def delete_group(context: StepContext, _: DeleteGroup, reply_to: ReplyTo) -> None:
    """Delete an Empty group, at once if the share coordinator has no state for it."""
    group = context.group_of(ShareGroup)
    if not group.is_empty:
        context.reply(reply_to, DeleteGroupResponse, context.rule("SD14"), ErrorCode.NON_EMPTY_GROUP)
        return
    partitions = {id_: (name, numbers) for id_, name, numbers in group.state_partitions()}
    if not partitions:
        row = context.rule("SD16")
        context.delete_group(row, "deleted by request")
        context.reply(reply_to, DeleteGroupResponse, row)
        return
    row = context.rule("SP17")
    deadline_ms = park(context, ParkedKind.DELETE_GROUP, reply_to, [])
    if group.deletion:
        return
    group.deletion = context.cause
    group.initializing, group.initialized = {}, {}
    request_deletion(context, row, partitions, "the group is to be deleted", deadline_ms)
    _cancel_altering(context, row)


def refuse_while_deleted(context: StepContext) -> None:
    """Row SP17: raise RequestRefused if the group is being deleted."""
    if context.group_of(ShareGroup).deletion:
        raise RequestRefused(
            context.rule("SP17"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _is_being_deleted(context.group_id)
        )


def _is_being_deleted(group_id: str) -> str:
    return f"Group {group_id} is being deleted."


def _cancel_altering(context: StepContext, row: RuleId) -> None:
    """Cancel waiting AlterShareGroupOffsets requests, because the group is deleted.

    DeleteShareGroupOffsets requests still wait.
    """
    group = context.group_of(ShareGroup)
    altering = [parked for parked in group.parked if parked.kind is ParkedKind.ALTER_OFFSETS]
    group.parked = [parked for parked in group.parked if parked.kind is not ParkedKind.ALTER_OFFSETS]
    error, message = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _is_being_deleted(group.group_id)
    refuse_parked(context, altering, row, error, message)


def request_deletion(
    context: StepContext,
    row: RuleId,
    partitions: Mapping[bytes, tuple[str, list[int]]],
    why: str,
    deadline_ms: int,
) -> None:
    """Request the deletion of these partitions' state. The group has already forgotten everything else about
    them.

    `partitions` are names and numbers by topic id. `why` starts the history's sentence, and `row` is the row
    that demands the deletion.
    """
    group = context.group_of(ShareGroup)
    asked = {
        id_: DeletingTopic(name, dict.fromkeys(numbers, 0), context.cause, context.now_ms)
        for id_, (name, numbers) in partitions.items()
    }
    group.deleting = dict(sorted({**group.deleting, **asked}.items()))
    watch_tasks(context, group)
    named = dict(sorted(partitions.values()))
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_DELETING,
        f"{why}: the share coordinator is asked to delete {in_words(named)}",
        partitions=named,
        deadline_ms=deadline_ms,
    )


def note_deletion(context: StepContext, group: ShareGroup, result: ShareStateResult) -> EndedTasks:
    """Apply the outcome of a deletion task, and return the partitions whose tasks have ended. Partitions
    without an open task are ignored (row SP12).
    """
    ended: EndedTasks = {}
    deleted: PartitionsByTopic = {}
    failed: dict[int, PartitionsByTopic] = {}  # by error code
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
        _record_not_deleted(context, code, partitions)
    if not deleted and not failed:
        context.rule("SP12")
    return ended


def _maybe_close(group: ShareGroup, topic_id: bytes) -> None:
    """Forget the topic if all its partitions are deleted. If all remaining ones failed, close its task."""
    topic = group.deleting[topic_id]
    if not topic.partitions:
        del group.deleting[topic_id]
    elif 0 not in topic.partitions.values():
        topic.task = ""


def _record_not_deleted(context: StepContext, code: int, partitions: PartitionsByTopic) -> None:
    stays = code in RETRIABLE
    then = "it will retry" if stays else "the next deletion, or a joining member, requests it again"
    context.record(
        context.rule("SI10" if stays else "SD15"),
        EntryType.SHARE_PARTITIONS_NOT_DELETED,
        f"the share coordinator has not deleted {in_words(partitions)}, error {code}: {then}",
        partitions=ordered(partitions),
        error_code=code,
    )


def maybe_end_deletion(context: StepContext, group: ShareGroup) -> None:
    """Delete the group if its state is deleted, or keep it if a part of the state could not be deleted.

    Does nothing while a task is open. The parked DeleteGroups are answered.
    """
    codes = [code for topic in group.deleting.values() for code in topic.partitions.values()]
    if not group.deletion or 0 in codes:
        return
    parked, group.parked, group.deletion = group.parked, [], ""
    error = error_of(codes[0]) if codes else ErrorCode.NONE
    row = context.rule("SD15" if codes else "SD16")
    if not codes:
        context.delete_group(row, "deleted by request")
    for waiting in parked:
        context.reply(waiting.reply_to, DeleteGroupResponse, row, error)


# The topics of a share group: reports of the topic watcher, and unused topics. Rows MI8 to MI15, SI18.
#
# Source: GroupMetadataManager (onMetadataUpdate, maybeCleanupShareGroupState).


T = TypeVar("T")


def topic_metadata(context: StepContext, group: ShareGroup, request: TopicMetadata) -> None:
    """Store the topic watcher's reports of topics that the group knows or subscribes to (row MI8)."""
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
        # The share coordinator deletes the state of deleted topics by itself.
        group.initializing = _without(group.initializing, gone)
        group.initialized = _without(group.initialized, gone)
        group.deleting = _without(group.deleting, gone)
        stop_watching(group)
        note_gone(context, group, gone)
    forget_unused(context, group)
    maybe_end_deletion(context, group)


def forget_unused(context: StepContext, group: ShareGroup) -> None:
    """Forget the topics that no subscription, state, member's partition or target refers to (row MI15)."""
    used = {id_ for target in group.target.values() for id_ in target}
    used.update(topic_id for topic_id, _, _ in group.state_partitions())
    for member in group.members.values():
        used.update(member.assigned)
    forget_topics(context, group, used)


def _without(topics: dict[bytes, T], gone: set[bytes]) -> dict[bytes, T]:
    return {topic_id: topic for topic_id, topic in topics.items() if topic_id not in gone}
