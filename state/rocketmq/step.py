"""The one entry of RocketMQ's side: what one event does to one group."""

from msgspec import Struct

from state.rocketmq import consumer_manager, producer_manager, query_assignment, rebalance_lock_manager
from state.rocketmq.config import BrokerConfig
from state.rocketmq.effects import Effects
from state.rocketmq.group import Group
from state.rocketmq.heartbeat import heartbeat
from state.rocketmq.messages import (
    AnyAnswered,
    AnyRequest,
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
from state.rocketmq.timers import ScanDue
from state.rocketmq.turn import Turn


class Received(Struct, frozen=True):
    """An event: a request read from the log."""

    request_id: str
    request: AnyRequest


Event = Received | ScanDue


def step(group: Group | None, group_id: str, event: Event, now_ms: int, config: BrokerConfig) -> Effects:
    """Apply one event to a group at a time, and say what follows.

    `group` is changed in place (None: there is no such group; the returned effects hold the group
    afterwards). `now_ms` is never before the group's clock. Nothing a client may send raises: errors are
    answers. Whoever calls fires due scans (`state.rocketmq.timers.next_scan`) in time order, before requests
    of the same time.
    """
    cause = event.request_id if isinstance(event, Received) else str(event)
    turn = Turn(group, group_id, cause, now_ms, config)
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        group.clock_ms = now_ms
    if isinstance(event, Received):
        _received(turn, event.request)
    elif group is not None:
        group.last_fired_ms = max(group.last_fired_ms, event.deadline_ms)
        producer_manager.scan_producers(turn)
        consumer_manager.scan_consumers(turn)
        rebalance_lock_manager.scan_locks(turn)
    return turn.effects()


def _received(turn: Turn, request: AnyRequest) -> None:
    if isinstance(request, ConnectionClosed):
        producer_manager.channel_closed(turn, request)
        consumer_manager.channel_closed(turn, request)
    else:
        _answered(turn, request)


def _answered(turn: Turn, request: AnyAnswered) -> None:
    match request:
        case RegisterConsumer():
            heartbeat(turn, request)
        case RegisterProducer():
            producer_manager.register_producer(turn, request)
        case UnregisterConsumer():
            consumer_manager.unregister_consumer(turn, request)
        case UnregisterProducer():
            producer_manager.unregister_producer(turn, request)
        case GetConsumerListByGroup():
            consumer_manager.consumer_list(turn, request)
        case LockBatchMq():
            rebalance_lock_manager.lock_batch(turn, request)
        case UnlockBatchMq():
            rebalance_lock_manager.unlock_batch(turn, request)
        case QueryAssignment():
            query_assignment.query_assignment(turn, request)
        case SetMessageRequestMode():
            query_assignment.set_message_request_mode(turn, request)
