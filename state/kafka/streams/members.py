"""The members of a streams group: how the sender of a heartbeat is identified, and how members are added and
removed. Rows KSH23 to KSH42.

Source: GroupMetadataManager (getOrMaybeCreateDynamicStreamsMember, getOrMaybeCreateStaticStreamsMember,
throwIfStreamsGroupMemberEpochIsInvalid, streamsGroupLeave, streamsGroupFenceMember).

A row, such as KSH24, is a rule of docs/rules-streams.md. `context.cite` records that a row was applied.
"""

from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from state.kafka.context import RuleId, StepContext
from state.kafka.modern import bump
from state.kafka.modern_members import (
    JoinRows,
    LeaveRows,
    MemberEpochRows,
    MemberRows,
    SenderIdentity,
    SenderRows,
    find_sender,
    group_full,
    identify_sender,
    leave_by_epoch,
    leave_temporarily,
    replace_member,
)
from state.kafka.streams_group import NO_TASKS, RoleTasks, StreamsGroup, StreamsGroupMember


class StreamsSender(SenderIdentity[StreamsGroupMember], frozen=True):
    """The sender of a heartbeat.

    A sender that replaces a static member may have the member id of another member of the group. `displaced`
    is this other member, which is removed.
    """

    displaced: StreamsGroupMember | None = None


_SENDER_ROWS = SenderRows(
    # A member that has its instance id repeats a join whose answer was lost (unlike Kafka, row KSB8).
    JoinRows(new="KSH24", known="KSH24", new_instance="KSH30", own_instance="KSB8", instance_in_use="KSH32"),
    MemberRows(unknown_instance="KSH33", fenced_instance="KSH34", unknown_member="KSH25"),
    MemberEpochRows(current="KSH27", higher="KSH26", previous="KSH28", lower="KSH29"),
)


def identify(
    context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat, owned: RoleTasks | None
) -> StreamsSender:
    """Return the sender's identity without changing anything. Raise RequestRefused if the group is full, or
    if the ids or the epoch of the sender are refused.
    """
    if request.member_epoch == 0:
        _check_size(context, group, request)
    row, member, replaced = identify_sender(context, request, group, owned, _SENDER_ROWS, _row_of_replacement)
    displaced = None if replaced is None else group.members.get(request.member_id)
    if displaced is replaced:  # the static member returns with its own member id
        displaced = None
    return StreamsSender(row, request.member_id, member, replaced, displaced)


def _check_size(context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat) -> None:
    """Row KSH23: refuse a new member if the group is full. A returning static member is not new."""
    max_size = context.config.group_streams_max_size
    is_member = request.member_id in group.members or request.instance_id in group.static_members
    if len(group.members) < max_size or is_member:
        return
    raise group_full(context, "KSH23", "group.streams.max.size", max_size, EntryType.JOIN_REFUSED)


def _row_of_replacement(owner: StreamsGroupMember) -> str | None:
    """Return the row by which another process takes over the member's instance id, or None if it may not."""
    return "KSH31" if owner.is_away else None


def admit(
    context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat, sender: StreamsSender
) -> StreamsGroupMember:
    """Return the sender's member. A new sender is added as a member, or replaces a static member. `update`
    applies the fields of the request later.
    """
    member, row = sender.member, sender.rule
    if sender.replaced is not None:
        # The sender takes over the instance id of `replaced`. It may also have the member id of `displaced`.
        if sender.displaced is not None:
            _remove(context, group, row, sender.displaced, displacement_reason(sender.replaced))
        return _replace_member(context, group, row, sender.replaced, request)
    if member is None:
        member = StreamsGroupMember(
            request.member_id,
            request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
        )
        group.add(member)
        context.retention_is_stale = True
        process_id = request.process_id or None
        context.record_member(row, EntryType.MEMBER_ADDED, member, "joined the group", process_id=process_id)
    elif request.member_epoch == 0:
        reason = "joined again with its member id; it keeps its epoch and its tasks"
        context.record_member(
            row,
            EntryType.MEMBER_REJOINED,
            member,
            reason,
            member_epoch=member.member_epoch,
            process_id=request.process_id or member.process_id or None,
        )
    return member


def displacement_reason(replaced: StreamsGroupMember) -> str:
    """Return why a member is removed: it has joined again and replaces the static member `replaced`."""
    return f"joined again in the place of {replaced.member_id}"


def _replace_member(
    context: StepContext,
    group: StreamsGroup,
    rule: RuleId,
    old: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
) -> StreamsGroupMember:
    """Replace the static member `old` with a copy that has a new member id and the epoch 0. The copy keeps
    the tasks and the target of `old`, but not its timers.
    """
    member = replace(
        old,
        member_id=request.member_id,
        member_epoch=0,
        previous_epoch=0,
        assigned=NO_TASKS,
        pending=NO_TASKS,
        session_deadline_ms=None,
    )
    held = (old.assigned, NO_TASKS, old.assignment_epochs)
    process_id = request.process_id or old.process_id or None
    replace_member(context, group, rule, old, member, *held, process_id=process_id)
    return member


# A heartbeat by which a member leaves, permanently or temporarily. Rows KSH36 to KSH41.


_LEAVING_MEMBER_ROWS = MemberRows(unknown_instance="KSH39", fenced_instance="KSH39", unknown_member="KSH38")
_LEAVE_ROWS = LeaveRows(dynamic="KSH38", static="KSH40", temporarily="KSH41")


def leave(context: StepContext, request: StreamsGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Remove the member, or mark a static member as temporarily away. The member's epoch is not checked."""
    group = context.group_of(StreamsGroup)
    member = find_sender(context, request, group, _LEAVING_MEMBER_ROWS)
    if request.shutdown_application:  # Kafka does this even for a sender that is no member (row KSB3)
        context.cite("KSB3")
        request_shutdown(context, group, member)
    leave_by_epoch(
        context,
        request,
        reply_to,
        _LEAVE_ROWS,
        remove=lambda row: fence(context, group, row, member, "left the group"),
        mark_away=lambda row: _leave_temporarily(context, group, row, member),
    )


def _leave_temporarily(
    context: StepContext, group: StreamsGroup, rule: RuleId, member: StreamsGroupMember
) -> None:
    """Mark the static member as away, unless it is already."""
    if not member.is_away:
        context.cite("KSB9")
        leave_temporarily(context, group, rule, member)


def request_shutdown(context: StepContext, group: StreamsGroup, member: StreamsGroupMember) -> None:
    """Row KSH57: store the first member that requests the shutdown of the application."""
    row = context.cite("KSH57")
    if not group.shutdown_requested_by:
        group.shutdown_requested_by = member.member_id
        reason = "asked to shut the application down; every member is told with its next heartbeat"
        context.record_member(row, EntryType.SHUTDOWN_REQUESTED, member, reason)


def fence(
    context: StepContext, group: StreamsGroup, rule: RuleId, member: StreamsGroupMember, reason: str
) -> None:
    """Row KSH42: remove the member with its tasks, and raise the group epoch. The next heartbeat of another
    member checks the topics and computes the target. `reason` is a part of a sentence, such as "left the
    group".
    """
    _remove(context, group, rule, member, reason)
    bump(context, context.cite("KSH42"), removal_reason(member, reason))
    if not group.members:
        group.shutdown_requested_by = ""
        group.creation_failures.clear()


def removal_reason(member: StreamsGroupMember, reason: str) -> str:
    """Return the reason of the new group epoch after the removal of a member."""
    return f"member {member.member_id} was removed: {reason}"


def _remove(
    context: StepContext, group: StreamsGroup, rule: RuleId, member: StreamsGroupMember, reason: str
) -> None:
    """Remove the member with its tasks, without a new group epoch."""
    group.remove(member)
    if member.user_endpoint is not None:  # unlike Kafka, so that others forget its endpoint (row KSB10)
        context.cite("KSB10")
        group.endpoint_epoch += 1
    context.retention_is_stale = True
    context.record_member(rule, EntryType.MEMBER_REMOVED, member, reason, member_epoch=member.member_epoch)
