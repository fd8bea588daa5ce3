"""The refusal of a request to a group with epochs. Whoever raises it may have changed the group
before: the handler takes all changes back (`StepContext.undo`).
"""

from collections.abc import Callable

from msgspec import Struct

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from state.kafka.context import RuleId, StepContext

# What Java's String.trim takes away.
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
