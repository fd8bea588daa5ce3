"""Requests that are answered when the share coordinator has done what they ask for: DeleteGroups,
AlterShareGroupOffsets, DeleteShareGroupOffsets. Rows SP9, SO11, SO12, SO20, F2.

An outcome is that of a partition, whichever task and record brought it, so it may come in parts. Source:
GroupCoordinatorService (persisterInitialize, deleteShareGroupOffsetsState, deleteGroups).
"""

from collections.abc import Iterable
from uuid import UUID

from kafka_why.contract.errors import ErrorCode
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
from state.kafka.context import RuleId, StepContext
from state.kafka.share.outcomes import Ended, error_of
from state.kafka.share_group import Parked, ParkedKind, ParkedTopic, ShareGroup
from state.kafka.timers import DeadlineReached

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
