"""SyncGroup, Heartbeat and LeaveGroup to a group of the consumer protocol. Rows CV19 to CV34.

The generation of a classic member is its member epoch. Source: GroupMetadataManager
(classicGroupSyncToConsumerGroup, classicGroupHeartbeatToConsumerGroup, classicGroupLeaveToConsumerGroup).
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import MemberState
from kafka_why.contract.kafka.requests import Heartbeat, LeaveGroup, LeavingMember, ReplyTo, SyncGroup
from kafka_why.contract.kafka.responses import (
    HeartbeatResponse,
    LeaveGroupResponse,
    LeftMember,
    SyncGroupResponse,
)
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE
from state.kafka.classic import sync as classic_sync
from state.kafka.consumer.members import fence
from state.kafka.consumer.migration import assignment_bytes
from state.kafka.consumer.target import arm_session, maybe_update_target
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember
from state.kafka.context import StepContext, Verdict, deciding
from state.kafka.modern.target import bump
from state.kafka.modern.topics import look


def sync(context: StepContext, request: SyncGroup, reply_to: ReplyTo) -> None:
    """Answer a classic member with what it may use. The assignments that the request carries are ignored."""
    refusal = classic_sync.validate_request(context, request) or _validate(context, request)
    if refusal is not None:
        context.reply(reply_to, SyncGroupResponse, *refusal)
        return
    group = context.group_of(ConsumerGroup)
    member, classic = _classic_member(group, request.member_id)
    first = classic.protocols[0]
    if _differ(request.protocol_type, PROTOCOL_TYPE) or _differ(request.protocol_name, first.name):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        context.reply(reply_to, SyncGroupResponse, context.rule("CV23"), error)
        return
    if _is_behind(group, member) and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _await_join(context, member, classic)
        error = ErrorCode.REBALANCE_IN_PROGRESS
        context.reply(reply_to, SyncGroupResponse, context.rule("CV24"), error)
        return
    classic.sync_deadline_ms = None
    arm_session(context, member)
    context.reply(
        reply_to,
        SyncGroupResponse,
        context.rule("CV25"),
        protocol_type=PROTOCOL_TYPE,
        protocol_name=first.name,
        assignment=assignment_bytes(member.assigned, group.names_by_id(), first.metadata),
    )


def heartbeat(context: StepContext, request: Heartbeat, reply_to: ReplyTo) -> None:
    """Renew the session of a classic member. The answer says whether the member has to join again."""
    refusal = _validate(context, request)
    if refusal is not None:
        context.rule("CV26")
        context.reply(reply_to, HeartbeatResponse, *refusal)
        return
    group = context.group_of(ConsumerGroup)
    member, classic = _classic_member(group, request.member_id)
    arm_session(context, member)
    _update_target_of_classic_members(context, group)
    if not _has_to_join(context, group, member):
        context.reply(reply_to, HeartbeatResponse, context.rule("CV28"))
        return
    _await_join(context, member, classic)
    context.reply(reply_to, HeartbeatResponse, context.rule("CV27"), ErrorCode.REBALANCE_IN_PROGRESS)


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    """Remove members of either protocol, all at once (row CV34)."""
    found: dict[str, str | None] = {}
    verdicts = [_leave_one(context, leaving, found) for leaving in request.members]
    if found:
        row = context.rule("CV34")
        # A member on the consumer protocol leaves by a heartbeat, so only an administrator names it here.
        group = context.group_of(ConsumerGroup)
        is_own = any(group.members[member_id].classic is not None for member_id in found)
        reason = "left the group" if is_own else "an administrator asked for it"
        fence(context, row, list(found), reason, client_reasons=found)
    members = [
        LeftMember(leaving.member_id, leaving.group_instance_id, error)
        for leaving, (_, error) in zip(request.members, verdicts, strict=True)
    ]
    context.reply(reply_to, LeaveGroupResponse, deciding(verdicts), members=members)


def _validate(context: StepContext, request: SyncGroup | Heartbeat) -> Verdict | None:
    """Rows CV19 to CV22: return the first that applies, None if none does."""
    group = context.group_of(ConsumerGroup)
    error = group.validate_instance(request.member_id, request.group_instance_id)
    if error is ErrorCode.FENCED_INSTANCE_ID:
        return context.rule("CV20"), error
    member = group.members.get(request.member_id)
    if error is not ErrorCode.NONE or member is None:
        return context.rule("CV19"), ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None:
        return context.rule("CV21"), ErrorCode.UNKNOWN_MEMBER_ID
    if request.generation_id != member.member_epoch:
        return context.rule("CV22"), ErrorCode.ILLEGAL_GENERATION
    return None


def _classic_member(group: ConsumerGroup, member_id: str) -> tuple[ConsumerMember, ClassicMember]:
    member = group.members[member_id]
    assert member.classic is not None, "the member was checked to be on the classic protocol"
    return member, member.classic


def _differ(given: str | None, own: str) -> bool:
    return given is not None and given != own


def _is_behind(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Row CV29: the epoch that counts is that of the target. A new group epoch makes no member join again as
    long as its target is not computed (KAFKA-20272).
    """
    return member.member_epoch < group.assignment_epoch


def _has_to_join(context: StepContext, group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether another JoinGroup would take the member a step further."""
    if _is_behind(group, member):
        context.rule("CV29")
        return True
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        context.rule("CV30")
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and _are_all_released(group, member)


def _are_all_released(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether no other member holds a partition of the member's target."""
    return all(
        group.held.get(topic_id, {}).get(number, member.member_id) == member.member_id
        for topic_id, numbers in group.target.get(member.member_id, {}).items()
        for number in numbers
    )


def _await_join(context: StepContext, member: ConsumerMember, classic: ClassicMember) -> None:
    """Row TM4: arm the member's join timer unless it is armed."""
    if classic.join_deadline_ms is None:
        classic.join_deadline_ms = context.deadline(member.rebalance_timeout_ms)


def _update_target_of_classic_members(context: StepContext, group: ConsumerGroup) -> None:
    """Row DN13: in a group without members on the consumer protocol, Heartbeats compute a due target.

    Otherwise the partitions of a member that left stay unassigned, because classic members that are at their
    target do not join again. In Kafka they do stay so.
    """
    if any(member.classic is None for member in group.members.values()):
        return
    if group.metadata_stale and look(group):
        bump(context, context.rule("DN13"), "the topics that members subscribe to have changed")
    if group.group_epoch > group.assignment_epoch:
        context.rule("DN13")
        maybe_update_target(context)


def _leave_one(context: StepContext, leaving: LeavingMember, found: dict[str, str | None]) -> Verdict:
    """Rows CV31 to CV33. A member that may leave is added to `found` with its client's reason."""
    group = context.group_of(ConsumerGroup)
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if instance_id is not None and not member_id:
        member_id = group.static_members.get(instance_id, "")
    else:
        error = group.validate_instance(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return context.rule("CV33"), error
    if member_id not in group.members:
        return context.rule("CV33"), ErrorCode.UNKNOWN_MEMBER_ID
    found.setdefault(member_id, leaving.reason)
    return context.rule("CV31" if instance_id is None else "CV32"), ErrorCode.NONE
