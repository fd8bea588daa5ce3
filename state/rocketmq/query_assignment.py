"""Assignment by the broker, at a client's request. Source: QueryAssignmentProcessor.java."""

from collections.abc import Sequence

from assignors.rocketmq.api import (
    AllocateMessageQueueStrategy,
    IllegalArgumentException,
    NullPointerException,
    sort_client_ids,
    sort_queues,
)
from assignors.rocketmq.strategies import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    allocate_for_pop,
)
from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.queues import MessageQueue, MessageRequestMode
from kafka_why.contract.rocketmq.requests import (
    MessageModel,
    QueryAssignment,
    RequestMode,
    SetMessageRequestMode,
)
from kafka_why.contract.rocketmq.responses import (
    MessageQueueAssignment,
    QueryAssignmentResponse,
    ResponseCode,
    SetMessageRequestModeResponse,
)
from state.rocketmq.context import StepContext

RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"
LMQ_PREFIX = "%LMQ%"
LMQ_QUEUE_ID = 0

_STRATEGIES: dict[str | None, AllocateMessageQueueStrategy] = {
    strategy.name: strategy
    for strategy in (AllocateMessageQueueAveragely(), AllocateMessageQueueAveragelyByCircle())
}


def query_assignment(context: StepContext, request: QueryAssignment) -> None:
    """Answer with the client's queues. None means that the client keeps the queues that it has."""
    mode = _request_mode(context, request.topic)
    queues = _do_load_balance(context, request, mode)
    assignments = (
        None
        if queues is None
        else tuple(MessageQueueAssignment(queue, mode.mode) for queue in dict.fromkeys(queues))
    )
    context.reply(request, QueryAssignmentResponse, message_queue_assignments=assignments)


def _request_mode(context: StepContext, topic: str) -> RequestMode:
    """Return the mode that was set for the topic. Without one, retry topics are always pulled and other
    topics have the broker's default.
    """
    if context.has_group and topic in context.group.request_modes:
        return context.group.request_modes[topic]
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return RequestMode(MessageRequestMode.PULL, 0)
    return RequestMode(
        context.config.default_message_request_mode, context.config.default_pop_share_queue_num
    )


def _do_load_balance(
    context: StepContext, request: QueryAssignment, mode: RequestMode
) -> Sequence[MessageQueue] | None:
    if request.message_model is MessageModel.BROADCASTING:
        return request.topic_queues
    queues = request.topic_queues
    if request.topic.startswith(LMQ_PREFIX):
        queues = (MessageQueue(request.topic, context.config.broker_name, LMQ_QUEUE_ID),)
    if queues is None or not context.config.server_load_balancer_enable:
        return queues
    strategy = _STRATEGIES.get(request.strategy_name)
    if not context.has_consumers or strategy is None:
        return None
    mq_all, cid_all = sort_queues(dict.fromkeys(queues)), sort_client_ids(context.group.client_ids())
    client_id, shared = request.client_id, mode.pop_share_queue_num
    try:
        if mode.mode is MessageRequestMode.POP:
            return allocate_for_pop(strategy, context.group_id, client_id, mq_all, cid_all, shared)
        return strategy.allocate(context.group_id, client_id, mq_all, cid_all)
    except (IllegalArgumentException, NullPointerException):
        return None


def set_message_request_mode(context: StepContext, request: SetMessageRequestMode) -> None:
    """Store the mode of the group and topic. Retry topics are refused."""
    code, remark = _refusal(request)
    if code is ResponseCode.SUCCESS:
        mode = RequestMode(request.mode, request.pop_share_queue_num)
        context.ensure_group().request_modes[request.topic] = mode
        reason = f"{request.mode}, shared with the {request.pop_share_queue_num} clients after one's own"
        context.record(EntryType.MESSAGE_REQUEST_MODE_SET, reason, topics=[request.topic])
    context.reply(request, SetMessageRequestModeResponse, code=code, remark=remark)


def _refusal(request: SetMessageRequestMode) -> tuple[ResponseCode, str | None]:
    if request.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"
    if not request.topic_exists:
        return ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist"
    if request.group_config is None:
        return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
    return ResponseCode.SUCCESS, None
