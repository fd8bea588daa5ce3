"""The entry of RocketMQ's side: `step` applies one event to one group."""

from state.config import BrokerConfig
from state.errors import ErrorCode
from state.inputs import Failed, Outage, Quarantine, Received, cause_of
from state.messages import ReleaseGroup
from state.rocketmq import consumer_manager, producer_manager, query_assignment, rebalance_lock_manager
from state.rocketmq.context import StepContext
from state.rocketmq.effects import Effects
from state.rocketmq.group import Group
from state.rocketmq.heartbeat import heartbeat
from state.rocketmq.history import EntryType
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
from state.rocketmq.takeover import count_as_heard_of, take_over
from state.rocketmq.timers import ScanDue

Request = AnyRequest | ReleaseGroup
Event = Received[Request] | Failed[Request] | ScanDue | Outage | Quarantine[ScanDue | Outage]

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
    """Apply one event to a group at a time, and return the effects.

    `group` is changed in place; None means that the group does not exist. The returned effects hold the group
    afterwards. `now_ms` is never before the group's clock. No client request raises: errors are answers. The
    caller fires due scans (`state.rocketmq.timers.next_scan`) in time order, before requests of the same time
    (`state.timeline`).
    """
    context = StepContext(group, group_id, cause_of(event), now_ms, config)
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        group.clock_ms = now_ms
    match event:
        case Received():
            _received(context, event)
        case ScanDue():
            _scan(context, event)
        case Outage():
            take_over(context, event)
        case Failed():
            _refuse(context, event.request, "the broker failed at this request")
        case Quarantine():
            context.group.quarantined = event.error
            context.record(EntryType.QUARANTINED, f"{event.deadline} raised {event.error}")
    return context.effects()


def _scan(context: StepContext, due: ScanDue) -> None:
    if context.has_group:
        context.group.last_fired_ms = max(context.group.last_fired_ms, due.deadline_ms)
        producer_manager.scan_producers(context)
        consumer_manager.scan_consumers(context)
        rebalance_lock_manager.scan_locks(context)


def _received(context: StepContext, event: Received[Request]) -> None:
    request = event.request
    if context.has_group and event.late_by_ms:
        context.record(
            EntryType.APPLIED_LATE,
            "a request stands in the log behind a scan that was done; it is applied at the group's clock",
            late_by_ms=event.late_by_ms,
        )
    if isinstance(request, ReleaseGroup):
        _release(context, request)
    elif not request.group_id:
        _refuse(context, request, "the group's name is empty")
    elif context.has_group and context.group.quarantined is not None:
        _refuse(context, request, f"group {context.group_id} is quarantined: {context.group.quarantined}")
    elif isinstance(request, ConnectionClosed):
        producer_manager.channel_closed(context, request)
        consumer_manager.channel_closed(context, request)
    else:
        _answered(context, request)


def _refuse(context: StepContext, request: Request, remark: str) -> None:
    """Answer with SYSTEM_ERROR alone. RocketMQ's clients then keep their queues."""
    if isinstance(request, ReleaseGroup):
        context.reply_release(request, ErrorCode.UNKNOWN_SERVER_ERROR)
    elif not isinstance(request, ConnectionClosed):
        context.reply(request, RESPONSE_TO[type(request)], code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _release(context: StepContext, request: ReleaseGroup) -> None:
    """Release the group. Connections and locks are renewed, because their renewals were refused in the
    quarantine.
    """
    group = context.group
    if group.quarantined is not None:
        group.quarantined = None
        count_as_heard_of(context)
        context.deadline_at(context.now_ms)
        context.record(EntryType.RELEASED, "released by an operator; its scans run again")
    context.reply_release(request, ErrorCode.NONE)


def _answered(context: StepContext, request: AnyAnswered) -> None:
    match request:
        case RegisterConsumer():
            heartbeat(context, request)
        case RegisterProducer():
            producer_manager.register_producer(context, request)
        case UnregisterConsumer():
            consumer_manager.unregister_consumer(context, request)
        case UnregisterProducer():
            producer_manager.unregister_producer(context, request)
        case GetConsumerListByGroup():
            consumer_manager.consumer_list(context, request)
        case LockBatchMq():
            rebalance_lock_manager.lock_batch(context, request)
        case UnlockBatchMq():
            rebalance_lock_manager.unlock_batch(context, request)
        case QueryAssignment():
            query_assignment.query_assignment(context, request)
        case SetMessageRequestMode():
            query_assignment.set_message_request_mode(context, request)
