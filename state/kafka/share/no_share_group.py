"""Requests of share groups for a group id that has no share group. Rows SH12, SH13, SH29, SD2, SD11, SO5,
SO9a, SO14a.

Source: GroupMetadataManager.getOrMaybeCreateShareGroup, shareGroup.
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeResponse,
)
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DescribeShareGroupOffsets,
    ShareGroupHeartbeat,
)
from state.kafka.context import StepContext
from state.kafka.modern.no_group import is_not, not_found, refusal
from state.kafka.modern.refusal import Refused
from state.kafka.share.alter_offsets import alter_offsets
from state.kafka.share.request_checks import check_request

_KIND = "share group"


def check_may_create(context: StepContext, request: ShareGroupHeartbeat) -> None:
    """Raise Refused if the request cannot create a share group. No group of another type becomes one."""
    error = ErrorCode.GROUP_ID_NOT_FOUND
    leaves = request.member_epoch < 0
    if context.has_group:
        row = context.rule("SH29" if leaves else "SH13")
        raise Refused(row, error, is_not(context.group_id, _KIND))
    if leaves:
        raise Refused(context.rule("SH29"), error, f"Group {context.group_id} not found.")
    if request.member_epoch > 0:
        raise Refused(context.rule("SH12"), error, f"Share group {context.group_id} not found.")


def describe_no_offsets(context: StepContext, _: DescribeShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Row SO5: as in Kafka, that there is no share group is no error."""
    context.reply(reply_to, DescribeShareGroupOffsetsResponse, context.rule("SO5"))


def alter_no_offsets(context: StepContext, request: AlterShareGroupOffsets, reply_to: ReplyTo) -> None:
    """A group id without a group gets one. A group of another type stays what it is."""
    alter = _not_altered if context.has_group else alter_offsets
    alter(context, request, reply_to)


_not_altered = not_found("SO9a", _KIND, AlterShareGroupOffsetsResponse)
delete_no_offsets = not_found("SO14a", _KIND, DeleteShareGroupOffsetsResponse)
describe_no_group = not_found("SD2", _KIND, ShareGroupDescribeResponse)
refusal_of_heartbeat = refusal("SD11", _KIND, check_request)
refusal_of_describe = refusal("SD2", _KIND)
refusal_of_offsets = refusal("SD11", _KIND)
