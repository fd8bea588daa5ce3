"""RocketMQ's broker side as a protocol."""

from collections.abc import Sequence
from typing import ClassVar

from kafka_why.contract.group_type import GroupType
from kafka_why.contract.messages import ErrorResponse
from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    GetConsumerListByGroup,
    LockBatchMq,
    QueryAssignment,
    RegisterConsumer,
    RegisterProducer,
    SetMessageRequestMode,
    UnlockBatchMq,
    UnregisterConsumer,
    UnregisterProducer,
)
from state.config import CoordinatorConfig
from state.protocol import GroupProtocol, Handlers
from state.rocketmq import consumer_manager, producer_manager, query_assignment, rebalance_lock_manager
from state.rocketmq.context import StepContext
from state.rocketmq.effects import Effects, Reply
from state.rocketmq.group import Group
from state.rocketmq.heartbeat import heartbeat
from state.rocketmq.takeover import renew, take_over_group
from state.rocketmq.timers import ScanDue, next_scan
from state.rocketmq.view import snapshot


def _channel_closed(context: StepContext, request: ConnectionClosed) -> None:
    producer_manager.channel_closed(context, request)
    consumer_manager.channel_closed(context, request)


def _scan(context: StepContext, deadline: ScanDue) -> None:
    if context.has_group:
        context.group.last_fired_ms = max(context.group.last_fired_ms, deadline.deadline_ms)
        producer_manager.scan_producers(context)
        consumer_manager.scan_consumers(context)
        rebalance_lock_manager.scan_locks(context)


class RocketMq(GroupProtocol[Group, StepContext, ScanDue]):
    """See `GroupProtocol`. The only deadline is the next scan."""

    group_type = GroupType.ROCKETMQ
    group_class = Group
    handlers: ClassVar[Handlers] = {
        RegisterConsumer: heartbeat,
        RegisterProducer: producer_manager.register_producer,
        UnregisterConsumer: consumer_manager.unregister_consumer,
        UnregisterProducer: producer_manager.unregister_producer,
        ConnectionClosed: _channel_closed,
        GetConsumerListByGroup: consumer_manager.consumer_list,
        LockBatchMq: rebalance_lock_manager.lock_batch,
        UnlockBatchMq: rebalance_lock_manager.unlock_batch,
        QueryAssignment: query_assignment.query_assignment,
        SetMessageRequestMode: query_assignment.set_message_request_mode,
    }

    deadline_reached = staticmethod(_scan)
    take_over = staticmethod(take_over_group)
    release = staticmethod(renew)
    view = staticmethod(snapshot)

    def next_deadline_ms(self, group: Group, config: CoordinatorConfig) -> int | None:
        scan = next_scan(group, config.rocketmq)
        return None if scan is None else scan.deadline_ms

    def due_deadlines(self, group: Group, until_ms: int, config: CoordinatorConfig) -> list[ScanDue]:
        scan = next_scan(group, config.rocketmq)
        return [] if scan is None or scan.deadline_ms > until_ms else [scan]

    def is_armed(self, group: Group, deadline: ScanDue, config: CoordinatorConfig) -> bool:
        return next_scan(group, config.rocketmq) == deadline

    def refused(self, group: Group, answers: Sequence[tuple[int, ErrorResponse]]) -> Effects:
        return Effects(group, [Reply(*answer) for answer in answers])


ROCKETMQ = RocketMq()
