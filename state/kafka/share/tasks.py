"""The tasks of the cluster's share coordinators: their outcomes, tasks that are open for long, and the
requests that wait for them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from uuid import UUID

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import (
    AlteredSharePartition,
    AlteredShareTopic,
    AlterShareGroupOffsetsResponse,
    AnyResponse,
    DeletedShareTopic,
    DeleteGroupResponse,
    DeleteShareGroupOffsetsResponse,
)
from kafka_why.contract.kafka.wording import listed
from state.kafka.context import RuleId, StepContext
from state.kafka.group import DeadlineReached
from state.kafka.share_group import Parked, ParkedKind, ParkedTopic, ShareGroup

# The share coordinator's answers for a partition. Row SI10.


RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors that pass. The task stays open, and whoever carries it out tries again."""

_CODES = frozenset(ErrorCode)

Numbers = dict[str, list[int]]
"""Partitions by topic name."""

Ended = dict[bytes, dict[int, int]]
"""Error codes of partitions whose tasks have ended, by topic id."""


def error_of(code: int) -> ErrorCode:
    """Return the error of the code, UNKNOWN_SERVER_ERROR if it is none that the coordinator answers with."""
    return ErrorCode(code) if code in _CODES else ErrorCode.UNKNOWN_SERVER_ERROR


def ordered(partitions: Mapping[str, Collection[int]]) -> Numbers:
    """Return the partitions sorted, as the history has them."""
    return {name: sorted(numbers) for name, numbers in sorted(partitions.items())}


def in_words(partitions: Mapping[str, Collection[int]]) -> str:
    """Return partitions by topic name as `topic-number`."""
    texts = [f"{name}-{number}" for name, numbers in ordered(partitions).items() for number in numbers]
    return listed(texts, "partition")


# Tasks that the share coordinator has not ended for long. Row SP15.
#
# Nobody is fenced: members go on with the partitions that they have. Kafka has no such note.


OVERDUE_MS = 60_000
"""The age of an open task at which the history has an entry about it."""

_ENTRIES = {
    EntryType.SHARE_PARTITIONS_NOT_INITIALIZED: "initialized",
    EntryType.SHARE_PARTITIONS_NOT_DELETED: "deleted",
}
_OpenTask = tuple[str, int, str, int]
"""What a partition has still to be, the time of the asking, and the partition."""


def watch_tasks(context: StepContext) -> None:
    """A task is open: look at the tasks when they can be overdue, if nothing else will before."""
    group = context.group_of(ShareGroup)
    if group.overdue_deadline_ms is None:
        group.overdue_deadline_ms = context.deadline(OVERDUE_MS)


def stop_watching(group: ShareGroup) -> None:
    """Look no more if no task is open."""
    if next(_open_tasks(group), None) is None:
        group.overdue_deadline_ms = None


def tasks_overdue(context: StepContext) -> None:
    """Note the tasks that are overdue now, once. Those that are younger are looked at later."""
    group = context.group_of(ShareGroup)
    noted_until_ms, until_ms = group.noted_until_ms, context.now_ms - OVERDUE_MS
    group.overdue_deadline_ms, group.noted_until_ms = None, until_ms
    overdue: dict[str, Numbers] = {}
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
        context.record(row, entry, f"{reason}: it goes on trying", partitions=ordered(partitions))


def _open_tasks(group: ShareGroup) -> Iterator[_OpenTask]:
    for initializing in group.initializing.values():
        for number, asked in initializing.partitions.items():
            if asked.task:
                yield "initialized", asked.at_ms, initializing.name, number
    for deleting in group.deleting.values():
        for number, code in deleting.partitions.items():
            if deleting.task and not code:
                yield "deleted", deleting.at_ms, deleting.name, number


# Requests that are answered when the share coordinator has done what they ask for: DeleteGroups,
# AlterShareGroupOffsets, DeleteShareGroupOffsets. Rows SP9, SO11, SO12, SO20, F2.
#
# An outcome is that of a partition, whichever task and record brought it, so it may come in parts. Source:
# GroupCoordinatorService (persisterInitialize, deleteShareGroupOffsetsState, deleteGroups).


PARKED_MS = 60_000
"""How long a request waits for the share coordinator."""

RESPONSES: dict[ParkedKind, type[AnyResponse]] = {
    ParkedKind.DELETE_GROUP: DeleteGroupResponse,
    ParkedKind.ALTER_OFFSETS: AlterShareGroupOffsetsResponse,
    ParkedKind.DELETE_OFFSETS: DeleteShareGroupOffsetsResponse,
}
UNKNOWN_PARTITION = "This server does not host this topic-partition."
NOTHING_TO_DELETE = "There is no offset information to delete."
_NOT_ANSWERED = "The share coordinator has not answered in time."


def park(context: StepContext, kind: ParkedKind, reply_to: ReplyTo, topics: list[ParkedTopic]) -> int:
    """Let the request wait, and return its deadline in ms."""
    deadline_ms = context.deadline(PARKED_MS)
    context.group_of(ShareGroup).parked.append(Parked(kind, reply_to, deadline_ms, topics))
    return deadline_ms


def note_ended(context: StepContext, ended: Ended) -> None:
    """Take the outcomes of partitions whose tasks have ended, and answer the requests that have all now."""
    group = context.group_of(ShareGroup)
    waiting = []
    for parked in group.parked:
        for topic in parked.topics:
            for number, code in ended.get(topic.topic_id, {}).items():
                if topic.outcomes.get(number, code) is None:
                    topic.outcomes[number] = code
        if parked.kind is ParkedKind.DELETE_GROUP or any(map(_waits, parked.topics)):
            waiting.append(parked)
        else:
            _answer_with_outcomes(context, parked)
    group.parked = waiting


def note_gone(context: StepContext, gone: Iterable[bytes]) -> None:
    """The topics with these ids were deleted, and the share coordinator deletes their state by itself."""
    group = context.group_of(ShareGroup)
    for parked in group.parked:
        deletes = parked.kind is ParkedKind.DELETE_OFFSETS
        outcome = ErrorCode.NONE if deletes else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic in parked.topics:
            if topic.topic_id in gone:
                topic.outcomes = {n: outcome if o is None else o for n, o in topic.outcomes.items()}
    note_ended(context, {})


def _waits(topic: ParkedTopic) -> bool:
    return None in topic.outcomes.values()


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
            [_altered(number, code or 0) for number, code in sorted(topic.outcomes.items())],
        )
        for topic in topics
    ]
    context.reply(to, AlterShareGroupOffsetsResponse, row, responses=responses)


def reply_deleted(context: StepContext, row: RuleId, to: ReplyTo, topics: Iterable[ParkedTopic]) -> None:
    """Answer a DeleteShareGroupOffsets with the outcomes of all topics. As in Kafka, a topic of which nothing
    was asked for has no id.
    """
    responses = [_deleted(topic) for topic in topics]
    context.reply(to, DeleteShareGroupOffsetsResponse, row, responses=responses)


def _altered(number: int, code: int) -> AlteredSharePartition:
    return AlteredSharePartition(number, error_of(code), _text_of(code))


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


def parked_overdue(context: StepContext, deadline: DeadlineReached) -> None:
    """Row SP9: answer each request that has waited for too long. The tasks stay open."""
    group = context.group_of(ShareGroup)
    overdue = [parked for parked in group.parked if parked.deadline_ms <= deadline.deadline_ms]
    group.parked = [parked for parked in group.parked if parked.deadline_ms > deadline.deadline_ms]
    refuse_parked(context, overdue, context.rule("SP9"), ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_ANSWERED)


def answer_parked(context: StepContext, row: RuleId) -> None:
    """Answer all that waits with an error, because the group's deadlines stop."""
    group = context.group_of(ShareGroup)
    parked, group.parked = group.parked, []
    refuse_parked(context, parked, row, ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_ANSWERED)


def refuse_parked(
    context: StepContext, parked: Iterable[Parked], row: RuleId, error: ErrorCode, message: str
) -> None:
    """Answer each of these requests with one error, and if the answer has a text for it with that, too."""
    for waiting in parked:
        response = RESPONSES[waiting.kind]
        fields = {"error_message": message} if "error_message" in response.__struct_fields__ else {}
        context.reply(waiting.reply_to, response, row, error, **fields)
