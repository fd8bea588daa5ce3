"""The state of a share group's partitions at the cluster's share coordinator: the tasks that initialize and
delete the state, and the requests that wait for these tasks.

A task is a request to the share coordinator. It is a part of the group's view, from which its executor, a
service outside the core, reads it. Its outcome comes from the log, as ShareStateResults. A row, such as SP15,
is a rule of docs/rules-share.md. `context.cite` records that a row was applied.
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
    store_watched_topics,
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

_KNOWN_CODES = frozenset(ErrorCode)

PartitionsByTopic = dict[str, list[int]]
"""Partitions by topic name."""

EndedTasks = dict[bytes, dict[int, int]]
"""Error codes of partitions whose tasks have ended, by topic id."""


def error_of(code: int) -> ErrorCode:
    """Return the ErrorCode of this number, or UNKNOWN_SERVER_ERROR if it is not in ErrorCode."""
    return ErrorCode(code) if code in _KNOWN_CODES else ErrorCode.UNKNOWN_SERVER_ERROR


def sorted_partitions(partitions: Mapping[str, Collection[int]]) -> PartitionsByTopic:
    """Return the partitions sorted, as the history has them."""
    return {name: sorted(numbers) for name, numbers in sorted(partitions.items())}


def partitions_text(partitions: Mapping[str, Collection[int]]) -> str:
    """Return partitions by topic name as `topic-number`."""
    texts = [
        f"{name}-{number}" for name, numbers in sorted_partitions(partitions).items() for number in numbers
    ]
    return listed(texts, "partition")


# Tasks that the share coordinator has left open for too long. Row SP15.
#
# Nobody is fenced: members continue with their partitions. Kafka does not report this.


OVERDUE_MS = 60_000
"""The age of an open task at which the history gets an entry."""

# By the type of a history entry: the outcome that the overdue tasks have not had.
_AWAITED_BY_ENTRY = {
    EntryType.SHARE_PARTITIONS_NOT_INITIALIZED: "initialized",
    EntryType.SHARE_PARTITIONS_NOT_DELETED: "deleted",
}
_OpenTask = tuple[str, int, str, int]
"""The open task of a partition: the awaited outcome, the time of the request, the topic, the partition."""


def arm_overdue_timer(context: StepContext, group: ShareGroup) -> None:
    """Arm the timer of overdue tasks for a task that is opened now, unless the timer is armed already."""
    if group.overdue_deadline_ms is None:
        group.overdue_deadline_ms = context.deadline(OVERDUE_MS)


def disarm_overdue_timer(group: ShareGroup) -> None:
    """Disarm the timer of overdue tasks if no task is open."""
    if next(_open_tasks(group), None) is None:
        group.overdue_deadline_ms = None


def record_overdue_tasks(context: StepContext, group: ShareGroup) -> None:
    """Record the tasks that are overdue and not yet recorded. Arm the timer again for younger tasks."""
    recorded_until_ms, overdue_until_ms = group.noted_until_ms, context.now_ms - OVERDUE_MS
    group.overdue_deadline_ms, group.noted_until_ms = None, overdue_until_ms
    overdue: dict[str, PartitionsByTopic] = {}  # by awaited outcome
    younger_ms = []
    for awaited, at_ms, name, number in _open_tasks(group):
        if at_ms > overdue_until_ms:
            younger_ms.append(at_ms)
        elif at_ms > recorded_until_ms:
            overdue.setdefault(awaited, {}).setdefault(name, []).append(number)
    if younger_ms:
        group.overdue_deadline_ms = context.deadline_at(min(younger_ms) + OVERDUE_MS)
    for entry, awaited in _AWAITED_BY_ENTRY.items():
        partitions = overdue.get(awaited)
        if partitions is None:
            continue
        reason = f"the share coordinator has not {awaited} {partitions_text(partitions)}"
        reason += f" within {OVERDUE_MS // 1_000} s"
        row = context.cite("SP15")
        context.record(row, entry, f"{reason}: it will retry", partitions=sorted_partitions(partitions))


def _open_tasks(group: ShareGroup) -> Iterator[_OpenTask]:
    """Yield the open tasks of all partitions."""
    for initializing in group.initializing.values():
        for number, initialization in initializing.partitions.items():
            if initialization.task:
                yield "initialized", initialization.at_ms, initializing.name, number
    for deleting in group.deleting.values():
        for number, code in deleting.partitions.items():
            if deleting.task and not code:
                yield "deleted", deleting.at_ms, deleting.name, number


# Parked requests, which are answered when the share coordinator has carried them out: DeleteGroups,
# AlterShareGroupOffsets, DeleteShareGroupOffsets. Rows SP9, SO11, SO12, SO20, F2.
#
# An outcome is of one partition, so the outcomes that a request waits for may arrive in parts. Source:
# GroupCoordinatorService (persisterInitialize, deleteShareGroupOffsetsState, deleteGroups).


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


def store_outcomes(context: StepContext, group: ShareGroup, ended: EndedTasks) -> None:
    """Store the outcomes of partitions whose tasks have ended, and answer the parked requests that now have
    all outcomes.
    """
    waiting = []
    for parked in group.parked:
        for topic in parked.topics:
            for number, code in ended.get(topic.topic_id, {}).items():
                if number in topic.outcomes and topic.outcomes[number] is None:
                    topic.outcomes[number] = code
        # A DeleteGroups waits for the deletion of the whole group.
        if parked.kind is ParkedKind.DELETE_GROUP or any(
            None in topic.outcomes.values() for topic in parked.topics
        ):
            waiting.append(parked)
        else:
            _answer_with_outcomes(context, parked)
    group.parked = waiting


def store_outcomes_of_deleted_topics(
    context: StepContext, group: ShareGroup, deleted: Iterable[bytes]
) -> None:
    """Set the outcomes of the partitions of deleted topics, and answer the requests that waited for them."""
    for parked in group.parked:
        deletes = parked.kind is ParkedKind.DELETE_OFFSETS
        outcome = ErrorCode.NONE if deletes else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic in parked.topics:
            if topic.topic_id in deleted:
                topic.outcomes = {
                    number: outcome if code is None else code for number, code in topic.outcomes.items()
                }
    store_outcomes(context, group, {})


def _answer_with_outcomes(context: StepContext, parked: Parked) -> None:
    """Answer a request about offsets, whose outcomes are all known."""
    if parked.kind is ParkedKind.DELETE_OFFSETS:
        reply_deleted(context, context.cite("SO20"), parked.reply_to, parked.topics)
        return
    failed = any(code for topic in parked.topics for code in topic.outcomes.values())
    row = context.cite("SO12" if failed else "SO11")
    reply_altered(context, row, parked.reply_to, parked.topics)


def reply_altered(context: StepContext, row: RuleId, to: ReplyTo, topics: Iterable[ParkedTopic]) -> None:
    """Answer an AlterShareGroupOffsets with the outcomes of all partitions."""
    responses = [
        AlteredShareTopic(
            topic.name,
            _uuid(topic.topic_id),
            [
                AlteredSharePartition(number, error_of(code or 0), _error_text(code or 0))
                for number, code in sorted(topic.outcomes.items())
            ],
        )
        for topic in topics
    ]
    context.reply(to, AlterShareGroupOffsetsResponse, row, responses=responses)


def reply_deleted(context: StepContext, row: RuleId, to: ReplyTo, topics: Iterable[ParkedTopic]) -> None:
    """Answer a DeleteShareGroupOffsets with the outcomes of all topics. As in Kafka, a refused topic has no
    id in the answer.
    """
    responses = [_deletion_outcome(topic) for topic in topics]
    context.reply(to, DeleteShareGroupOffsetsResponse, row, responses=responses)


def _deletion_outcome(topic: ParkedTopic) -> DeletedShareTopic:
    if topic.refused:
        text = UNKNOWN_PARTITION if topic.refused == "SO17" else NOTHING_TO_DELETE
        return DeletedShareTopic(topic.name, _uuid(b""), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    code = next((code for _, code in sorted(topic.outcomes.items()) if code), 0)
    return DeletedShareTopic(topic.name, _uuid(topic.topic_id), error_of(code), _error_text(code))


def _uuid(topic_id: bytes) -> UUID:
    return UUID(bytes=topic_id) if topic_id else UUID(int=0)


def _error_text(code: int) -> str | None:
    if not code:
        return None
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UNKNOWN_PARTITION
    return f"The share coordinator answered with error {code}."


def refuse_overdue_requests(context: StepContext, group: ShareGroup, deadline: DeadlineReached) -> None:
    """Row SP9: answer each parked request whose deadline is over. The tasks stay open."""
    overdue = [parked for parked in group.parked if parked.deadline_ms <= deadline.deadline_ms]
    group.parked = [parked for parked in group.parked if parked.deadline_ms > deadline.deadline_ms]
    refuse_parked(context, overdue, context.cite("SP9"), ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_ANSWERED)


def answer_parked(context: StepContext, group: ShareGroup, row: RuleId) -> None:
    """Answer all parked requests with an error, because the quarantined group fires no more deadlines."""
    parked, group.parked = group.parked, []
    refuse_parked(context, parked, row, ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_ANSWERED)


def refuse_parked(
    context: StepContext, parked: Iterable[Parked], row: RuleId, error: ErrorCode, message: str
) -> None:
    """Answer each of these requests with this error, and with `message` if the answer has a field for it."""
    for request in parked:
        response = RESPONSES[request.kind]
        fields = {"error_message": message} if "error_message" in response.__struct_fields__ else {}
        context.reply(request.reply_to, response, row, error, **fields)


# The state of a share group's partitions at the cluster's share coordinator, before they can be assigned.
# Rows SI1 to SI20, SK6, SP12, SP16.
#
# Source: GroupMetadataManager (maybeCreateInitializeShareGroupStateRequest, initializeShareGroupState,
# uninitializeShareGroupState).


_Consequence = tuple[str, str]
"""The consequence of a partition's failure, as text, and its row."""
_RETRIED: _Consequence = "it will retry", "SI10"
_REQUESTED_AGAIN: _Consequence = "the next heartbeat requests it again", "SI14"
_UNCHANGED: _Consequence = "the start offset does not change", "SO12"
_REQUESTED_WITH_HIGHER_EPOCH: _Consequence = "it is requested again with a higher epoch", "SI11"


def request_missing_initializations(context: StepContext, group: ShareGroup) -> None:
    """Request the initialization of subscribed partitions that are neither initialized nor have an open task.
    A heartbeat after the outcome assigns them.
    """
    topics, _ = assignable_topics(group, context.config.group_max_partitions)
    tasks_by_name = {
        name: tasks
        for name, topic in topics.items()
        if (tasks := _needed_initializations(context, group, topic))
    }
    if tasks_by_name:
        row = context.cite("SI5")
        for name in tasks_by_name:  # a failed deletion of the topic's state no longer matters
            group.deleting.pop(topics[name].topic_id, None)
        tasks_by_topic = {topics[name].topic_id: (name, tasks) for name, tasks in tasks_by_name.items()}
        request_initialization(context, group, row, tasks_by_topic)


def request_initialization(
    context: StepContext,
    group: ShareGroup,
    row: RuleId,
    tasks_by_topic: Mapping[bytes, tuple[str, Mapping[int, InitializationTask]]],
) -> None:
    """Request the initialization of these partitions, by topic id. `row` is the row that demands it."""
    for topic_id, (name, tasks) in tasks_by_topic.items():
        initializing = group.initializing.setdefault(topic_id, InitializingTopic(name, {}))
        initializing.partitions = dict(sorted({**initializing.partitions, **tasks}.items()))
    group.initializing = dict(sorted(group.initializing.items()))
    arm_overdue_timer(context, group)
    by_name = dict(sorted(tasks_by_topic.values()))
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_INITIALIZING,
        f"the share coordinator is asked to initialize {_initializations_text(by_name)}",
        partitions=sorted_partitions(by_name),
    )


def _needed_initializations(
    context: StepContext, group: ShareGroup, topic: Topic
) -> dict[int, InitializationTask]:
    """Return, by partition, a task for each partition that is neither initialized nor has an open task."""
    deleting = group.deleting.get(topic.topic_id)
    if deleting is not None and deleting.task:
        # New state waits until earlier state is deleted.
        context.cite("SK6")
        return {}
    initialized, initializing = group.initialized.get(topic.topic_id), group.initializing.get(topic.topic_id)
    stored = {} if initializing is None else initializing.partitions
    existing = stored.keys() | (() if initialized is None else initialized.partitions)
    # A failed initialization is requested again unchanged (SP16).
    failed = {number: task for number, task in stored.items() if not task.task and number < topic.partitions}
    needed = {n: replace(task, task=context.cause, at_ms=context.now_ms) for n, task in failed.items()}
    if needed:
        context.cite("SP16")
    if len(existing) < topic.partitions:
        # Records may have been written to a partition that was added later (SI7), so it begins at offset 0.
        row = context.cite("SI6" if initialized is None and initializing is None else "SI7")
        start_offset = NO_START_OFFSET if row == "SI6" else 0
        new_task = InitializationTask(context.cause, group.group_epoch, start_offset, context.now_ms)
        needed |= dict.fromkeys(set(range(topic.partitions)) - existing, new_task)
    return needed


def _initializations_text(tasks_by_name: Mapping[str, Mapping[int, InitializationTask]]) -> str:
    """Return `foo-0, foo-1 at epoch 2`, and their start offsets unless the brokers decide them."""
    texts: dict[tuple[int, int], list[str]] = {}
    for name, tasks in tasks_by_name.items():
        for number, task in sorted(tasks.items()):
            texts.setdefault((task.state_epoch, task.start_offset), []).append(f"{name}-{number}")
    parts = []
    for (epoch, start_offset), partitions in sorted(texts.items()):
        from_offset = "" if start_offset == NO_START_OFFSET else f" from offset {start_offset}"
        parts.append(f"{listed(partitions, 'partition')} at epoch {epoch}{from_offset}")
    return " and ".join(parts)


def apply_initialization(context: StepContext, group: ShareGroup, result: ShareStateResult) -> EndedTasks:
    """Apply the outcome of an initialization task, and return the partitions whose tasks have ended. A
    partition for which this task is not open is ignored (row SP12).
    """
    ended: EndedTasks = {}
    ready: dict[bytes, set[int]] = {}
    failed: dict[tuple[int, _Consequence], PartitionsByTopic] = {}  # by error code and consequence
    stored_epoch, requested_at_ms = 0, context.now_ms
    for outcome in result.partitions:
        topic_id, number = outcome.topic_id.bytes, outcome.partition
        topic = group.initializing.get(topic_id)
        task = None if topic is None else topic.partitions.get(number)
        if topic is None or task is None or task.task != result.task or number in ready.get(topic_id, ()):
            continue
        requested_at_ms = min(requested_at_ms, task.at_ms)
        stored_epoch = max(stored_epoch, outcome.state_epoch or 0)
        if _is_initialized(task, outcome):
            ready.setdefault(topic_id, set()).add(number)
            ended.setdefault(topic_id, {})[number] = ErrorCode.NONE
            continue
        remaining, consequence = _next_task(task, outcome)
        failed.setdefault((outcome.error_code, consequence), {}).setdefault(topic.name, []).append(number)
        if remaining is None:
            topic.partitions.pop(number)
        else:
            topic.partitions[number] = remaining
        if remaining is None or not remaining.task:
            ended.setdefault(topic_id, {})[number] = outcome.error_code
    if ready:
        _store_initialized(context, group, ready, context.now_ms - requested_at_ms)
    group.initializing = {id_: topic for id_, topic in group.initializing.items() if topic.partitions}
    for (code, (effect, row)), partitions in sorted(failed.items()):
        text = partitions_text(partitions)
        context.record(
            context.cite(row),
            EntryType.SHARE_PARTITIONS_NOT_INITIALIZED,
            f"the share coordinator has not initialized {text}, error {code}: {effect}",
            partitions=sorted_partitions(partitions),
            error_code=code,
        )
    if stored_epoch >= group.group_epoch:
        _raise_epoch_above(context, group, stored_epoch)
    if not ready and not failed:
        context.cite("SP12")
    return ended


def _store_initialized(
    context: StepContext, group: ShareGroup, ready: Mapping[bytes, set[int]], took_ms: int
) -> None:
    """Move these partitions, by topic id, from `initializing` to `initialized`."""
    names: PartitionsByTopic = {}
    for topic_id, numbers in ready.items():
        topic = group.initializing[topic_id]
        topic.partitions = {n: task for n, task in topic.partitions.items() if n not in numbers}
        initialized = group.initialized.setdefault(topic_id, InitializedTopic(topic.name, []))
        initialized.partitions = sorted(numbers.union(initialized.partitions))
        names[topic.name] = sorted(numbers)
    group.initialized = dict(sorted(group.initialized.items()))
    if context.config.share_assign_at_once:
        # The assignment interval counts as over, so the next heartbeat assigns the partitions.
        group.assignment_timestamp_ms = 0
    context.record(
        context.cite("SI13"),
        EntryType.SHARE_PARTITIONS_INITIALIZED,
        f"the share coordinator has initialized {partitions_text(names)}",
        partitions=sorted_partitions(names),
        took_ms=took_ms,
    )


def _is_initialized(current: InitializationTask, outcome: ShareStatePartition) -> bool:
    """Return True if the share coordinator has a state of the partition that the group can use.

    A state of a later epoch that has a start offset belongs to this group, from the time when another
    coordinator managed it (SK11). It cannot be used if an administrator requested a start offset.
    """
    is_adopted = (
        not current.altered
        and outcome.error_code == ErrorCode.FENCED_STATE_EPOCH
        and outcome.start_offset is not None
        and outcome.start_offset != NO_START_OFFSET
    )
    return outcome.error_code == ErrorCode.NONE or is_adopted


def _next_task(
    current: InitializationTask, outcome: ShareStatePartition
) -> tuple[InitializationTask | None, _Consequence]:
    """Return the next task, if any, of a partition whose initialization failed, and what happens next."""
    code = outcome.error_code
    if code in RETRIABLE:
        return replace(current, error_code=code), _RETRIED
    epoch = current.state_epoch
    if code == ErrorCode.FENCED_STATE_EPOCH and outcome.state_epoch is not None:
        epoch = max(epoch, outcome.state_epoch + 1)
    if not current.altered:
        return replace(current, task="", error_code=code, state_epoch=epoch), _REQUESTED_AGAIN
    if epoch == current.state_epoch:
        # The administrator's start offset failed: the partition keeps its earlier state.
        return None, _UNCHANGED
    # A new task. Its id is made of the request's id and the epoch, so that it is the same for all partitions
    # of the request, even if their outcomes arrive in parts.
    task = f"{current.task.partition('@')[0]}@{epoch}"
    return replace(current, task=task, error_code=code, state_epoch=epoch), _REQUESTED_WITH_HIGHER_EPOCH


def _raise_epoch_above(context: StepContext, group: ShareGroup, stored_epoch: int) -> None:
    """Raise the group epoch above the state epoch that the share coordinator has stored (SK11)."""
    group.group_epoch = stored_epoch  # `bump` adds one
    reason = f"the share coordinator has recorded state epoch {stored_epoch}: "
    reason += "the group was coordinated elsewhere"
    bump(context, context.cite("SI11"), reason)


# Deletion of partitions' state at the share coordinator, for topics or for the whole group. Rows SD14 to
# SD17, SP12, SP17, SI10.
#
# A group is deleted with its state: DeleteGroups waits for the outcome from the log, and no member joins
# meanwhile. Source: GroupCoordinatorShard.sharePartitionDeleteRequests, GroupCoordinatorService.deleteGroups.


def delete_group(context: StepContext, _: DeleteGroup, reply_to: ReplyTo) -> None:
    """Delete an Empty group, at once if the share coordinator has no state for it."""
    group = context.group_of(ShareGroup)
    if not group.is_empty:
        context.reply(reply_to, DeleteGroupResponse, context.cite("SD14"), ErrorCode.NON_EMPTY_GROUP)
        return
    partitions = {id_: (name, numbers) for id_, name, numbers in group.state_partitions()}
    if not partitions:
        row = context.cite("SD16")
        context.delete_group(row, "deleted by request")
        context.reply(reply_to, DeleteGroupResponse, row)
        return
    row = context.cite("SP17")
    deadline_ms = park(context, ParkedKind.DELETE_GROUP, reply_to, [])
    if group.deletion:  # an earlier request's deletion is under way
        return
    group.deletion = context.cause
    group.initializing, group.initialized = {}, {}
    request_deletion(context, row, partitions, "the group is to be deleted", deadline_ms)
    _cancel_offset_alterations(context, row)


def refuse_during_deletion(context: StepContext) -> None:
    """Row SP17: raise RequestRefused if the group is being deleted."""
    if context.group_of(ShareGroup).deletion:
        raise RequestRefused(
            context.cite("SP17"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _is_being_deleted(context.group_id)
        )


def _is_being_deleted(group_id: str) -> str:
    return f"Group {group_id} is being deleted."


def _cancel_offset_alterations(context: StepContext, row: RuleId) -> None:
    """Refuse the parked AlterShareGroupOffsets requests, because the group is deleted. Parked
    DeleteShareGroupOffsets requests still get their outcomes.
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
    requested = {
        # The code 0 means that the outcome is awaited.
        id_: DeletingTopic(name, dict.fromkeys(numbers, 0), context.cause, context.now_ms)
        for id_, (name, numbers) in partitions.items()
    }
    group.deleting = dict(sorted({**group.deleting, **requested}.items()))
    arm_overdue_timer(context, group)
    partitions_by_name = dict(sorted(partitions.values()))
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_DELETING,
        f"{why}: the share coordinator is asked to delete {partitions_text(partitions_by_name)}",
        partitions=partitions_by_name,
        deadline_ms=deadline_ms,
    )


def apply_deletion(context: StepContext, group: ShareGroup, result: ShareStateResult) -> EndedTasks:
    """Apply the outcome of a deletion task, and return the partitions whose tasks have ended. A partition for
    which this task is not open is ignored (row SP12).
    """
    ended: EndedTasks = {}
    deleted: PartitionsByTopic = {}
    failed: dict[int, PartitionsByTopic] = {}  # by error code
    for outcome in result.partitions:
        topic_id, number, code = outcome.topic_id.bytes, outcome.partition, outcome.error_code
        topic = group.deleting.get(topic_id)
        # A partition whose deletion has no outcome has the code 0.
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
        _maybe_end_task(group, topic_id)
    if deleted:
        context.record(
            context.cite("SO20"),
            EntryType.SHARE_PARTITIONS_REMOVED,
            f"the share coordinator has deleted {partitions_text(deleted)}",
            partitions=sorted_partitions(deleted),
        )
    for code, partitions in sorted(failed.items()):
        _record_not_deleted(context, code, partitions)
    if not deleted and not failed:
        context.cite("SP12")
    return ended


def _maybe_end_task(group: ShareGroup, topic_id: bytes) -> None:
    """Forget the topic if all its partitions are deleted. If all remaining ones have failed, end its task."""
    topic = group.deleting[topic_id]
    if not topic.partitions:
        del group.deleting[topic_id]
    elif 0 not in topic.partitions.values():
        topic.task = ""


def _record_not_deleted(context: StepContext, code: int, partitions: PartitionsByTopic) -> None:
    is_retried = code in RETRIABLE
    next_step = "it will retry" if is_retried else "the next deletion, or a joining member, requests it again"
    context.record(
        context.cite("SI10" if is_retried else "SD15"),
        EntryType.SHARE_PARTITIONS_NOT_DELETED,
        f"the share coordinator has not deleted {partitions_text(partitions)}, error {code}: {next_step}",
        partitions=sorted_partitions(partitions),
        error_code=code,
    )


def maybe_end_deletion(context: StepContext, group: ShareGroup) -> None:
    """Delete the group if all its state is deleted, or keep it if a part of the state could not be deleted.

    Answer the parked requests, which are then all DeleteGroups. Do nothing if no deletion of the group was
    requested, or while a task is open.
    """
    # A deleted partition has no entry here. The code 0 means that the outcome is not known yet.
    codes = [code for topic in group.deleting.values() for code in topic.partitions.values()]
    if not group.deletion or 0 in codes:
        return
    parked, group.parked, group.deletion = group.parked, [], ""
    error = error_of(codes[0]) if codes else ErrorCode.NONE
    row = context.cite("SD15" if codes else "SD16")
    if not codes:
        context.delete_group(row, "deleted by request")
    for request in parked:
        context.reply(request.reply_to, DeleteGroupResponse, row, error)


# The topics of a share group: reports of the topic watcher, and unused topics. Rows MI8 to MI15, SI18.
#
# Source: GroupMetadataManager (onMetadataUpdate, maybeCleanupShareGroupState).


T = TypeVar("T")


def topic_metadata(context: StepContext, group: ShareGroup, request: TopicMetadata) -> None:
    """Store the topic watcher's reports of topics that the group knows or subscribes to (row MI8)."""
    existing_before = group.names_by_id().keys()
    if not store_watched_topics(context, group, request.topics, {*group.topics, *group.subscribed()}):
        return
    deleted = existing_before - group.names_by_id().keys()
    if deleted & {topic_id for topic_id, _, _ in group.state_partitions()}:
        removed = {name: numbers for id_, name, numbers in group.state_partitions() if id_ in deleted}
        context.record(
            context.cite("SI18"),
            EntryType.SHARE_PARTITIONS_REMOVED,
            f"the topic was deleted, and with it the state of {partitions_text(removed)}",
            partitions=removed,
        )
        # The share coordinator deletes the state of deleted topics by itself.
        group.initializing = _without(group.initializing, deleted)
        group.initialized = _without(group.initialized, deleted)
        group.deleting = _without(group.deleting, deleted)
        disarm_overdue_timer(group)
        store_outcomes_of_deleted_topics(context, group, deleted)
    forget_unused(context, group)
    maybe_end_deletion(context, group)


def forget_unused(context: StepContext, group: ShareGroup) -> None:
    """Forget the topics that no subscription, state, member's partition or target refers to (row MI15)."""
    forget_topics(context, group, (topic_id for topic_id, _, _ in group.state_partitions()))


def _without(topics: dict[bytes, T], removed_ids: set[bytes]) -> dict[bytes, T]:
    return {topic_id: topic for topic_id, topic in topics.items() if topic_id not in removed_ids}
