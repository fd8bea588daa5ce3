"""ShareGroupHeartbeat: a member joins, keeps its session alive, and gets what its target has. Rows SH11 to
SH28.

Source: GroupCoordinatorService.shareGroupHeartbeat, GroupMetadataManager.shareGroupHeartbeat.
"""

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import ShareGroupHeartbeatResponse
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.answered import assigned_partitions
from state.kafka.modern.refusal import Client, Refused, record_refusal
from state.kafka.modern.topics import merge_reported
from state.kafka.share.identity import check_room, identify
from state.kafka.share.initialization import ask_for_initialization
from state.kafka.share.leaving import leave
from state.kafka.share.member_update import update_member
from state.kafka.share.no_share_group import check_may_create
from state.kafka.share.pace import next_heartbeat_ms
from state.kafka.share.reconcile import reconcile
from state.kafka.share.request_checks import check_request
from state.kafka.share.settings import SETTINGS
from state.kafka.share.target import is_assignment_pending, maybe_update_target
from state.kafka.share_group import ShareGroup, ShareMember


def heartbeat(context: StepContext, request: ShareGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle a heartbeat to a share group. An error changes nothing of the group."""
    try:
        check_request(context, request)
        if request.member_epoch < 0:
            leave(context, request, reply_to)
            return
        row, member = identify(context, request)
        check_room(context, request, context.group_of(ShareGroup))
    except Refused as refused:
        _refuse(context, request, refused, reply_to)
    else:
        _beat(context, request, row, member, reply_to)


def heartbeat_no_share_group(context: StepContext, request: ShareGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle a heartbeat to a group id that has no share group. One that joins creates it."""
    try:
        check_request(context, request)
        check_may_create(context, request)
        check_room(context, request, None)
    except Refused as refused:
        _refuse(context, request, refused, reply_to)
        return
    reason = "first ShareGroupHeartbeat for this group id"
    context.create_group(ShareGroup, context.rule("SH12"), reason)
    row, member = identify(context, request)
    _beat(context, request, row, member, reply_to)


def _refuse(context: StepContext, request: ShareGroupHeartbeat, refused: Refused, reply_to: ReplyTo) -> None:
    client = Client(request.client_id, request.client_host)
    if context.has_group:
        record_refusal(context, refused, request.member_id, client)
    context.reply(
        reply_to, ShareGroupHeartbeatResponse, refused.rule, refused.error, error_message=refused.message
    )


def _beat(
    context: StepContext,
    request: ShareGroupHeartbeat,
    row: RuleId,
    known: ShareMember | None,
    reply_to: ReplyTo,
) -> None:
    """Handle the heartbeat of a sender that joins, or is a member. The steps have the order of Kafka's."""
    group = context.group_of(ShareGroup)
    if request.topics is not None:
        merge_reported(context, group, request.topics)
    is_pending = is_assignment_pending(group)
    member = _admit(context, request, row) if known is None else known
    if known is not None and request.member_epoch == 0:
        reason = "joined again with its member id; it keeps its epoch and its partitions"
        context.record_member(
            row, EntryType.MEMBER_REJOINED, member, reason, member_epoch=member.member_epoch
        )
    assigned_before = member.assigned
    is_bumped = update_member(context, member, request, is_pending)
    maybe_update_target(context)
    reconcile(context, member, is_bumped)
    member.session_deadline_ms = context.deadline(SETTINGS.of(context).session_timeout_ms)  # row SH26
    ask_for_initialization(context)
    has_all = (
        request.member_epoch == 0
        or request.subscribed_topic_names is not None
        or member.assigned != assigned_before
    )
    context.reply(
        reply_to,
        ShareGroupHeartbeatResponse,
        context.rule("SH28"),
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=next_heartbeat_ms(context, member),
        assignment=assigned_partitions(member.assigned) if has_all else None,
    )


def _admit(context: StepContext, request: ShareGroupHeartbeat, row: RuleId) -> ShareMember:
    member = ShareMember(request.member_id, client_id=request.client_id, client_host=request.client_host)
    context.group_of(ShareGroup).add(member)
    context.record_member(row, EntryType.MEMBER_ADDED, member, "joined the group")
    return member
