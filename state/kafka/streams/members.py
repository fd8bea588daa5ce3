"""The members of a streams group: joining, continuing, and removal. Rows KSH23 to KSH42.

Source: GroupMetadataManager (getOrMaybeCreateDynamicStreamsMember, getOrMaybeCreateStaticStreamsMember,
throwIfStreamsGroupMemberEpochIsInvalid, streamsGroupLeave, streamsGroupFenceMember).
"""

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH, EntryType, MemberState
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat, StreamsGroupHeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import RuleId, StepContext
from state.kafka.modern import RequestRefused, bump, fenced, known_member, settle_emptied
from state.kafka.streams_group import NO_TASKS, Role, RoleTasks, StreamsGroup, StreamsGroupMember


class StreamsSender(Struct, frozen=True):
    """The sender of a heartbeat that joins or continues: its member, None if it is new, and the static member
    that it replaces. `displaced` is another member that has the sender's new member id. `rule` is the row
    that decided this.
    """

    rule: RuleId
    member: StreamsGroupMember | None = None
    replaced: StreamsGroupMember | None = None
    displaced: StreamsGroupMember | None = None


def identify(
    context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat, owned: RoleTasks | None
) -> StreamsSender:
    """Return the sender's identity without changing anything. Raise RequestRefused if the sender may not
    continue.
    """
    if request.member_epoch == 0:
        _check_size(context, group, request)
        return _joining(context, group, request)
    rows = ("KSH33", "KSH34", "KSH25")
    member = known_member(context, request, group.members, group.static_members, rows)
    return StreamsSender(_check_epoch(context, request, member, owned), member)


def _check_size(context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat) -> None:
    """Row KSH23: refuse a new member if the group is full. A returning static member is not new."""
    max_size = context.config.group_streams_max_size
    is_known = request.member_id in group.members or request.instance_id in group.static_members
    if len(group.members) < max_size or is_known:
        return
    message = f"Group {context.group_id} is full: group.streams.max.size is {max_size}."
    error = ErrorCode.GROUP_MAX_SIZE_REACHED
    raise RequestRefused(context.rule("KSH23"), error, message, EntryType.JOIN_REFUSED)


def _joining(context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat) -> StreamsSender:
    member, instance_id = group.members.get(request.member_id), request.instance_id
    if instance_id is None:
        return StreamsSender(context.rule("KSH24"), member)
    owner_id = group.static_members.get(instance_id)
    if owner_id is None:
        return StreamsSender(context.rule("KSH30"), member)
    owner = group.members[owner_id]
    if owner.is_away:
        displaced = None if member is owner else member
        return StreamsSender(context.rule("KSH31"), replaced=owner, displaced=displaced)
    if owner is member:  # its answer was lost (unlike Kafka, row KSB8)
        return StreamsSender(context.rule("KSB8"), member)
    message = (
        f"Instance id {instance_id} is in use by member {owner_id}, "
        "which has neither left the group nor lost its session."
    )
    error = ErrorCode.UNRELEASED_INSTANCE_ID
    raise RequestRefused(context.rule("KSH32"), error, message, EntryType.JOIN_REFUSED)


def _check_epoch(
    context: StepContext, request: StreamsGroupHeartbeat, member: StreamsGroupMember, owned: RoleTasks | None
) -> RuleId:
    """Rows KSH26 to KSH29: return the row that accepts the request's epoch."""
    received = request.member_epoch
    if received == member.member_epoch:
        return context.rule("KSH27")
    # The answer with the new epoch may have been lost.
    is_previous = member.previous_epoch == received < member.member_epoch
    if is_previous and owned is not None and _is_part_of(owned, member.assigned):
        return context.rule("KSH28")
    raise fenced(context, received, member, ("KSH26", "KSH29"), "tasks")


def _is_part_of(owned: RoleTasks, assigned: RoleTasks) -> bool:
    return all(set(owned.of(role)) <= set(assigned.of(role)) for role in Role)


def admit(
    context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat, sender: StreamsSender
) -> StreamsGroupMember:
    """Return the sender's member. A new one is added, or replaces the static member. The request's fields are
    not applied yet.
    """
    member, row = sender.member, sender.rule
    if sender.replaced is not None:
        if sender.displaced is not None:
            _remove(context, group, row, sender.displaced, displaced_by(sender.replaced))
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


def displaced_by(replaced: StreamsGroupMember) -> str:
    """Return the reason why a member is removed whose id a returning static member takes."""
    return f"joined again in the place of {replaced.member_id}"


def _replace_member(
    context: StepContext,
    group: StreamsGroup,
    rule: RuleId,
    old: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
) -> StreamsGroupMember:
    """Replace a static member with a copy under a new member id: at epoch 0, with the old one's tasks and
    target. The old member's timers end.
    """
    member_id = request.member_id
    target = group.target.get(old.member_id)
    member = replace(
        old,
        member_id=member_id,
        member_epoch=0,
        previous_epoch=0,
        assigned=NO_TASKS,
        pending=NO_TASKS,
        session_deadline_ms=None,
    )
    assigned, epochs = old.assigned, old.assignment_epochs
    group.remove(old)
    group.add(member)
    group.assign(member, assigned, NO_TASKS, epochs)
    if target is not None:
        group.target[member_id] = target
    reason = f"the static member came back, {old.member_id} is fenced"
    context.record_member(
        rule,
        EntryType.MEMBER_REPLACED,
        member,
        reason,
        replaced_member_id=old.member_id,
        process_id=request.process_id or old.process_id or None,
    )
    return member


# A heartbeat by which a member leaves, permanently or temporarily. Rows KSH36 to KSH41.


def leave(context: StepContext, request: StreamsGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Remove the member, or mark a static member as temporarily away. The member's epoch is not checked."""
    group, member_id, epoch = context.group_of(StreamsGroup), request.member_id, request.member_epoch
    rows = ("KSH39", "KSH39", "KSH38")
    member = known_member(context, request, group.members, group.static_members, rows)
    if request.shutdown_application:  # unlike Kafka only for a member (row KSB3)
        context.rule("KSB3")
        request_shutdown(context, group, member)
    if epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        row = context.rule("KSH41")
        _leave_for_a_while(context, group, row, member)
    else:
        row = context.rule("KSH38" if request.instance_id is None else "KSH40")
        fence(context, group, row, member, "left the group")
    context.reply(reply_to, StreamsGroupHeartbeatResponse, row, member_id=member_id, member_epoch=epoch)


def _leave_for_a_while(
    context: StepContext, group: StreamsGroup, rule: RuleId, member: StreamsGroupMember
) -> None:
    """Free the tasks that the static member was giving up. It keeps the others until its session ends, and
    that deadline is not renewed. Its state is STABLE, because it waits for nothing (unlike Kafka, row KSB9).
    """
    if member.is_away:
        return
    context.rule("KSB9")
    group.assign(member, member.assigned, NO_TASKS, dict.fromkeys(member.assigned.active, 0))
    member.member_epoch, member.state = LEAVE_GROUP_STATIC_MEMBER_EPOCH, MemberState.STABLE
    member.rebalance_deadline_ms = member.revoking_since_ms = None
    context.record_member(
        rule,
        EntryType.MEMBER_LEFT_TEMPORARILY,
        member,
        "the static member left for a while; its tasks wait for it until its session ends",
        deadline_ms=member.session_deadline_ms,
        member_epoch=member.member_epoch,
    )


def request_shutdown(context: StepContext, group: StreamsGroup, member: StreamsGroupMember) -> None:
    """Row KSH57: remember the first member that asks to shut the application down."""
    row = context.rule("KSH57")
    if not group.shutdown_requested_by:
        group.shutdown_requested_by = member.member_id
        reason = "asked to shut the application down; every member is told with its next heartbeat"
        context.record_member(row, EntryType.SHUTDOWN_REQUESTED, member, reason)


def fence(
    context: StepContext, group: StreamsGroup, rule: RuleId, member: StreamsGroupMember, reason: str
) -> None:
    """Row KSH42: remove the member with its tasks, and raise the group epoch. The topics are not looked at,
    and no target is computed: the next heartbeat does both. `reason` is a part of a sentence, such as "left
    the group".
    """
    _remove(context, group, rule, member, reason)
    bump(context, context.rule("KSH42"), removal(member, reason))
    if not group.members:
        settle_emptied(context)
        group.shutdown_requested_by = ""


def removal(member: StreamsGroupMember, reason: str) -> str:
    """Return the reason of the new group epoch after the removal of a member."""
    return f"member {member.member_id} was removed: {reason}"


def _remove(
    context: StepContext, group: StreamsGroup, rule: RuleId, member: StreamsGroupMember, reason: str
) -> None:
    group.remove(member)
    if member.user_endpoint is not None:  # unlike Kafka, so that others forget its endpoint (row KSB10)
        context.rule("KSB10")
        group.endpoint_epoch += 1
    context.retention_is_stale = True
    context.record_member(rule, EntryType.MEMBER_REMOVED, member, reason, member_epoch=member.member_epoch)
