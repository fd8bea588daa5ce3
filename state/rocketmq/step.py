"""The one entry of RocketMQ's side: what one event does to one group."""

from state.config import BrokerConfig
from state.errors import ErrorCode
from state.inputs import Failed, Outage, Quarantine, Received, cause_of
from state.messages import ReleaseGroup
from state.rocketmq import consumer_manager, producer_manager, query_assignment, rebalance_lock_manager
from state.rocketmq.context import Turn
from state.rocketmq.effects import Effects, EventType
from state.rocketmq.group import Group
from state.rocketmq.heartbeat import heartbeat
from state.rocketmq.requests import (
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
from state.rocketmq.responses import (
    AnyResponse,
    ConsumerListResponse,
    LockBatchMqResponse,
    QueryAssignmentResponse,
    RegisterResponse,
    ResponseCode,
    SetMessageRequestModeResponse,
    UnlockBatchMqResponse,
    UnregisterResponse,
)
from state.rocketmq.takeover import take_over
from state.rocketmq.timers import ScanDue

Asked = AnyRequest | ReleaseGroup
Event = Received[Asked] | Failed[Asked] | ScanDue | Outage | Quarantine[ScanDue | Outage]

RESPONSE_TO: dict[type[AnyAnswered], type[AnyResponse]] = {
    RegisterConsumer: RegisterResponse,
    RegisterProducer: RegisterResponse,
    UnregisterConsumer: UnregisterResponse,
    UnregisterProducer: UnregisterResponse,
    GetConsumerListByGroup: ConsumerListResponse,
    LockBatchMq: LockBatchMqResponse,
    UnlockBatchMq: UnlockBatchMqResponse,
    QueryAssignment: QueryAssignmentResponse,
    SetMessageRequestMode: SetMessageRequestModeResponse,
}


def step(group: Group | None, group_id: str, event: Event, now_ms: int, config: BrokerConfig) -> Effects:
    """Apply one event to a group at a time, and say what follows.

    `group` is changed in place (None: there is no such group; the returned effects hold the group
    afterwards). `now_ms` is never before the group's clock. Nothing a client may send raises: errors are
    answers. Whoever calls fires due scans (`state.rocketmq.timers.next_scan`) in time order, before requests
    of the same time (`state.timeline`).
    """
    turn = Turn(group, group_id, cause_of(event), now_ms, config)
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        group.clock_ms = now_ms
    match event:
        case Received():
            _received(turn, event)
        case ScanDue():
            _scan(turn, event)
        case Outage():
            take_over(turn, event)
        case Failed():
            _refuse(turn, event.request, "the broker failed at this request")
        case Quarantine():
            turn.group.quarantined = event.error
            turn.record(EventType.QUARANTINED, f"{event.deadline} raised {event.error}")
    return turn.effects()


def _scan(turn: Turn, due: ScanDue) -> None:
    if turn.has_group:
        turn.group.last_fired_ms = max(turn.group.last_fired_ms, due.deadline_ms)
        producer_manager.scan_producers(turn)
        consumer_manager.scan_consumers(turn)
        rebalance_lock_manager.scan_locks(turn)


def _received(turn: Turn, event: Received[Asked]) -> None:
    request = event.request
    if turn.has_group and event.late_by_ms:
        turn.record(
            EventType.APPLIED_LATE,
            "a request stands in the log behind a scan that was done; it is applied at the group's clock",
            late_by_ms=event.late_by_ms,
        )
    if isinstance(request, ReleaseGroup):
        _release(turn, request)
    elif not request.group_id:
        _refuse(turn, request, "the group's name is empty")
    elif turn.has_group and turn.group.quarantined is not None:
        _refuse(turn, request, f"group {turn.group_id} is quarantined: {turn.group.quarantined}")
    elif isinstance(request, ConnectionClosed):
        producer_manager.channel_closed(turn, request)
        consumer_manager.channel_closed(turn, request)
    else:
        _answered(turn, request)


def _refuse(turn: Turn, request: Asked, remark: str) -> None:
    """Answer with SYSTEM_ERROR alone, upon which RocketMQ's clients keep what they have."""
    if isinstance(request, ReleaseGroup):
        turn.reply_release(request, ErrorCode.UNKNOWN_SERVER_ERROR)
    elif not isinstance(request, ConnectionClosed):
        turn.reply(request, RESPONSE_TO[type(request)], code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _release(turn: Turn, request: ReleaseGroup) -> None:
    """Let scans run again. Connections, whose heartbeats were refused, were heard of now."""
    group = turn.group
    if group.quarantined is not None:
        group.quarantined = None
        for info in (*group.channels.values(), *group.producers.values()):
            info.last_update_ms = turn.now_ms
        turn.deadline_at(turn.now_ms)
        turn.record(EventType.RELEASED, "released by an operator; its scans run again")
    turn.reply_release(request, ErrorCode.NONE)


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
