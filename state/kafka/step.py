"""The entry of Kafka's side: `step` applies one event to one group."""

from types import NoneType

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    AlterGroupConfigs,
    AnyAnswered,
    AnyRequest,
    DescribeGroupConfigs,
    JoinGroup,
    OversizedRequest,
    ReplyTo,
    TopicMetadata,
    TransactionMarker,
    Unanswered,
)
from kafka_why.contract.messages import ErrorCode, ReleaseGroup, ReleaseGroupResponse
from state.config import CoordinatorConfig
from state.inputs import Failed, Outage, Quarantine, Received, cause_of
from state.kafka.commits import extend_ended_retention, transaction_marker
from state.kafka.context import Effects, KafkaGroup, RuleId, StepContext
from state.kafka.group import ConfigsOnly, DeadlineReached, TimerKind
from state.kafka.offsets import arm_retention, retention_pass, topic_metadata
from state.kafka.protocol import Before, refuse_oversized
from state.kafka.protocols import PROTOCOLS, alter_configs, describe_configs, handlers, protocol_of
from state.protocol import Handler

KafkaEvent = (
    Received[AnyRequest]
    | Failed[AnyRequest]
    | DeadlineReached
    | Outage
    | Quarantine[DeadlineReached | Outage]
)

# Error texts that do not depend on the request.
_REFUSALS = {
    ErrorCode.INVALID_GROUP_ID: "The group id is invalid.",
    ErrorCode.UNKNOWN_SERVER_ERROR: "The coordinator failed at this request, and nothing has changed.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The group is quarantined after a failure of the coordinator.",
}


def step(
    stored: KafkaGroup | ConfigsOnly | None,
    group_id: str,
    event: KafkaEvent,
    now_ms: int,
    config: CoordinatorConfig,
) -> Effects:
    """Apply one event to a group at a time, and return the effects.

    `stored` is changed in place. It is the group, or the settings of a group that does not exist, or None
    without both. The returned effects hold the new one. `now_ms` is never before the group's clock. No client
    request raises: errors are answers. Requests, due deadlines and takeovers are events. The caller fires
    deadlines in time order (`state.timeline`).
    """
    group, kept = (None, stored) if isinstance(stored, ConfigsOnly) else (stored, None)
    context = StepContext(
        group, group_id, cause_of(event), now_ms, config, principal=_principal_of(event), kept=kept
    )
    before: Before = ("Empty", False)
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        protocol = protocol_of(group)
        before = protocol.before(group)
        context.noted_state = before[0]
        if group.quarantined is not None:
            protocol.shift_deadlines(context, group, now_ms - group.clock_ms)
        group.clock_ms = now_ms
    if kept is not None:
        kept.clock_ms = now_ms
    match event:
        case Received():
            _received(context, event)
        case DeadlineReached():
            _deadline_reached(context, event)
        case Outage() if context.has_group:
            _take_over(context, event)
        case Failed():
            refuse(context, event, context.rule("F1"), ErrorCode.UNKNOWN_SERVER_ERROR)
        case Quarantine() if context.has_group:
            _quarantine(context, event)
    if context.has_group:
        protocol_of(context.group).settle(context, context.group, before)
        arm_retention(context)
    return context.effects()


def reply_to(request: AnyAnswered, request_id: str) -> ReplyTo:
    return ReplyTo(request.reply_partition, request.correlation_id, request_id)


def _principal_of(event: KafkaEvent) -> str | None:
    """Return the principal of the event's request, None for other events and for requests of the
    coordinator's own service.
    """
    if isinstance(event, (Received, Failed)) and not isinstance(event.request, Unanswered):
        return event.request.principal
    return None


def _received(context: StepContext, event: Received[AnyRequest]) -> None:
    request = event.request
    kind = type(request)
    if not request.group_id and kind not in _CHECK_GROUP_ID:
        return refuse(context, event, context.rule("P1"), ErrorCode.INVALID_GROUP_ID)
    if context.has_group:
        if event.late_by_ms:
            _note_late(context, event.late_by_ms)
        if context.group.quarantined is not None and kind is not ReleaseGroup:
            return refuse(context, event, context.rule("F2"), ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if isinstance(request, Unanswered):
        return _handle_unanswered(context, request)
    handler = HANDLERS[type(context.group) if context.has_group else NoneType][kind]
    handler(context, request, reply_to(request, event.request_id))


def _note_late(context: StepContext, late_by_ms: int) -> None:
    context.record(
        context.rule("F3"),
        EntryType.APPLIED_LATE,
        "a request follows a fired deadline in the log; it is applied at the group's clock",
        late_by_ms=late_by_ms,
    )


def _handle_unanswered(context: StepContext, request: Unanswered) -> None:
    """Handle a report of the coordinator's own service, which gets no answer. Without a group it is
    ignored.
    """
    if not context.has_group:
        return
    if isinstance(request, TopicMetadata):
        topic_metadata(context, request)
    handler = protocol_of(context.group).unanswered_handlers.get(type(request))
    if handler is not None:
        handler(context, context.group, request)


def _deadline_reached(context: StepContext, deadline: DeadlineReached) -> None:
    """Handle a due deadline. The deadline is disarmed unless the handling arms it again."""
    context.group.last_fired_ms = max(context.group.last_fired_ms, deadline.deadline_ms)
    if deadline.kind is TimerKind.RETENTION:
        retention_pass(context)
    else:
        protocol_of(context.group).deadline_reached(context, context.group, deadline)


def _take_over(context: StepContext, outage: Outage) -> None:
    """Take a group over after an outage. The retention of ended transactions is extended by its length."""
    extend_ended_retention(context, outage.length_ms)
    if context.group.quarantined is None:
        protocol_of(context.group).take_over(context, context.group, outage)


def refuse(
    context: StepContext, event: Received[AnyRequest] | Failed[AnyRequest], rule: RuleId, error: ErrorCode
) -> None:
    """Answer any request with only an error. As in Kafka, the answer to a JoinGroup repeats the member id."""
    request = event.request
    if isinstance(request, Unanswered):
        return
    fields = {"member_id": request.member_id} if isinstance(request, JoinGroup) else {}
    response = request.answer
    if "error_message" in response.__struct_fields__:
        fields["error_message"] = _REFUSALS[error]
    context.reply(reply_to(request, event.request_id), response, rule, error, **fields)


def _quarantine(context: StepContext, event: Quarantine[DeadlineReached | Outage]) -> None:
    """Stop the group's deadlines, and answer every parked request with an error."""
    row = context.rule("F2")
    context.group.quarantined = event.error
    context.record(row, EntryType.QUARANTINED, f"{event.deadline} raised {event.error}")
    protocol_of(context.group).answer_parked(context, context.group, row)


def release(context: StepContext, _: ReleaseGroup, to: ReplyTo) -> None:
    """Release the group. Its deadlines are still ahead, because `step` moved them with the group's clock."""
    row = context.rule("F4")
    if context.has_group and context.group.quarantined is not None:
        context.group.quarantined = None
        deadline_ms = protocol_of(context.group).release(context, context.group)
        context.deadline(0)  # a retention pass may have become due
        context.record(
            row,
            EntryType.RELEASED,
            "released by an operator: sessions begin anew, rounds go on",
            deadline_ms=deadline_ms,
        )
    context.reply(to, ReleaseGroupResponse, row)


# For every group id, with or without a group.
_OF_ALL: dict[type, Handler] = {
    TransactionMarker: transaction_marker,
    ReleaseGroup: release,
    OversizedRequest: refuse_oversized,
    DescribeGroupConfigs: describe_configs,
    AlterGroupConfigs: alter_configs,
}
HANDLERS = {group_type: {**_OF_ALL, **table} for group_type, table in handlers().items()}
"""By the type of the group (NoneType without one), and by the type of the request."""
_CHECK_GROUP_ID = {request for protocol in PROTOCOLS for request in protocol.checks_group_id}
