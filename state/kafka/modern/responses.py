"""Responses to members of groups with epochs: refusals, answers where there is no such group, and
partitions.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from msgspec import Struct

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import AnyResponse, AssignedTopicPartitions
from state.config import CoordinatorConfig
from state.kafka.context import RuleId, StepContext
from state.protocol import Handler, Refusal, WhyRefused

# The refusal of a request to a group with epochs. Whoever raises it may have changed the group before: the
# handler takes all changes back (`StepContext.undo`).


# The characters that Java's String.trim removes.
_BLANKS = "".join(map(chr, range(33)))


def is_blank(text: str) -> bool:
    """Whether the text is empty or blank, as Kafka sees it."""
    return not text.strip(_BLANKS)


class Refused(Exception):
    """The request is answered with an error: the row that decided it, the error, and a sentence that says
    what is wrong.

    `event` is the type of the history entry about it, None for no entry: a client that repeats its request
    adds to the history each time, so only what an operator has to see has an entry. `after` is called with
    the step's context when all changes are taken back.
    """

    def __init__(
        self,
        rule: RuleId,
        error: ErrorCode,
        message: str,
        event: EntryType | None = None,
        after: Callable[[StepContext], None] | None = None,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.error = error
        self.message = message
        self.event = event
        self.after = after


def no_member(context: StepContext, row: str, member_id: str) -> Refused:
    """The refusal of a sender that is no member."""
    message = f"Member {member_id} is not a member of group {context.group_id}."
    return Refused(context.rule(row), ErrorCode.UNKNOWN_MEMBER_ID, message)


class Client(Struct, frozen=True):
    """What a request says of its sender, whichever protocol the sender speaks."""

    client_id: str
    client_host: str
    instance_id: str | None = None


def record_refusal(context: StepContext, refused: Refused, member_id: str, client: Client) -> None:
    """Add the entry about a refused request, if it has one and its group exists."""
    if refused.event is None or not context.has_group:
        return
    context.record(
        refused.rule,
        refused.event,
        refused.message,
        member_id=member_id or None,
        group_instance_id=client.instance_id,
        client_id=client.client_id,
        client_host=client.client_host,
    )


# Requests to a group id that has no group, or one of another protocol, which is the same to them.
#
# Source: GroupMetadataManager (consumerGroup, shareGroup).


Check = Callable[[StepContext, Any], None]
"""It raises Refused for a request that is invalid by itself."""


def is_not(group_id: str, kind: str) -> str:
    """Return the sentence that says that a group is of another kind than `consumer group`, for example."""
    return f"Group {group_id} is not a {kind}."


def not_found(row: str, kind: str, response: type[AnyResponse]) -> Handler:
    """Return the handler of a request that needs a group of its kind. The row decides its answer."""

    def answer(context: StepContext, _: Any, reply_to: ReplyTo) -> None:
        missing = f"Group {context.group_id} not found."
        message = is_not(context.group_id, kind) if context.has_group else missing
        error = ErrorCode.GROUP_ID_NOT_FOUND
        context.reply(reply_to, response, context.rule(row), error, error_message=message)

    return answer


def refusal(row: str, kind: str, check: Check | None = None) -> WhyRefused:
    """Return why a group that is none of Kafka's refuses a request, by this row if it is not by its check."""

    def why(group_id: str, request: Any, request_id: str, config: CoordinatorConfig) -> Refusal:
        try:
            if check is not None:
                check(StepContext(None, group_id, request_id, 0, config), request)
        except Refused as refused:
            return refused.rule, refused.error, refused.message
        return row, ErrorCode.GROUP_ID_NOT_FOUND, is_not(group_id, kind)

    return why


def assigned_partitions(assigned: Mapping[bytes, Collection[int]]) -> list[AssignedTopicPartitions]:
    """Return the partitions by topic id, as a response to a heartbeat has them."""
    return [
        AssignedTopicPartitions(UUID(bytes=topic_id), sorted(numbers))
        for topic_id, numbers in sorted(assigned.items())
    ]


def described_partitions(
    partitions: Mapping[bytes, Collection[int]], names: Mapping[bytes, str]
) -> list[AssignedTopicPartitions]:
    """Return the partitions by topic name (row AD5). Topics that no longer exist are left out."""
    return [
        AssignedTopicPartitions(UUID(bytes=topic_id), sorted(numbers), names[topic_id])
        for topic_id, numbers in sorted(partitions.items(), key=lambda item: names.get(item[0], ""))
        if topic_id in names
    ]
