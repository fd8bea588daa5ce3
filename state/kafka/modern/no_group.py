"""Requests to a group id that has no group, or one of another protocol, which is the same to them.

Source: GroupMetadataManager (consumerGroup, shareGroup).
"""

from collections.abc import Callable
from typing import Any

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import AnyResponse
from state.config import CoordinatorConfig
from state.kafka.context import StepContext
from state.kafka.modern.refusal import Refused
from state.protocol import Handler, Refusal, WhyRefused

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
