"""The entry of Kafka's side: `step` applies one event to one group."""

from collections.abc import Callable
from typing import Any, Protocol

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.inputs import Failed, Outage, Quarantine, Received, cause_of
from state.kafka.admin import delete_group, describe
from state.kafka.any_group import KafkaGroup
from state.kafka.classic import entry as classic
from state.kafka.classic_group import GroupState
from state.kafka.configs_only import ConfigsOnly
from state.kafka.consumer import entry as consumer
from state.kafka.consumer.describe import describe as describe_consumer_group
from state.kafka.consumer.heartbeat import heartbeat
from state.kafka.consumer.regex_resolved import regex_resolved
from state.kafka.consumer.settle import settle
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import RuleId, StepContext
from state.kafka.effects import Effects
from state.kafka.group_configs import alter_configs, describe_configs
from state.kafka.history import EntryType
from state.kafka.offsets import retention
from state.kafka.offsets.commit import commit
from state.kafka.offsets.delete import delete_offsets
from state.kafka.offsets.fetch import fetch
from state.kafka.offsets.topic_metadata import topic_metadata
from state.kafka.offsets.transactions import remember_longer, transaction_marker, txn_commit
from state.kafka.requests import (
    AlterGroupConfigs,
    AnyAnswered,
    AnyRequest,
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupConfigs,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    RegexResolved,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
    TransactionMarker,
    TxnOffsetCommit,
    Unanswered,
)
from state.kafka.responses import (
    AlterGroupConfigsResponse,
    AnyResponse,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupResponse,
    DescribeGroupConfigsResponse,
    DescribeGroupResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
    TransactionMarkerResponse,
    TxnOffsetCommitResponse,
)
from state.kafka.timers import DeadlineReached, TimerKind
from state.messages import ReleaseGroup, ReleaseGroupResponse

Event = (
    Received[AnyRequest]
    | Failed[AnyRequest]
    | DeadlineReached
    | Outage
    | Quarantine[DeadlineReached | Outage]
)

RESPONSE_TO: dict[type[AnyAnswered], type[AnyResponse]] = {
    JoinGroup: JoinGroupResponse,
    SyncGroup: SyncGroupResponse,
    Heartbeat: HeartbeatResponse,
    LeaveGroup: LeaveGroupResponse,
    OffsetCommit: OffsetCommitResponse,
    TxnOffsetCommit: TxnOffsetCommitResponse,
    TransactionMarker: TransactionMarkerResponse,
    OffsetFetch: OffsetFetchResponse,
    OffsetDelete: OffsetDeleteResponse,
    DescribeGroup: DescribeGroupResponse,
    DeleteGroup: DeleteGroupResponse,
    ConsumerGroupHeartbeat: ConsumerGroupHeartbeatResponse,
    ConsumerGroupDescribe: ConsumerGroupDescribeResponse,
    DescribeGroupConfigs: DescribeGroupConfigsResponse,
    AlterGroupConfigs: AlterGroupConfigsResponse,
    ReleaseGroup: ReleaseGroupResponse,
}


# The texts of refusals that have nothing to do with the request.
_REFUSALS = {
    ErrorCode.INVALID_GROUP_ID: "GroupId can't be empty.",
    ErrorCode.UNKNOWN_SERVER_ERROR: "The coordinator failed at this request, and nothing has changed.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The group is quarantined after a failure of the coordinator.",
}


def step(
    stored: KafkaGroup | ConfigsOnly | None,
    group_id: str,
    event: Event,
    now_ms: int,
    config: CoordinatorConfig,
) -> Effects:
    """Apply one event to a group at a time, and return the effects.

    `stored` is changed in place. It is the group, or the settings of a group that does not exist; None: there
    is neither. The returned effects hold what there is afterwards. `now_ms` is never before the group's
    clock. No client request raises: errors are answers. Requests, due deadlines and takeovers are events. The
    caller fires deadlines in time order (`state.timeline`).
    """
    group, kept = (None, stored) if isinstance(stored, ConfigsOnly) else (stored, None)
    context = StepContext(
        group, group_id, cause_of(event), now_ms, config, principal=_principal_of(event), kept=kept
    )
    before = _progress_of(group)
    context.noted_state = before[0] if isinstance(group, ConsumerGroup) else None
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        if group.quarantined is not None:
            _room(context).shift_deadlines(context, now_ms - group.clock_ms)
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
        settle(context, *before)
        retention.arm(context)
    return context.effects()


def _progress_of(group: KafkaGroup | None) -> tuple[str, bool]:
    """The state of a group, and whether the members of a consumer group are on their way to their targets."""
    if isinstance(group, ConsumerGroup):
        progress = group.progress
        return progress.state.value, progress.is_rebalancing
    return (GroupState.EMPTY if group is None else group.state).value, False


def reply_to(request: AnyAnswered, request_id: str) -> ReplyTo:
    return ReplyTo(request.reply_partition, request.correlation_id, request_id)


def _principal_of(event: Event) -> str | None:
    """Return the principal of the event's request. None for any other event, and for what the coordinator's
    own service writes.
    """
    if isinstance(event, (Received, Failed)) and not isinstance(event.request, Unanswered):
        return event.request.principal
    return None


def _received(context: StepContext, event: Received[AnyRequest]) -> None:
    request = event.request
    if not request.group_id and not isinstance(request, ConsumerGroupHeartbeat):  # row HB6
        return refuse(context, event, context.rule("P1"), ErrorCode.INVALID_GROUP_ID)
    if context.has_group and event.late_by_ms:
        context.record(
            context.rule("F3"),
            EntryType.APPLIED_LATE,
            "a request stands in the log behind a deadline that fired; it is applied at the group's clock",
            late_by_ms=event.late_by_ms,
        )
    if context.has_group and context.group.quarantined is not None and not isinstance(request, ReleaseGroup):
        return refuse(context, event, context.rule("F2"), ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if isinstance(request, TopicMetadata):
        topic_metadata(context, request)
        if context.has_group:
            _room(context).topic_metadata(context, request)
        return None
    if isinstance(request, RegexResolved):
        if context.has_group and isinstance(context.group, ConsumerGroup):
            regex_resolved(context, request)
        return None
    kind = type(request)
    handler = _HANDLERS.get(kind) or _room(context).HANDLERS[kind]
    handler(context, request, reply_to(request, event.request_id))


class _Rules(Protocol):
    """The rules of one protocol: `state.kafka.classic.entry` and `state.kafka.consumer.entry`."""

    HANDLERS: dict[type, Callable[[StepContext, Any, ReplyTo], None]]

    def deadline_reached(self, context: StepContext, deadline: DeadlineReached) -> None: ...
    def take_over(self, context: StepContext, outage: Outage) -> None: ...
    def shift_deadlines(self, context: StepContext, by_ms: int) -> None: ...
    def answer_parked(self, context: StepContext, row: RuleId) -> None: ...
    def release(self, context: StepContext) -> int | None: ...
    def topic_metadata(self, context: StepContext, request: TopicMetadata) -> None: ...


def _room(context: StepContext) -> _Rules:
    """The rules of the group's protocol. A group that does not exist has those of the classic protocol."""
    return consumer if context.has_group and isinstance(context.group, ConsumerGroup) else classic


def _deadline_reached(context: StepContext, deadline: DeadlineReached) -> None:
    """Handle a due deadline. The deadline is disarmed unless the handling arms it again."""
    context.group.last_fired_ms = max(context.group.last_fired_ms, deadline.deadline_ms)
    if deadline.kind is TimerKind.RETENTION:
        retention.retention_pass(context)
    else:
        _room(context).deadline_reached(context, deadline)


def _take_over(context: StepContext, outage: Outage) -> None:
    """Ended transactions are remembered longer by the outage in every group."""
    remember_longer(context, outage.length_ms)
    if context.group.quarantined is None:
        _room(context).take_over(context, outage)


def refuse(
    context: StepContext, event: Received[AnyRequest] | Failed[AnyRequest], rule: RuleId, error: ErrorCode
) -> None:
    """Answer any request with an error alone. As in Kafka, the answer to a JoinGroup repeats the
    member id.
    """
    request = event.request
    if isinstance(request, Unanswered):
        return
    fields = {"member_id": request.member_id} if isinstance(request, JoinGroup) else {}
    response = RESPONSE_TO[type(request)]
    if "error_message" in response.__struct_fields__:
        fields["error_message"] = _REFUSALS[error]
    context.reply(reply_to(request, event.request_id), response, rule, error, **fields)


def _quarantine(context: StepContext, event: Quarantine[DeadlineReached | Outage]) -> None:
    """Stop the group's deadlines, and answer every parked request with an error."""
    row = context.rule("F2")
    context.group.quarantined = event.error
    context.record(row, EntryType.QUARANTINED, f"{event.deadline} raised {event.error}")
    _room(context).answer_parked(context, row)


def release(context: StepContext, _: ReleaseGroup, to: ReplyTo) -> None:
    """Release the group. Its deadlines are still ahead, because `step` moved them with the group's clock."""
    row = context.rule("F4")
    if context.has_group and context.group.quarantined is not None:
        context.group.quarantined = None
        deadline_ms = _room(context).release(context)
        context.deadline(0)  # a retention pass may have become due
        context.record(
            row,
            EntryType.RELEASED,
            "released by an operator: sessions begin anew, rounds go on",
            deadline_ms=deadline_ms,
        )
    context.reply(to, ReleaseGroupResponse, row)


# A handler takes its request, changes the group, and answers now or later. These are for every group.
_HANDLERS: dict[type, Callable[[StepContext, Any, ReplyTo], None]] = {
    OffsetCommit: commit,
    TxnOffsetCommit: txn_commit,
    TransactionMarker: transaction_marker,
    OffsetFetch: fetch,
    OffsetDelete: delete_offsets,
    DescribeGroup: describe,
    DeleteGroup: delete_group,
    ReleaseGroup: release,
    ConsumerGroupHeartbeat: heartbeat,
    ConsumerGroupDescribe: describe_consumer_group,
    DescribeGroupConfigs: describe_configs,
    AlterGroupConfigs: alter_configs,
}
