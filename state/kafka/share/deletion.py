"""DeleteGroups of a share group: the share coordinator deletes the state of its partitions first. Rows SD14
to SD17, SP9, SP12, SP17.

The answer waits for the outcome, which comes from the log, and nobody joins meanwhile. Source:
GroupCoordinatorShard.sharePartitionDeleteRequests, GroupCoordinatorService.deleteGroups.
"""

from state.errors import ErrorCode
from state.kafka.context import RuleId, StepContext
from state.kafka.history import EntryType
from state.kafka.requests import DeleteGroup, ReplyTo
from state.kafka.responses import DeleteGroupResponse
from state.kafka.share.outcomes import RETRIABLE, error_of, in_words
from state.kafka.share_group import DeletingTopic, ParkedDelete, ShareGroup
from state.kafka.share_requests import ShareStateResult
from state.kafka.timers import DeadlineReached

PARKED_MS = 60_000
"""How long a DeleteGroups waits for the share coordinator."""


def delete_group(context: StepContext, _: DeleteGroup, reply_to: ReplyTo) -> None:
    """Delete an Empty group, at once if the share coordinator knows nothing of it."""
    group = context.group_of(ShareGroup)
    if not group.is_empty:
        context.reply(reply_to, DeleteGroupResponse, context.rule("SD14"), ErrorCode.NON_EMPTY_GROUP)
        return
    partitions = {id_: (name, numbers) for id_, name, numbers in group.state_partitions()}
    if not partitions:
        _delete(context, [ParkedDelete(reply_to, 0)])
        return
    row = context.rule("SP17")
    deadline_ms = context.deadline(PARKED_MS)
    group.parked_deletes.append(ParkedDelete(reply_to, deadline_ms))
    if group.deletion:
        return
    group.deletion = context.cause
    group.initializing, group.initialized = {}, {}
    group.deleting = {
        id_: DeletingTopic(name, dict.fromkeys(numbers, 0), context.cause, context.now_ms)
        for id_, (name, numbers) in partitions.items()
    }
    named = dict(sorted(partitions.values()))
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_DELETING,
        f"the group is to be deleted: the share coordinator is asked to delete {in_words(named)}",
        partitions=named,
        deadline_ms=deadline_ms,
    )


def note_deletion(context: StepContext, result: ShareStateResult) -> None:
    """Take the outcome of the task that deletes the state of the group (row SP12)."""
    group = context.group_of(ShareGroup)
    if not group.deletion or result.task != group.deletion:
        context.rule("SP12")
        return
    for outcome in result.partitions:
        topic = group.deleting.get(outcome.topic_id.bytes)
        if topic is None or topic.task != result.task or outcome.partition not in topic.partitions:
            continue
        if outcome.error_code == ErrorCode.NONE:
            del topic.partitions[outcome.partition]
            if not topic.partitions:
                del group.deleting[outcome.topic_id.bytes]
        elif outcome.error_code not in RETRIABLE:
            topic.partitions[outcome.partition] = outcome.error_code
    maybe_end_deletion(context)


def maybe_end_deletion(context: StepContext) -> None:
    """Delete the group if nothing of its state is left. If the rest has failed, the group stays."""
    group = context.group_of(ShareGroup)
    codes = [code for topic in group.deleting.values() for code in topic.partitions.values()]
    if not group.deletion or 0 in codes:
        return
    parked, group.parked_deletes, group.deletion = group.parked_deletes, [], ""
    if not codes:
        _delete(context, parked)
        return
    row = context.rule("SD15")
    for topic in group.deleting.values():
        topic.task = ""
    failed = {topic.name: sorted(topic.partitions) for topic in group.deleting.values()}
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_NOT_DELETED,
        f"the share coordinator has not deleted {in_words(failed)}, error {codes[0]}: the group stays",
        partitions=failed,
    )
    _answer(context, parked, row, error_of(codes[0]))


def deletion_overdue(context: StepContext, deadline: DeadlineReached) -> None:
    """Row SP9: answer each DeleteGroups that has waited for too long. The task stays open, and so does the
    deletion.
    """
    group = context.group_of(ShareGroup)
    overdue = [parked for parked in group.parked_deletes if parked.deadline_ms <= deadline.deadline_ms]
    group.parked_deletes = [p for p in group.parked_deletes if p.deadline_ms > deadline.deadline_ms]
    _answer(context, overdue, context.rule("SP9"), ErrorCode.COORDINATOR_NOT_AVAILABLE)


def answer_parked(context: StepContext, row: RuleId) -> None:
    """Answer all that waits with an error, because the group's deadlines stop."""
    group = context.group_of(ShareGroup)
    parked, group.parked_deletes = group.parked_deletes, []
    _answer(context, parked, row, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _delete(context: StepContext, parked: list[ParkedDelete]) -> None:
    row = context.rule("SD16")
    context.delete_group(row, "deleted by request")
    _answer(context, parked, row, ErrorCode.NONE)


def _answer(context: StepContext, parked: list[ParkedDelete], row: RuleId, error: ErrorCode) -> None:
    for waiting in parked:
        context.reply(waiting.reply_to, DeleteGroupResponse, row, error)
