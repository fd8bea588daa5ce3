"""A JoinGroup or SyncGroup that is too large for the log. Rows J9, S11. S10 is the classic protocol's."""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import OversizedRequest, ReplyTo
from kafka_why.contract.kafka.responses import OversizedRequestResponse
from state.kafka.context import RuleId, StepContext

FAILED = ErrorCode.UNKNOWN_SERVER_ERROR


def oversized(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse the request for good. In groups of this protocol a SyncGroup has no assignment of use."""
    if request.kind == "JoinGroup":
        refuse_join(context, context.rule("J9"), request, reply_to)
    else:
        context.reply(reply_to, OversizedRequestResponse, context.rule("S11"), FAILED)


def refuse_join(context: StepContext, row: RuleId, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse a JoinGroup for good, and record why. There is a group."""
    context.record(
        row,
        EntryType.JOIN_REFUSED,
        reason_of(request),
        member_id=request.member_id or None,
        client_id=request.client_id,
    )
    context.reply(reply_to, OversizedRequestResponse, row, FAILED)


def reason_of(request: OversizedRequest) -> str:
    """Return the reason for the history, with both sizes."""
    return (
        f"a {request.kind} of {request.size_bytes} bytes is too large: "
        f"the limit of the requests topic is {request.max_bytes}"
    )
