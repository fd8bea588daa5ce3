"""Requests of the consumer protocol for a group id that has no consumer group. Rows HB15, HB17 to HB19, HB36,
AD2.

Source: GroupMetadataManager.getOrMaybeCreateConsumerGroup.
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.contract.kafka.responses import ConsumerGroupDescribeResponse
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer.request_checks import check_request
from state.kafka.consumer.upgrade import upgrade
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.no_group import is_not, not_found, refusal
from state.kafka.modern.refusal import Refused
from state.kafka.start_anew import start_anew

_KIND = "consumer group"


def maybe_create_consumer_group(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Make a consumer group for the request if it joins: a new group, or the classic group that becomes one.
    Raise Refused if it does not join, or the group cannot become one.
    """
    if request.member_epoch != 0:
        raise _no_consumer_group(context, leaves=request.member_epoch < 0)
    if context.has_group and not isinstance(context.group, ClassicGroup):
        raise _of_another_type(context.rule("HB19"), context.group_id)
    context.save()
    if not context.has_group:
        reason = "first ConsumerGroupHeartbeat for this group id"
        context.create_group(ConsumerGroup, context.rule("HB15"), reason)
    elif context.group.is_empty:
        reason = "the Empty classic group becomes a consumer group; its offsets stay"
        start_anew(context, context.rule("HB17"), ConsumerGroup, reason)
    else:
        context.rule("HB18")
        upgrade(context, request)


def _no_consumer_group(context: StepContext, *, leaves: bool) -> Refused:
    if not context.has_group:
        missing = context.rule("HB36" if leaves else "HB15")
        return Refused(missing, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {context.group_id} does not exist.")
    row = "HB19"
    if isinstance(context.group, ClassicGroup):
        row = "HB17" if context.group.is_empty else "HB18"
    return _of_another_type(context.rule("HB36" if leaves else row), context.group_id)


def _of_another_type(rule: RuleId, group_id: str) -> Refused:
    return Refused(rule, ErrorCode.GROUP_ID_NOT_FOUND, is_not(group_id, _KIND))


describe_no_group = not_found("AD2", _KIND, ConsumerGroupDescribeResponse)
refusal_of_heartbeat = refusal("HB19", _KIND, check_request)
refusal_of_describe = refusal("AD2", _KIND)
