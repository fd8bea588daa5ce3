"""What a ConsumerGroupHeartbeat is refused for before its group is looked at. Rows HB1, HB5 to HB13.

Source: GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid.
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.contract.kafka.states import LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.refusal import Refused, is_blank

# From this version on the client chooses its member id (KIP-1082).
FIRST_VERSION_WITH_CLIENTS_MEMBER_ID = 1


def check_request(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Raise Refused if the request is invalid by itself, or names an assignor that is not configured."""
    config = context.config
    if not config.consumer_protocol:
        message = "The consumer group protocol is switched off (group.coordinator.rebalance.protocols)."
        raise Refused(context.rule("HB1"), ErrorCode.UNSUPPORTED_VERSION, message)
    fault = _fault(context, request)
    if fault is not None:
        row, message = fault
        raise Refused(row, ErrorCode.INVALID_REQUEST, message)
    name = request.server_assignor
    if name is not None and name not in config.group_consumer_assignors:
        known = ", ".join(config.group_consumer_assignors)
        message = f"ServerAssignor {name!r} is not supported. Supported assignors: {known}."
        raise Refused(context.rule("HB13"), ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _fault(context: StepContext, request: ConsumerGroupHeartbeat) -> tuple[RuleId, str] | None:
    """The row that refuses the request as invalid, and a sentence that says why."""
    epoch = request.member_epoch
    needs_id = (
        request.api_version >= FIRST_VERSION_WITH_CLIENTS_MEMBER_ID
        or epoch > 0
        or epoch == LEAVE_GROUP_MEMBER_EPOCH
    )
    if needs_id and is_blank(request.member_id):
        return context.rule("HB5"), "MemberId can't be empty."
    if is_blank(request.group_id):
        return context.rule("HB6"), "GroupId can't be empty."
    if request.instance_id is not None and is_blank(request.instance_id):
        return context.rule("HB7"), "InstanceId can't be empty."
    if request.rack_id is not None and is_blank(request.rack_id):
        return context.rule("HB7"), "RackId can't be empty."
    if epoch == 0:
        return _fault_of_join(context, request)
    if epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and request.instance_id is None:
        return context.rule("HB11"), "InstanceId can't be null in a request with the member epoch -2."
    if epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return context.rule("HB12"), f"The member epoch {epoch} is invalid: it must be -2 at the least."
    return None


def _fault_of_join(context: StepContext, request: ConsumerGroupHeartbeat) -> tuple[RuleId, str] | None:
    if request.rebalance_timeout_ms == -1:
        return context.rule("HB8"), "The first request must have RebalanceTimeoutMs."
    if request.topic_partitions is None or request.topic_partitions:
        return context.rule("HB9"), "TopicPartitions must be empty in the first request."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return context.rule(
            "HB10"
        ), "The first request must have SubscribedTopicNames or SubscribedTopicRegex."
    return None
