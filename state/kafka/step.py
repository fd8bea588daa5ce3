"""The entry of Kafka's side: `step` applies one event to one group."""

from collections.abc import Callable
from typing import Any

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.inputs import Failed, Outage, Quarantine, Received, cause_of
from state.kafka import expiry, rebalance
from state.kafka.admin import delete_group, describe
from state.kafka.context import RuleId, StepContext
from state.kafka.effects import Effects
from state.kafka.group import Group
from state.kafka.heartbeat import heartbeat
from state.kafka.history import EntryType
from state.kafka.join import join
from state.kafka.leave import leave
from state.kafka.offsets import retention
from state.kafka.offsets.commit import commit
from state.kafka.offsets.delete import delete_offsets
from state.kafka.offsets.fetch import fetch
from state.kafka.offsets.topic_metadata import topic_metadata
from state.kafka.offsets.transactions import transaction_marker, txn_commit
from state.kafka.requests import (
    AnyAnswered,
    AnyRequest,
    DeleteGroup,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
    TransactionMarker,
    TxnOffsetCommit,
)
from state.kafka.responses import (
    AnyResponse,
    DeleteGroupResponse,
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
from state.kafka.sync import sync
from state.kafka.takeover import shift_deadlines, take_over
from state.kafka.timers import DeadlineReached
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
    ReleaseGroup: ReleaseGroupResponse,
}


def step(group: Group | None, group_id: str, event: Event, now_ms: int, config: CoordinatorConfig) -> Effects:
    """Apply one event to a group at a time, and return the effects.

    `group` is changed in place; None means that the group does not exist. The returned effects hold the group
    afterwards. `now_ms` is never before the group's clock. No client request raises: errors are answers.
    Requests, due deadlines and takeovers are events. The caller fires deadlines in time order
    (`state.timeline`).
    """
    context = StepContext(group, group_id, cause_of(event), now_ms, config, principal=_principal_of(event))
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        if group.quarantined is not None:
            shift_deadlines(context, now_ms - group.clock_ms)
        group.clock_ms = now_ms
    match event:
        case Received():
            _received(context, event)
        case DeadlineReached():
            expiry.deadline_reached(context, event)
        case Outage():
            take_over(context, event)
        case Failed():
            refuse(context, event, context.rule("F1"), ErrorCode.UNKNOWN_SERVER_ERROR)
        case Quarantine():
            _quarantine(context, event)
    if context.has_group:
        retention.arm(context)
    return context.effects()


def reply_to(request: AnyAnswered, request_id: str) -> ReplyTo:
    return ReplyTo(request.reply_partition, request.correlation_id, request_id)


def _principal_of(event: Event) -> str | None:
    """Return the principal of the event's request. None for any other event, and for TopicMetadata, which the
    coordinator's own service writes.
    """
    if isinstance(event, (Received, Failed)) and not isinstance(event.request, TopicMetadata):
        return event.request.principal
    return None


def _received(context: StepContext, event: Received[AnyRequest]) -> None:
    request = event.request
    if not request.group_id:
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
        return topic_metadata(context, request)
    HANDLERS[type(request)](context, request, reply_to(request, event.request_id))


def refuse(
    context: StepContext, event: Received[AnyRequest] | Failed[AnyRequest], rule: RuleId, error: ErrorCode
) -> None:
    """Answer any request with an error alone. As in Kafka, the answer to a JoinGroup repeats the
    member id.
    """
    request = event.request
    if isinstance(request, TopicMetadata):
        return
    echoed = {"member_id": request.member_id} if isinstance(request, JoinGroup) else {}
    context.reply(reply_to(request, event.request_id), RESPONSE_TO[type(request)], rule, error, **echoed)


def _quarantine(context: StepContext, event: Quarantine[DeadlineReached | Outage]) -> None:
    """Stop the group's deadlines, and answer every parked request with an error."""
    row = context.rule("F2")
    group = context.group
    group.quarantined = event.error
    context.record(row, EntryType.QUARANTINED, f"{event.deadline} raised {event.error}")
    for member in group.members.values():
        if member.parked_join is not None:
            context.reply(member.parked_join, JoinGroupResponse, row, ErrorCode.UNKNOWN_SERVER_ERROR)
        if member.parked_sync is not None:
            context.reply(member.parked_sync, SyncGroupResponse, row, ErrorCode.UNKNOWN_SERVER_ERROR)
        group.set_parked_join(member, None)
        member.parked_sync = None
        member.is_new = False


def release(context: StepContext, _: ReleaseGroup, to: ReplyTo) -> None:
    """Release the group. Its deadlines are still ahead, because `step` moved them with the group's clock."""
    row = context.rule("F4")
    if context.has_group and context.group.quarantined is not None:
        context.group.quarantined = None
        rebalance.renew_due_round(context)
        context.deadline(0)  # a retention pass may have become due
        context.record(
            row,
            EntryType.RELEASED,
            "released by an operator: sessions begin anew, rounds go on",
            deadline_ms=context.group.join_phase.deadline_ms if context.group.join_phase else None,
        )
    context.reply(to, ReleaseGroupResponse, row)


# A handler takes its request, changes the group, and answers now or later.
HANDLERS: dict[type[AnyAnswered], Callable[[StepContext, Any, ReplyTo], None]] = {
    JoinGroup: join,
    SyncGroup: sync,
    Heartbeat: heartbeat,
    LeaveGroup: leave,
    OffsetCommit: commit,
    TxnOffsetCommit: txn_commit,
    TransactionMarker: transaction_marker,
    OffsetFetch: fetch,
    OffsetDelete: delete_offsets,
    DescribeGroup: describe,
    DeleteGroup: delete_group,
    ReleaseGroup: release,
}
