"""The entry of RocketMQ's side: `step` applies one event to one group."""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.messages import ReleaseGroup
from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.requests import AnyRequest, ConnectionClosed
from kafka_why.contract.rocketmq.responses import ResponseCode
from state.config import BrokerConfig
from state.inputs import Failed, Outage, Quarantine, Received, cause_of
from state.rocketmq.context import StepContext
from state.rocketmq.effects import Effects
from state.rocketmq.group import Group, ScanDue
from state.rocketmq.protocol import ROCKETMQ

Request = AnyRequest | ReleaseGroup
Event = Received[Request] | Failed[Request] | ScanDue | Outage | Quarantine[ScanDue | Outage]


def step(group: Group | None, group_id: str, event: Event, now_ms: int, config: BrokerConfig) -> Effects:
    """Apply one event to a group at a time, and return the effects.

    `group` is changed in place; None means that the group does not exist. The returned effects hold the group
    afterwards. `now_ms` is never before the group's clock. No client request raises: errors are answers. The
    caller fires due scans (`state.rocketmq.group.next_scan`) in time order, before requests of the same time
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
            ROCKETMQ.deadline_reached(context, event)
        case Outage():
            ROCKETMQ.take_over(context, event)
        case Failed():
            _refuse(context, event.request, "the broker failed at this request")
        case Quarantine():
            context.group.quarantined = event.error
            context.record(EntryType.QUARANTINED, f"{event.deadline} raised {event.error}")
    return context.effects()


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
    else:
        ROCKETMQ.handlers[type(request)](context, request)


def _refuse(context: StepContext, request: Request, remark: str) -> None:
    """Answer with SYSTEM_ERROR alone. RocketMQ's clients then keep their queues."""
    if isinstance(request, ReleaseGroup):
        context.reply_release(request, ErrorCode.UNKNOWN_SERVER_ERROR)
    elif not isinstance(request, ConnectionClosed):
        context.reply(request, request.answer, code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _release(context: StepContext, request: ReleaseGroup) -> None:
    group = context.group
    if group.quarantined is not None:
        group.quarantined = None
        ROCKETMQ.release(context)
        context.record(EntryType.RELEASED, "released by an operator; its scans run again")
    context.reply_release(request, ErrorCode.NONE)
