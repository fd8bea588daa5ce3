"""Requests of share groups for a group id that has no share group. Rows SH12, SH13, SH29, SD2, SD11,
SO5.

Source: GroupMetadataManager.getOrMaybeCreateShareGroup, shareGroup.
"""

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.kafka.context import StepContext
from state.kafka.modern.refusal import Refused
from state.kafka.requests import ReplyTo
from state.kafka.responses import DescribeShareGroupOffsetsResponse, ShareGroupDescribeResponse
from state.kafka.share.request_checks import check_request
from state.kafka.share_requests import DescribeShareGroupOffsets, ShareGroupDescribe, ShareGroupHeartbeat
from state.protocol import Refusal


def check_may_create(context: StepContext, request: ShareGroupHeartbeat) -> None:
    """Raise Refused if the request cannot create a share group. No group of another type becomes one."""
    error = ErrorCode.GROUP_ID_NOT_FOUND
    leaves = request.member_epoch < 0
    if context.has_group:
        row = context.rule("SH29" if leaves else "SH13")
        raise Refused(row, error, _is_not_ours(context.group_id))
    if leaves:
        raise Refused(context.rule("SH29"), error, f"Group {context.group_id} not found.")
    if request.member_epoch > 0:
        raise Refused(context.rule("SH12"), error, f"Share group {context.group_id} not found.")


def _is_not_ours(group_id: str) -> str:
    return f"Group {group_id} is not a share group."


def describe_no_group(context: StepContext, _: ShareGroupDescribe, reply_to: ReplyTo) -> None:
    """Row SD2: there is nothing to describe."""
    message = _is_not_ours(context.group_id) if context.has_group else f"Group {context.group_id} not found."
    row, error = context.rule("SD2"), ErrorCode.GROUP_ID_NOT_FOUND
    context.reply(reply_to, ShareGroupDescribeResponse, row, error, error_message=message)


def describe_no_offsets(context: StepContext, _: DescribeShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Row SO5: as in Kafka, that there is no share group is no error."""
    context.reply(reply_to, DescribeShareGroupOffsetsResponse, context.rule("SO5"))


def refusal_of_heartbeat(
    group_id: str, request: ShareGroupHeartbeat, request_id: str, config: CoordinatorConfig
) -> Refusal:
    """Why a group that is none of Kafka's refuses the request (row SD11), if it is not refused by itself."""
    context = StepContext(None, group_id, request_id, 0, config)
    try:
        check_request(context, request)
    except Refused as refused:
        return refused.rule, refused.error, refused.message
    return "SD11", ErrorCode.GROUP_ID_NOT_FOUND, _is_not_ours(group_id)


def refusal_of_describe(
    group_id: str, _: ShareGroupDescribe, request_id: str, config: CoordinatorConfig
) -> Refusal:
    """Row SD2, for a group that is none of Kafka's."""
    return "SD2", ErrorCode.GROUP_ID_NOT_FOUND, _is_not_ours(group_id)
