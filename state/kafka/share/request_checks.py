"""What a ShareGroupHeartbeat is refused for before its group is looked at. Rows SH3, SH6 to SH10.

Source: KafkaApis.isMemberIdValid, GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid.
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.refusal import Refused, is_blank
from state.kafka.share_group import LEAVE_GROUP_MEMBER_EPOCH

MEMBER_ID_MAX_CHARS = 36


def check_request(context: StepContext, request: ShareGroupHeartbeat) -> None:
    """Raise Refused if the request is invalid by itself."""
    fault = _fault(context, request)
    if fault is not None:
        row, message = fault
        raise Refused(row, ErrorCode.INVALID_REQUEST, message)


def _fault(context: StepContext, request: ShareGroupHeartbeat) -> tuple[RuleId, str] | None:
    """The row that refuses the request as invalid, and a sentence that says why."""
    if not 0 < len(request.member_id) <= MEMBER_ID_MAX_CHARS:
        return context.rule("SH3"), f"MemberId must have 1 to {MEMBER_ID_MAX_CHARS} characters."
    if is_blank(request.member_id):
        return context.rule("SH6"), "MemberId can't be empty."
    if is_blank(request.group_id):
        return context.rule("SH7"), "GroupId can't be empty."
    if request.rack_id is not None and is_blank(request.rack_id):
        return context.rule("SH8"), "RackId can't be empty."
    if request.member_epoch == 0 and not request.subscribed_topic_names:
        return context.rule("SH9"), "SubscribedTopicNames must be set in first request."
    if request.member_epoch < LEAVE_GROUP_MEMBER_EPOCH:
        return context.rule("SH10"), "MemberEpoch is invalid."
    return None
