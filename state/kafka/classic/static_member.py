"""The return of a static member with a new member id (KIP-345, KIP-814). Rows W1 to W5.

Source: GroupMetadataManager.java (updateStaticMemberThenRebalanceOrCompleteJoin), ClassicGroup.java
(replaceStaticMember).
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import JoinGroup, ReplyTo
from kafka_why.contract.kafka.responses import JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.kafka.states import GroupState
from state.kafka.classic import rebalance
from state.kafka.classic.session import arm_session
from state.kafka.classic_group import ClassicGroup, Member
from state.kafka.context import RuleId, StepContext

FIRST_VERSION_WITH_SKIP_ASSIGNMENT = 9  # KIP-814


def replace_static_member(
    context: StepContext, request: JoinGroup, reply_to: ReplyTo, member_id: str
) -> None:
    """Replace the member of a known instance id by a new member id. Rebalance only if it is necessary."""
    group = context.group_of(ClassicGroup)
    assert request.group_instance_id is not None
    old_leader_id = group.leader_id
    old = group.members[group.static_members[request.group_instance_id]]
    taken_over = context.rule("W1")
    member = _replace_member(context, taken_over, old, member_id)
    group.set_protocols(member, request.protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    context.record_member(
        taken_over,
        EntryType.MEMBER_REPLACED,
        member,
        f"the static member came back, {old.member_id} is fenced",
        client_reason=request.reason,
        replaced_member_id=old.member_id,
    )
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        _answer_without_rebalance(context, context.rule("W2"), request, reply_to, member, old_leader_id)
        return
    group.set_parked_join(member, reply_to)
    if group.state is GroupState.PREPARING_REBALANCE:
        context.rule("W5")
        rebalance.maybe_complete_join(context)
        return
    if group.state is GroupState.STABLE:
        row = context.rule("W3")
        reason = f"static member {member_id} changed the selected protocol"
    else:
        row = context.rule("W4")
        reason = f"static member {member_id} came back before the assignment was there"
    rebalance.prepare(context, row, reason, member_id=member_id, client_reason=request.reason)


def _replace_member(context: StepContext, rule: RuleId, old: Member, member_id: str) -> Member:
    """Row W1: fence the old id's parked requests, and replace the old member by a copy with the new id."""
    group = context.group_of(ClassicGroup)
    fenced = rule, ErrorCode.FENCED_INSTANCE_ID
    if old.parked_join is not None:
        context.reply(old.parked_join, JoinGroupResponse, *fenced, member_id=old.member_id)
    if old.parked_sync is not None:
        context.reply(old.parked_sync, SyncGroupResponse, *fenced)
    was_leader = group.leader_id == old.member_id
    group.remove(old.member_id)
    member = Member(
        member_id=member_id,
        group_instance_id=old.group_instance_id,
        client_id=old.client_id,
        client_host=old.client_host,
        session_timeout_ms=old.session_timeout_ms,
        rebalance_timeout_ms=old.rebalance_timeout_ms,
        protocols=old.protocols,
        assignment=old.assignment,
        pending_sync=old.pending_sync,
    )
    group.add(member, group.protocol_type or "")
    if was_leader:
        group.leader_id = member_id
    arm_session(context, member)  # still with the old session timeout, as in Kafka
    return member


def _answer_without_rebalance(
    context: StepContext,
    rule: RuleId,
    request: JoinGroup,
    reply_to: ReplyTo,
    member: Member,
    old_leader_id: str | None,
) -> None:
    """Row W2: answer at once. A returning leader must not assign again.

    The answer says so by skip_assignment. Versions without that field get the leader's old id as the leader.
    """
    if request.api_version >= FIRST_VERSION_WITH_SKIP_ASSIGNMENT:
        is_leader = context.group_of(ClassicGroup).leader_id == member.member_id
        rebalance.answer_join(context, rule, reply_to, member, skip_assignment=is_leader)
        return
    group = context.group_of(ClassicGroup)
    context.reply(
        reply_to,
        JoinGroupResponse,
        rule,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=old_leader_id,
        member_id=member.member_id,
    )
