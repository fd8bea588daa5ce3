"""The end of a membership: a heartbeat with epoch -1, or the end of the session. Rows SH29 to SH33, SG4.

Source: GroupMetadataManager (shareGroupLeave, shareGroupFenceMember).
"""

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import ShareGroupHeartbeatResponse
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.epochs import bump, come_to_rest
from state.kafka.modern.refusal import no_member
from state.kafka.modern.topics import look
from state.kafka.share.overdue import tasks_overdue
from state.kafka.share.parked import parked_overdue
from state.kafka.share.settings import SETTINGS
from state.kafka.share.topics import forget_unused
from state.kafka.share_group import LEAVE_GROUP_MEMBER_EPOCH, ShareGroup, ShareMember
from state.kafka.timers import DeadlineReached, TimerKind


def leave(context: StepContext, request: ShareGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Remove the member. Its epoch is not checked. Raise Refused if it is none."""
    member = context.group_of(ShareGroup).members.get(request.member_id)
    if member is None:
        raise no_member(context, "SH30", request.member_id)
    row = context.rule("SH31")
    _remove(context, row, member, "left the group")
    context.reply(
        reply_to,
        ShareGroupHeartbeatResponse,
        row,
        member_id=member.member_id,
        member_epoch=LEAVE_GROUP_MEMBER_EPOCH,
    )


def deadline_reached(context: StepContext, deadline: DeadlineReached) -> None:
    """Remove the member whose session is over, answer requests that have waited for too long, or note tasks
    that are open for long.
    """
    if deadline.kind is TimerKind.PARKED:
        parked_overdue(context, deadline)
        return
    if deadline.kind is TimerKind.TASK:
        tasks_overdue(context)
        return
    member = context.group_of(ShareGroup).members[deadline.member_id]
    timeout_ms = SETTINGS.of(context).session_timeout_ms
    reason = f"no heartbeat within the session timeout of {timeout_ms} ms"
    _remove(context, context.rule("SH33"), member, reason)


def _remove(context: StepContext, rule: RuleId, member: ShareMember, reason: str) -> None:
    """Remove the member with its partitions, and raise the group epoch. No target is computed: the next
    heartbeat does it.
    """
    group = context.group_of(ShareGroup)
    group.remove(member)
    context.record_member(rule, EntryType.MEMBER_REMOVED, member, reason, member_epoch=member.member_epoch)
    forget_unused(context)
    look(group)
    bump(context, rule, f"member {member.member_id} was removed: {reason}")
    if not group.members:
        come_to_rest(context)
        context.record(context.rule("SH32"), EntryType.EMPTY, "the last member is gone")
