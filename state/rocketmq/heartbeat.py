"""The part of a heartbeat for one consumer group, in both versions. Source: ClientManageProcessor.java."""

from kafka_why.contract.rocketmq.requests import ConsumeType, RegisterConsumer
from kafka_why.contract.rocketmq.responses import RegisterResponse
from state.rocketmq.consumer_manager import register_consumer, register_consumer_without_sub
from state.rocketmq.context import StepContext


def heartbeat(context: StepContext, request: RegisterConsumer) -> None:
    """Register the connection. A group without configuration is not registered, and the answer does not say
    so.

    A heartbeat of version 2 has a fingerprint other than 0. Its IS_SUB_CHANGE says whether the group's last
    heartbeat, of any client, had another fingerprint.
    """
    is_v2 = request.heartbeat_fingerprint != 0
    last = context.group.heartbeat_fingerprint if context.has_group else None
    is_sub_change = last not in (None, request.heartbeat_fingerprint) if is_v2 else True
    is_pull = request.consume_type is ConsumeType.CONSUME_ACTIVELY
    if is_pull and context.config.reject_pull_consumer_enable:
        return context.reply(request, RegisterResponse, is_sub_change=not is_v2)
    changed = False
    if request.group_config is not None:
        register = register_consumer_without_sub if is_v2 and request.is_without_sub else register_consumer
        changed = register(context, request, request.group_config)
    if context.has_group:
        context.group.heartbeat_fingerprint = request.heartbeat_fingerprint
    context.reply(request, RegisterResponse, is_sub_change=is_sub_change, changed=changed)
