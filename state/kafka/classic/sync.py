"""SyncGroup: the leader sends the assignments, every member fetches its own. Rows S0 to S9."""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.requests import OversizedRequest, ReplyTo, SyncGroup
from kafka_why.contract.kafka.responses import OversizedRequestResponse, SyncGroupResponse
from state.kafka.classic import rebalance
from state.kafka.classic.rebalance import arm_session
from state.kafka.classic_group import ClassicGroup, Member
from state.kafka.context import StepContext, Verdict
from state.kafka.protocol import FAILED, reason_of, refuse_join

FIRST_VERSION_WITH_PROTOCOL = 5  # KIP-559


def sync(context: StepContext, request: SyncGroup, reply_to: ReplyTo) -> None:
    """Validate the member and its generation, then act by the group's state."""
    refusal = validate(context, request)
    if refusal is not None:
        context.reply(reply_to, SyncGroupResponse, *refusal)
        return
    group = context.group_of(ClassicGroup)
    member = group.members[request.member_id]
    if group.state is GroupState.PREPARING_REBALANCE:
        context.reply(reply_to, SyncGroupResponse, context.rule("S6"), ErrorCode.REBALANCE_IN_PROGRESS)
        return
    remove_pending_sync_member(group, member)
    if group.state is GroupState.STABLE:
        # The session is not re-armed. Kafka 2.x re-armed it, current Kafka does not.
        rebalance.answer_sync(context, context.rule("S9"), reply_to, member)
        return
    is_leader = group.leader_id == member.member_id
    row = context.rule("S8" if is_leader else "S7")
    if member.parked_sync is not None:
        rebalance.supersede(context, row, member.parked_sync, "the member sent a newer SyncGroup")
    member.parked_sync = reply_to
    if is_leader:
        assignments = {a.member_id: a.assignment for a in request.assignments}
        rebalance.become_stable(context, row, assignments, f"leader {group.leader_id} brought the assignment")


def validate_request(context: StepContext, request: SyncGroup | OversizedRequest) -> Verdict | None:
    """Row S0: the check that does not need a group. None if the request passes."""
    lacks_protocol = request.protocol_type is None or request.protocol_name is None
    if request.api_version >= FIRST_VERSION_WITH_PROTOCOL and lacks_protocol:
        return context.rule("S0"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return None


def validate(context: StepContext, request: SyncGroup | OversizedRequest) -> Verdict | None:
    """Rows S0 to S5: return the first that applies, None if none does."""
    refusal = validate_request(context, request)
    if refusal is not None:
        return refusal
    group = context.group_of(ClassicGroup)
    if group.state is GroupState.EMPTY:
        return context.rule("S1"), ErrorCode.UNKNOWN_MEMBER_ID
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return context.rule("S3"), error
    if request.generation_id != group.generation:
        return context.rule("S4"), ErrorCode.ILLEGAL_GENERATION
    if _differ(request.protocol_type, group.protocol_type) or _differ(
        request.protocol_name, group.protocol_name
    ):
        return context.rule("S5"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return None


def _differ(given: str | None, own: str | None) -> bool:
    """Whether both values are set and differ. A group in its first rebalance has no protocol yet."""
    return given is not None and own is not None and given != own


def remove_pending_sync_member(group: ClassicGroup, member: Member) -> None:
    """Note that the member has sent its SyncGroup. The last one disarms the sync deadline."""
    group.set_pending_sync(member, False)
    if not group.pending_syncs:
        group.sync_deadline_ms = None


# A JoinGroup or SyncGroup that is too large for the log. Rows J9, S10 and S11.
#
# Source: GroupMetadataManager.java (classicGroupSync), where the record of the group is too large for
# `__consumer_offsets`. Kafka writes no record of a JoinGroup, so there the SyncGroup fails.


def oversized(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse the request for good. If it has the group's assignment, the round fails."""
    if request.kind == "JoinGroup":
        refuse_join(context, context.rule("J9"), request, reply_to)
    else:
        context.reply(reply_to, OversizedRequestResponse, *_sync(context, request))


def oversized_no_group(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Create the group for a JoinGroup, so that its history says why there are no members."""
    if request.kind == "SyncGroup":
        error = ErrorCode.UNKNOWN_MEMBER_ID
        context.reply(reply_to, OversizedRequestResponse, context.rule("S1"), error)
        return
    row = context.rule("J9")
    context.create_group(ClassicGroup, row, "first JoinGroup for this group id")
    refuse_join(context, row, request, reply_to)


def _sync(context: StepContext, request: OversizedRequest) -> Verdict:
    refusal = validate(context, request)
    if refusal is not None:
        return refusal
    group = context.group_of(ClassicGroup)
    member = group.members[request.member_id]
    if group.state is GroupState.PREPARING_REBALANCE:
        return context.rule("S6"), ErrorCode.REBALANCE_IN_PROGRESS
    if group.state is GroupState.STABLE or group.leader_id != member.member_id:
        return context.rule("S11"), FAILED
    row = context.rule("S10")
    remove_pending_sync_member(group, member)
    rebalance.reset_assignments(context, row, FAILED)
    arm_session(context, member)
    rebalance.prepare(context, row, reason_of(request), member_id=member.member_id)
    return row, FAILED
