"""The requests of members of a classic group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

A request is parked if a later step answers it. A pending id is a member id that the coordinator has assigned
and that no member has joined with yet.

A row, such as J4, is a rule of docs/rules.md. `context.cite` records that a row was applied.
"""

from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.kafka.requests import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OversizedRequest,
    ReplyTo,
    SyncGroup,
)
from kafka_why.contract.kafka.responses import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    OversizedRequestResponse,
    SyncGroupResponse,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.classic import assignment, rebalance
from state.kafka.classic.assignment import record_topics
from state.kafka.classic.rebalance import arm_session
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember, PendingMember
from state.kafka.context import RuleAndError, RuleId, StepContext, deciding_rule, new_member_id, restart_group
from state.kafka.protocol import OVERSIZED_ERROR, oversize_reason, refuse_join

# JoinGroup: admission of a member, its id, and the rebalance that follows. Rows J, A, N, E, U.


FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4  # KIP-394


def join(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Handle a JoinGroup to a group of the classic protocol."""
    refusal = validate_join(context, request)
    if refusal is not None:
        return _refuse_join(context, reply_to, refusal, request.member_id)
    return _admit(context, request, reply_to)


def join_no_group(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Rows J4 and J5: the first JoinGroup for a group id creates the group."""
    refusal = validate_join(context, request)
    if refusal is None and request.member_id:
        refusal = context.cite("J4"), ErrorCode.UNKNOWN_MEMBER_ID
    if refusal is not None:
        return _refuse_join(context, reply_to, refusal, request.member_id)
    context.create_group(ClassicGroup, context.cite("J5"), "first JoinGroup for this group id")
    return _admit(context, request, reply_to)


def join_instead(
    context: StepContext, request: JoinGroup, reply_to: ReplyTo, kind: str, *, refused: str, joined: str
) -> None:
    """Handle a JoinGroup to an Empty group of another protocol, `kind`. If a new group would accept the
    JoinGroup, replace the Empty group with a classic group and join that. Otherwise refuse the JoinGroup.

    `refused` and `joined` are the rows of the two outcomes. Kafka deletes the Empty group even if it then
    refuses the JoinGroup.
    """
    error = ErrorCode.NONE
    if request.member_id:
        error = ErrorCode.UNKNOWN_MEMBER_ID
    elif not (request.protocol_type and request.protocols):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if error is not ErrorCode.NONE:
        context.reply(reply_to, JoinGroupResponse, context.cite(refused), error, member_id=request.member_id)
        return
    reason = f"a JoinGroup to the Empty {kind} group: it becomes a classic group; its offsets stay"
    restart_group(context, context.cite(joined), ClassicGroup, reason)
    join(context, request, reply_to)


def _admit(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Rows J6 to J8: check the group's size, then join."""
    group = context.group_of(ClassicGroup)
    if not _accept_joining_member(context, group, request.member_id):
        return _refuse_for_size(context, group, request, reply_to)
    if request.member_id:
        context.cite("J8")
        return _join_existing_member(context, group, request, reply_to)
    context.cite("J7")
    return _join_new_member(context, group, request, reply_to)


def validate_join(context: StepContext, request: JoinGroup) -> RuleAndError | None:
    """Rows J1, M1 and M2: check the parts of a JoinGroup that depend on no group. Return the refusal, or
    None.
    """
    config = context.config
    timeout_ms = request.session_timeout_ms
    if not config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms:
        return context.cite("J1"), ErrorCode.INVALID_SESSION_TIMEOUT
    return assignment.validate_protocols(context, request)


def _accept_joining_member(context: StepContext, group: ClassicGroup, member_id: str) -> bool:
    """Rows A1 to A3: return True if group.max.size allows this member. Pending ids are not counted."""
    if group.state is GroupState.EMPTY:
        context.cite("A1")
        return True
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        # In an over-full group the last members to rejoin are refused.
        context.cite("A2")
        if member is not None and member.parked_join is not None:
            return True
        return group.awaiting_join_response < context.config.group_max_size
    context.cite("A3")
    return member is not None or len(group.members) < context.config.group_max_size


def _refuse_for_size(
    context: StepContext, group: ClassicGroup, request: JoinGroup, reply_to: ReplyTo
) -> None:
    """Row J6: refuse the JoinGroup. If the sender is a member or has a pending id, remove it without a
    rebalance.
    """
    row = context.cite("J6")
    reason = f"the group is full: group.max.size is {context.config.group_max_size}"
    member = group.members.get(request.member_id)
    group.remove(request.member_id)
    if member is not None:
        context.record_member(row, EntryType.MEMBER_REMOVED, member, reason)
    context.record(
        row, EntryType.JOIN_REFUSED, reason, member_id=request.member_id or None, client_id=request.client_id
    )
    _refuse_join(context, reply_to, (row, ErrorCode.GROUP_MAX_SIZE_REACHED), "")


def _join_new_member(
    context: StepContext, group: ClassicGroup, request: JoinGroup, reply_to: ReplyTo
) -> None:
    """Rows N2 to N6: handle a JoinGroup without a member id."""
    if not _supports_protocols(context, group, request):
        verdict = context.cite("N2"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return _refuse_join(context, reply_to, verdict, "")
    instance_id = request.group_instance_id
    prefix = request.client_id if instance_id is None else instance_id
    member_id = new_member_id(prefix, reply_to.request, context.config.member_id_namespace)
    if instance_id is None and request.api_version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
        return _require_member_id(context, context.cite("N5"), request, reply_to, member_id)
    if not _accept_reported_topics(context, request, reply_to):
        return None
    if instance_id is None:
        return rebalance.add_member(context, group, context.cite("N6"), request, reply_to, member_id)
    if instance_id not in group.static_members:
        return rebalance.add_member(context, group, context.cite("N4"), request, reply_to, member_id)
    context.cite("N3")
    return rebalance.replace_static_member(context, group, request, reply_to, member_id)


def _accept_reported_topics(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> bool:
    """Rows M3 and M5: record the topics and partition counts that the JoinGroup reports. Return False if the
    JoinGroup was refused because of them.

    Call this after all other checks, because only an accepted JoinGroup may change the group's topics.
    """
    refusal = assignment.record_partition_counts(context, request)
    if refusal is not None:
        max_partitions = context.config.group_max_partitions
        reason = f"the group would have too many partitions: group.max.partitions is {max_partitions}"
        context.record(
            refusal[0],
            EntryType.JOIN_REFUSED,
            reason,
            member_id=request.member_id or None,
            client_id=request.client_id,
        )
        _refuse_join(context, reply_to, refusal, request.member_id)
        return False
    record_topics(context.group_of(ClassicGroup), request.topics)
    return True


def _require_member_id(
    context: StepContext, rule: RuleId, request: JoinGroup, reply_to: ReplyTo, member_id: str
) -> None:
    """Row N5: answer with the member id to join with (KIP-394)."""
    # If this answer is lost, the client starts again without an id, and leaves only a pending id behind.
    deadline_ms = context.deadline(request.session_timeout_ms)
    context.group_of(ClassicGroup).pending_members[member_id] = PendingMember(
        request.client_id, request.client_host, deadline_ms
    )
    context.record(
        rule,
        EntryType.MEMBER_ID_ASSIGNED,
        "a new dynamic member has to join again with the id it was given",
        member_id=member_id,
        client_id=request.client_id,
        client_host=request.client_host,
        deadline_ms=deadline_ms,
    )
    _refuse_join(context, reply_to, (rule, ErrorCode.MEMBER_ID_REQUIRED), member_id)


def _join_existing_member(
    context: StepContext, group: ClassicGroup, request: JoinGroup, reply_to: ReplyTo
) -> None:
    """Rows E2 to E5: handle a JoinGroup with a member id."""
    if not _supports_protocols(context, group, request):
        verdict = context.cite("E2"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return _refuse_join(context, reply_to, verdict, request.member_id)
    if request.member_id in group.pending_members:
        if request.group_instance_id is not None:
            # Only dynamic members have pending ids. Kafka throws here, so its answer names no member.
            return _refuse_join(context, reply_to, (context.cite("E3"), ErrorCode.UNKNOWN_SERVER_ERROR), "")
        if not _accept_reported_topics(context, request, reply_to):
            return None
        return rebalance.add_member(context, group, context.cite("E4"), request, reply_to, request.member_id)
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return _refuse_join(context, reply_to, (context.cite("E5"), error), request.member_id)
    if not _accept_reported_topics(context, request, reply_to):
        return None
    return _rejoin(context, group, request, reply_to, group.members[request.member_id])


def _rejoin(
    context: StepContext,
    group: ClassicGroup,
    request: JoinGroup,
    reply_to: ReplyTo,
    member: ClassicGroupMember,
) -> None:
    """Rows E6 to E11: handle a JoinGroup of a member.

    A member whose answer was lost gets the answer again (E7, E11). As in Kafka, the timeouts of the repeated
    request are ignored.
    """
    same_protocols = member.protocols == request.protocols
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            rebalance.update_member(context, group, context.cite("E6"), member, request, reply_to)
            rebalance.maybe_complete_join(context, group)
        case GroupState.COMPLETING_REBALANCE if same_protocols:
            rebalance.answer_join(context, group, context.cite("E7"), reply_to, member)
        case GroupState.COMPLETING_REBALANCE:
            _rejoin_and_rebalance(
                context, context.cite("E8"), request, reply_to, member, "changed its metadata"
            )
        case GroupState.STABLE if group.leader_id == member.member_id:
            # A leader that rejoins asks for a new assignment, with or without changed metadata.
            _rejoin_and_rebalance(
                context, context.cite("E9"), request, reply_to, member, "is the leader and joined again"
            )
        case GroupState.STABLE if not same_protocols:
            _rejoin_and_rebalance(
                context, context.cite("E10"), request, reply_to, member, "changed its metadata"
            )
        case _:  # a follower in a Stable group, with the same protocols
            rebalance.answer_join(context, group, context.cite("E11"), reply_to, member)


def _rejoin_and_rebalance(
    context: StepContext,
    rule: RuleId,
    request: JoinGroup,
    reply_to: ReplyTo,
    member: ClassicGroupMember,
    predicate: str,
) -> None:
    """Update the member, park its JoinGroup and start a rebalance. `predicate` completes the reason
    "member <id> ..." for the history.
    """
    rebalance.update_member(context, context.group_of(ClassicGroup), rule, member, request, reply_to)
    reason = f"member {member.member_id} {predicate}"
    rebalance.prepare_rebalance(
        context,
        context.group_of(ClassicGroup),
        rule,
        reason,
        member_id=member.member_id,
        client_reason=request.reason,
    )


def _supports_protocols(context: StepContext, group: ClassicGroup, request: JoinGroup) -> bool:
    """Rows U1 and U2: return True if the group supports the offered protocols."""
    context.cite("U1" if group.state is GroupState.EMPTY else "U2")
    return group.supports_protocols(request.protocol_type, request.protocols)


def _refuse_join(context: StepContext, reply_to: ReplyTo, verdict: RuleAndError, member_id: str) -> None:
    context.reply(reply_to, JoinGroupResponse, *verdict, member_id=member_id)


# SyncGroup: the leader sends the assignments, every member fetches its own. Rows S0 to S9.


FIRST_VERSION_WITH_PROTOCOL = 5  # KIP-559


def sync(context: StepContext, request: SyncGroup, reply_to: ReplyTo) -> None:
    """Refuse, answer or park a SyncGroup, depending on the group's state. The leader's SyncGroup, which has
    the assignment, makes the group Stable.
    """
    group = context.group_of(ClassicGroup)
    refusal = validate_sync(context, group, request)
    if refusal is not None:
        context.reply(reply_to, SyncGroupResponse, *refusal)
        return
    member = group.members[request.member_id]
    if group.state is GroupState.PREPARING_REBALANCE:
        context.reply(reply_to, SyncGroupResponse, context.cite("S6"), ErrorCode.REBALANCE_IN_PROGRESS)
        return
    end_pending_sync(group, member)
    if group.state is GroupState.STABLE:
        # The session is not re-armed. Kafka 2.x re-armed it, current Kafka does not.
        rebalance.answer_sync(context, group, context.cite("S9"), reply_to, member)
        return
    is_leader = group.leader_id == member.member_id
    row = context.cite("S8" if is_leader else "S7")
    if member.parked_sync is not None:
        rebalance.supersede(context, row, member.parked_sync, "the member sent a newer SyncGroup")
    member.parked_sync = reply_to
    if is_leader:
        assignments = {a.member_id: a.assignment for a in request.assignments}
        rebalance.become_stable(
            context, group, row, assignments, f"leader {group.leader_id} brought the assignment"
        )


def validate_sync_protocol(
    context: StepContext, request: SyncGroup | OversizedRequest
) -> RuleAndError | None:
    """Row S0: check that a newer client names its protocol, which depends on no group. Return the refusal, or
    None.
    """
    lacks_protocol = request.protocol_type is None or request.protocol_name is None
    if request.api_version >= FIRST_VERSION_WITH_PROTOCOL and lacks_protocol:
        return context.cite("S0"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return None


def validate_sync(
    context: StepContext, group: ClassicGroup, request: SyncGroup | OversizedRequest
) -> RuleAndError | None:
    """Rows S0 to S5: return the first row that applies and its error, or None if no row applies."""
    refusal = validate_sync_protocol(context, request)
    if refusal is not None:
        return refusal
    if group.state is GroupState.EMPTY:
        return context.cite("S1"), ErrorCode.UNKNOWN_MEMBER_ID
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return context.cite("S3"), error
    if request.generation_id != group.generation:
        return context.cite("S4"), ErrorCode.ILLEGAL_GENERATION
    if differ(request.protocol_type, group.protocol_type) or differ(
        request.protocol_name, group.protocol_name
    ):
        return context.cite("S5"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return None


def differ(given: str | None, own: str | None) -> bool:
    """Return True if neither value is None, and they differ."""
    # An older client sends no protocol, and a group in its first rebalance has none.
    return given is not None and own is not None and given != own


def end_pending_sync(group: ClassicGroup, member: ClassicGroupMember) -> None:
    """Record that the member has sent its SyncGroup. The last member's SyncGroup disarms the sync
    deadline.
    """
    group.set_pending_sync(member, False)
    if not group.pending_syncs:
        group.sync_deadline_ms = None


# A JoinGroup or SyncGroup that is too large for the log. Rows J9, S10 and S11.
#
# Source: GroupMetadataManager.java (classicGroupSync), where the record of the group is too large for
# `__consumer_offsets`. Kafka writes no record of a JoinGroup, so there the SyncGroup fails.


def oversized(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse a request that is too large for the log. If it is the leader's SyncGroup, whose assignment is
    then lost, the rebalance starts again.
    """
    if request.kind == "JoinGroup":
        refuse_join(context, context.cite("J9"), request, reply_to)
    else:
        context.reply(reply_to, OversizedRequestResponse, *_oversized_sync(context, request))


def oversized_no_group(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse an oversized request to a group id without a group. For a JoinGroup, create the group first, so
    that its history has the reason.
    """
    if request.kind == "SyncGroup":
        error = ErrorCode.UNKNOWN_MEMBER_ID
        context.reply(reply_to, OversizedRequestResponse, context.cite("S1"), error)
        return
    row = context.cite("J9")
    context.create_group(ClassicGroup, row, "first JoinGroup for this group id")
    refuse_join(context, row, request, reply_to)


def _oversized_sync(context: StepContext, request: OversizedRequest) -> RuleAndError:
    """Rows S0 to S6, S10, S11: answer a SyncGroup that is too large for the log.

    If it carries the group's assignment, the rebalance starts again.
    """
    group = context.group_of(ClassicGroup)
    refusal = validate_sync(context, group, request)
    if refusal is not None:
        return refusal
    member = group.members[request.member_id]
    if group.state is GroupState.PREPARING_REBALANCE:
        return context.cite("S6"), ErrorCode.REBALANCE_IN_PROGRESS
    if group.state is GroupState.STABLE or group.leader_id != member.member_id:
        return context.cite("S11"), OVERSIZED_ERROR
    row = context.cite("S10")
    end_pending_sync(group, member)
    rebalance.reset_assignments(context, row, OVERSIZED_ERROR)
    arm_session(context, member)
    rebalance.prepare_rebalance(context, group, row, oversize_reason(request), member_id=member.member_id)
    return row, OVERSIZED_ERROR


# Heartbeat: renewal of a member's session. The answer says whether the member must rejoin. Rows H3 to H8.


def heartbeat(context: StepContext, request: Heartbeat, reply_to: ReplyTo) -> None:
    """Renew the session of a member of this generation. The error REBALANCE_IN_PROGRESS makes it rejoin."""
    context.reply(
        reply_to, HeartbeatResponse, *_renew_session(context, context.group_of(ClassicGroup), request)
    )


def _renew_session(context: StepContext, group: ClassicGroup, request: Heartbeat) -> RuleAndError:
    """Renew the session if the sender is a member of this generation. Return the row and error of the
    answer.
    """
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return context.cite("H3"), error
    if request.generation_id != group.generation:
        return context.cite("H4"), ErrorCode.ILLEGAL_GENERATION
    arm_session(context, group.members[request.member_id])
    if group.state is GroupState.PREPARING_REBALANCE:
        return context.cite("H6"), ErrorCode.REBALANCE_IN_PROGRESS
    # While the leader assigns, a heartbeat renews the session and has no error (KAFKA-10134).
    row = context.cite("H7" if group.state is GroupState.COMPLETING_REBALANCE else "H8")
    return row, ErrorCode.NONE


# LeaveGroup: removal of a batch of members (KIP-345). Rows L2 to L8.


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    """Remove each member of the batch, then rebalance once."""
    group = context.group_of(ClassicGroup)
    verdicts = [_remove_leaving_member(context, group, leaving) for leaving in request.members]
    outcomes = [(leaving, error) for leaving, (_, error) in zip(request.members, verdicts, strict=True)]
    removed = [leaving for leaving, error in outcomes if error is ErrorCode.NONE]
    if removed:
        _maybe_prepare_rebalance_or_complete_join(context, group, removed)
    members = [LeftMember(leaving.member_id, leaving.group_instance_id, error) for leaving, error in outcomes]
    context.reply(reply_to, LeaveGroupResponse, deciding_rule(verdicts), members=members)


def _remove_leaving_member(context: StepContext, group: ClassicGroup, leaving: LeavingMember) -> RuleAndError:
    """Rows L2 to L6: remove a member or a pending id, without a rebalance. Return the row and the error."""
    if not leaving.member_id:
        instance_id = leaving.group_instance_id
        if instance_id is None or instance_id not in group.static_members:
            return context.cite("L3"), ErrorCode.UNKNOWN_MEMBER_ID
        member = group.members[group.static_members[instance_id]]
        return _remove_member(context, context.cite("L2"), member, leaving.reason)
    if leaving.member_id in group.pending_members:
        row = context.cite("L4")
        pending = group.pending_members[leaving.member_id]
        group.remove(leaving.member_id)
        context.record(
            row,
            EntryType.PENDING_MEMBER_REMOVED,
            "left before it joined",
            member_id=leaving.member_id,
            client_id=pending.client_id,
            client_reason=leaving.reason,
        )
        return row, ErrorCode.NONE
    error = group.validate_member(leaving.member_id, leaving.group_instance_id)
    if error is not ErrorCode.NONE:
        return context.cite("L5"), error
    return _remove_member(context, context.cite("L6"), group.members[leaving.member_id], leaving.reason)


def _remove_member(
    context: StepContext, rule: RuleId, member: ClassicGroupMember, client_reason: str | None
) -> RuleAndError:
    """Remove a member that leaves, and end its parked requests."""
    if member.parked_join is not None:
        context.reply(member.parked_join, JoinGroupResponse, rule, ErrorCode.UNKNOWN_MEMBER_ID)
    if member.parked_sync is not None:
        # Kafka never answers the parked sync of a member that leaves.
        rebalance.supersede(context, rule, member.parked_sync, "the member left")
    context.group_of(ClassicGroup).remove(member.member_id)
    context.record_member(
        rule, EntryType.MEMBER_REMOVED, member, "left the group", client_reason=client_reason
    )
    return rule, ErrorCode.NONE


def _maybe_prepare_rebalance_or_complete_join(
    context: StepContext, group: ClassicGroup, removed: list[LeavingMember]
) -> None:
    """Rows L7 and L8: continue or start a rebalance after members left. As in Kafka, a pending id that leaves
    is enough to start one.
    """
    if group.state is GroupState.PREPARING_REBALANCE:
        context.cite("L8")
        rebalance.maybe_complete_join(context, group)
    elif group.state is not GroupState.EMPTY:
        row = context.cite("L7")
        names = ", ".join(m.member_id or m.group_instance_id or "" for m in removed)
        rebalance.prepare_rebalance(
            context, group, row, f"left by request: {names}", client_reason=removed[0].reason
        )
