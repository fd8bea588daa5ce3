"""The steps of a rebalance: add a member, start a rebalance, form a generation. Rows B, R, I, C, W.

A JoinGroup or SyncGroup is parked if a later step answers it. A pending id is a member id that the
coordinator has assigned and that no member has joined with yet.

Source: GroupMetadataManager.java (addMemberThenRebalanceOrCompleteJoin, prepareRebalance,
tryCompleteInitialRebalance..., completeClassicGroupJoin), ClassicGroup.java.

A row, such as R3, is a rule of docs/rules.md. `context.cite` records that a row was applied.
"""

from assignors.kafka.server_side import is_for_coordinator
from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.kafka.requests import JoinGroup, ReplyTo
from kafka_why.contract.kafka.responses import JoinGroupMember, JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.messages import ErrorCode
from state.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from state.kafka.classic import assignment
from state.kafka.classic.assignment import forget_unsubscribed_topics
from state.kafka.classic_group import LEGAL_PREVIOUS_STATES, ClassicGroup, ClassicGroupMember, JoinPhase
from state.kafka.context import RuleId, StepContext


def transition(
    context: StepContext, rule: RuleId, to: GroupState, event: EntryType, reason: str, **details: object
) -> None:
    """Move the group to another state, and record the reason."""
    group = context.group_of(ClassicGroup)
    assert group.state in LEGAL_PREVIOUS_STATES[to], f"{group.state} -> {to} is no legal transition"
    group.previous_state, group.state = group.state, to
    group.state_timestamp_ms = context.now_ms
    context.retention_is_stale = True
    context.record(rule, event, reason, **details)


def arm_session(context: StepContext, member: ClassicGroupMember) -> None:
    """Restart the member's session: it expires one session timeout from now."""
    member.heartbeat_deadline_ms = context.deadline(member.session_timeout_ms)


# The minimum extension of a join phase in which no member rejoined. With a rebalance timeout of 0 and no
# minimum, the phase would be extended again and again at the same time of the group's clock.
JOIN_EXTENSION_MIN_MS = 1_000


def add_member(
    context: StepContext,
    group: ClassicGroup,
    rule: RuleId,
    request: JoinGroup,
    reply_to: ReplyTo,
    member_id: str,
) -> None:
    """Rows B1 to B3: add a member with a parked JoinGroup, and rebalance. `rule` is the row that admitted the
    member.
    """
    if group.is_initial_rebalance():
        context.cite("B1")
        group.new_member_added = True
    member = ClassicGroupMember(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        parked_join=reply_to,
        # A client that disconnects while its JoinGroup is parked is not noticed, so the member expires at
        # this time.
        heartbeat_deadline_ms=context.deadline(NEW_MEMBER_JOIN_TIMEOUT_MS),
    )
    group.add(member, request.protocol_type)
    context.record_member(
        rule, EntryType.MEMBER_ADDED, member, "a new member joined", client_reason=request.reason
    )
    if group.state is GroupState.PREPARING_REBALANCE:
        context.cite("B3")
        maybe_complete_join(context, group)
    else:
        context.cite("B2")
        reason = f"new member {member_id} joined"
        prepare_rebalance(context, group, rule, reason, member_id=member_id, client_reason=request.reason)


def update_member(
    context: StepContext,
    group: ClassicGroup,
    rule: RuleId,
    member: ClassicGroupMember,
    request: JoinGroup,
    reply_to: ReplyTo,
) -> None:
    """Update a rejoining member from its JoinGroup, and park the JoinGroup. The session's deadline does not
    change.
    """
    if member.parked_join is not None:
        supersede(context, rule, member.parked_join, "the member sent a newer JoinGroup")
    group.set_protocols(member, request.protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    group.set_parked_join(member, reply_to)
    context.record_member(
        rule, EntryType.MEMBER_REJOINED, member, "a member joined again", client_reason=request.reason
    )


def supersede(context: StepContext, rule: RuleId, request: ReplyTo, reason: str) -> None:
    """Record that a parked request will never be answered."""
    context.record(rule, EntryType.REQUEST_SUPERSEDED, reason, superseded=request.request)


def prepare_rebalance(
    context: StepContext,
    group: ClassicGroup,
    rule: RuleId,
    reason: str,
    *,
    member_id: str | None = None,
    client_reason: str | None = None,
) -> None:
    """Rows R1 to R5: start a rebalance, in which every member has to join again.

    `rule` is the row that caused it. `member_id` is the member that caused it, or None if no single member
    did.
    """
    if group.state is GroupState.COMPLETING_REBALANCE:
        reset_assignments(context, context.cite("R1"), ErrorCode.REBALANCE_IN_PROGRESS)
    context.cite("R2")
    group.sync_deadline_ms = None
    for member in group.members.values():
        group.set_pending_sync(member, False)
    is_initial = group.state is GroupState.EMPTY
    if is_initial:
        context.cite("R3")
        delay_ms = context.config.group_initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        group.join_phase = JoinPhase(context.deadline(delay_ms), delay_ms, remaining_ms)
    elif not group.has_all_members_joined():
        _wait_for_joins(context, group)
    previous_rebalance_at_ms = group.last_rebalance_at_ms
    group.last_rebalance_at_ms, group.last_rebalance_reason = context.now_ms, reason
    context.cite("R4")
    transition(
        context,
        rule,
        GroupState.PREPARING_REBALANCE,
        EntryType.PREPARING_REBALANCE,
        reason,
        member_id=member_id,
        client_reason=client_reason,
        waiting_for=[m.member_id for m in group.members_not_rejoined()] + list(group.pending_members),
        deadline_ms=group.join_phase.deadline_ms if group.join_phase else None,
        # The entry that starts a rebalance has the time of the rebalance before it.
        last_rebalance_at_ms=previous_rebalance_at_ms,
    )
    if not is_initial:
        context.cite("R5")
        if group.has_all_members_joined():
            complete_join(context, group)


def reset_assignments(context: StepContext, rule: RuleId, error: ErrorCode) -> None:
    """Clear every assignment, answer every parked SyncGroup with an error, and arm the sessions of the
    answered members.
    """
    for member in context.group_of(ClassicGroup).members.values():
        member.assignment = b""
        if member.parked_sync is not None:
            context.reply(member.parked_sync, SyncGroupResponse, rule, error)
            member.parked_sync = None
            arm_session(context, member)


def maybe_complete_join(context: StepContext, group: ClassicGroup) -> None:
    """Complete the join phase early if every member has joined. This excludes an initial rebalance, whose
    delay is for new members that have not joined yet.
    """
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and not group.is_initial_rebalance()
        and group.has_all_members_joined()
    ):
        complete_join(context, group)


def extend_or_end_initial_delay(context: StepContext, phase: JoinPhase, remaining_ms: int) -> None:
    """Rows I1 and I2: extend the initial delay if new members joined during it and time remains. Otherwise
    complete the join phase.
    """
    group = context.group_of(ClassicGroup)
    can_extend = group.new_member_added and remaining_ms > 0
    if not can_extend:
        context.cite("I2")
        complete_join(context, group)
        return
    row = context.cite("I1")
    group.new_member_added = False
    delay_ms = min(context.config.group_initial_rebalance_delay_ms, remaining_ms)
    # As in Kafka, this subtracts the delay that has ended, not the new one.
    next_remaining_ms = max(remaining_ms - phase.delay_ms, 0)
    group.join_phase = JoinPhase(context.deadline(delay_ms), delay_ms, next_remaining_ms)
    context.record(
        row,
        EntryType.INITIAL_DELAY_EXTENDED,
        "new members came during the initial delay",
        deadline_ms=group.join_phase.deadline_ms,
        members=list(group.members),
    )


def complete_join(context: StepContext, group: ClassicGroup) -> None:
    """Rows C1 to C5: form the next generation from the members that joined, and from static members, which
    stay until their sessions end. If no member joined and static members remain, extend the join phase.
    """
    group.join_phase = None
    for member in group.members_not_rejoined():
        if member.group_instance_id is None:
            row = context.cite("C1")
            group.remove(member.member_id)
            context.record_member(
                row, EntryType.MEMBER_REMOVED, member, "did not rejoin within the rebalance timeout"
            )
    if not _ensure_joined_leader(context, group):
        return
    group.generation += 1
    if not group.members:
        row = context.cite("C4")
        group.protocol_name, group.leader_id = None, None
        group.subscribed_topics = assignment.all_topics(assignment.subscriptions(group))
        assignment.set_partition_counts(context, group)
        forget_unsubscribed_topics(group)
        transition(context, row, GroupState.EMPTY, EntryType.EMPTY, "the last member is gone")
        return
    left_out = _start_generation(context, group, context.cite("C5"))
    if is_for_coordinator(group.protocol_name):
        _assign_by_coordinator(context, group, left_out)


def _start_generation(context: StepContext, group: ClassicGroup, rule: RuleId) -> list[str]:
    """Answer every parked JoinGroup and await a SyncGroup of every member.

    Return the topics that `set_partition_counts` omits.
    """
    group.protocol_name = group.select_protocol()
    by_member = assignment.subscriptions(group)
    group.subscribed_topics = assignment.all_topics(by_member)
    left_out = assignment.set_partition_counts(context, group)
    forget_unsubscribed_topics(group)
    next_step = (
        "the coordinator makes" if is_for_coordinator(group.protocol_name) else "the leader is asked for"
    )
    transition(
        context,
        rule,
        GroupState.COMPLETING_REBALANCE,
        EntryType.COMPLETING_REBALANCE,
        f"the generation is formed, {next_step} the assignment",
        members=list(group.members),
        leader_id=group.leader_id,
        protocol_name=group.protocol_name,
        topics=group.subscribed_topics,
        subscriptions=assignment.subscriptions_if_different(by_member),
    )
    for member in group.members.values():
        if member.parked_join is not None:
            answer_join(context, group, rule, member.parked_join, member)
            group.set_parked_join(member, None)
        arm_session(context, member)
        member.is_new = False
        group.set_pending_sync(member, True)
    group.sync_deadline_ms = context.deadline(group.rebalance_timeout_ms())
    return left_out


def _assign_by_coordinator(context: StepContext, group: ClassicGroup, left_out: list[str]) -> None:
    """Row M4: compute the assignment at once. Each SyncGroup is then answered when it arrives. `left_out` are
    the topics that `set_partition_counts` omitted.
    """
    row = context.cite("M4")
    counts = group.partitions_per_topic
    without_count = [t for t in group.subscribed_topics or [] if not counts.get(t) and t not in left_out]
    reason = "the coordinator made the assignment"
    if without_count:
        reason += f"; no JoinGroup reported the number of partitions of {', '.join(without_count)}"
    if left_out:
        max_partitions = context.config.group_max_partitions
        reason += f"; group.max.partitions ({max_partitions}) leaves out {', '.join(left_out)}"
    # The generation is already the new one. Members still have the assignment of the one before.
    become_stable(context, group, row, assignment.assign(group, group.generation - 1), reason)


def _ensure_joined_leader(context: StepContext, group: ClassicGroup) -> bool:
    """Rows C2 and C3: replace a leader that did not rejoin by a member that did, and return True. If members
    remain but none rejoined, extend the join phase and return False.
    """
    leader = group.members.get(group.leader_id or "")
    if not group.members or (leader is not None and leader.parked_join is not None):
        return True
    elected = next((m for m in group.members.values() if m.parked_join is not None), None)
    if elected is None:
        row = context.cite("C3")
        _wait_for_joins(context, group, JOIN_EXTENSION_MIN_MS)
        assert group.join_phase is not None
        context.record(
            row,
            EntryType.REBALANCE_EXTENDED,
            "no member rejoined, and static members are kept until their sessions end",
            waiting_for=list(group.members),
            deadline_ms=group.join_phase.deadline_ms,
        )
        return False
    row = context.cite("C2")
    group.leader_id = elected.member_id
    context.record_member(row, EntryType.LEADER_ELECTED, elected, "the leader did not rejoin")
    return True


def _wait_for_joins(context: StepContext, group: ClassicGroup, at_least_ms: int = 0) -> None:
    """Begin a join phase of one rebalance timeout, but at least `at_least_ms`."""
    delay_ms = max(group.rebalance_timeout_ms(), at_least_ms)
    group.join_phase = JoinPhase(context.deadline(delay_ms), delay_ms, initial_remaining_ms=None)


def answer_join(
    context: StepContext,
    group: ClassicGroup,
    rule: RuleId,
    reply_to: ReplyTo,
    member: ClassicGroupMember,
    *,
    skip_assignment: bool = False,
) -> None:
    """Answer a JoinGroup with the current generation.

    Only the leader receives the list of members. The answer tells the leader not to assign if
    `skip_assignment` is True, or if the coordinator assigns.
    """
    is_leader = group.leader_id == member.member_id
    skip_assignment |= is_leader and is_for_coordinator(group.protocol_name)
    listed_members = group.members.values() if is_leader else ()
    context.reply(
        reply_to,
        JoinGroupResponse,
        rule,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=[
            JoinGroupMember(m.member_id, m.group_instance_id, m.metadata(group.protocol_name))
            for m in listed_members
        ],
    )


def become_stable(
    context: StepContext, group: ClassicGroup, rule: RuleId, assignments: dict[str, bytes], reason: str
) -> None:
    """Store the assignment of the generation and answer every parked SyncGroup. A member without an
    assignment gets empty bytes.
    """
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    transition(
        context,
        rule,
        GroupState.STABLE,
        EntryType.STABLE,
        reason,
        leader_id=group.leader_id,
        protocol_name=group.protocol_name,
        assignments={m.member_id: m.assignment for m in group.members.values()},
        waiting_for=[m.member_id for m in group.members.values() if m.pending_sync],
    )
    for member in group.members.values():
        if member.parked_sync is not None:
            answer_sync(context, group, rule, member.parked_sync, member)
            member.parked_sync = None
            arm_session(context, member)


def answer_sync(
    context: StepContext, group: ClassicGroup, rule: RuleId, reply_to: ReplyTo, member: ClassicGroupMember
) -> None:
    """Answer a SyncGroup with the member's assignment."""
    context.reply(
        reply_to,
        SyncGroupResponse,
        rule,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


# The return of a static member with a new member id (KIP-345, KIP-814). Rows W1 to W5.
#
# Source: GroupMetadataManager.java (updateStaticMemberThenRebalanceOrCompleteJoin), ClassicGroup.java
# (replaceStaticMember).


FIRST_VERSION_WITH_SKIP_ASSIGNMENT = 9  # KIP-814


def replace_static_member(
    context: StepContext, group: ClassicGroup, request: JoinGroup, reply_to: ReplyTo, member_id: str
) -> None:
    """Give the static member with the request's instance id the new id `member_id`, and fence the old id. If
    the group is Stable and keeps its protocol, answer at once. Otherwise the member takes part in a
    rebalance.
    """
    assert request.group_instance_id is not None
    old_leader_id = group.leader_id
    old = group.members[group.static_members[request.group_instance_id]]
    replacement_row = context.cite("W1")
    member = _replace_member(context, group, replacement_row, old, member_id)
    group.set_protocols(member, request.protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    context.record_member(
        replacement_row,
        EntryType.MEMBER_REPLACED,
        member,
        f"the static member came back, {old.member_id} is fenced",
        client_reason=request.reason,
        replaced_member_id=old.member_id,
    )
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        _answer_without_rebalance(
            context, group, context.cite("W2"), request, reply_to, member, old_leader_id
        )
        return
    group.set_parked_join(member, reply_to)
    if group.state is GroupState.PREPARING_REBALANCE:
        context.cite("W5")
        maybe_complete_join(context, group)
        return
    if group.state is GroupState.STABLE:
        row = context.cite("W3")
        reason = f"static member {member_id} changed the selected protocol"
    else:
        row = context.cite("W4")
        reason = f"static member {member_id} came back before the assignment was there"
    prepare_rebalance(context, group, row, reason, member_id=member_id, client_reason=request.reason)


def _replace_member(
    context: StepContext, group: ClassicGroup, rule: RuleId, old: ClassicGroupMember, member_id: str
) -> ClassicGroupMember:
    """Row W1: refuse the requests that the old id has parked, and replace the member with a copy that has the
    new id.
    """
    error = ErrorCode.FENCED_INSTANCE_ID
    if old.parked_join is not None:
        context.reply(old.parked_join, JoinGroupResponse, rule, error, member_id=old.member_id)
    if old.parked_sync is not None:
        context.reply(old.parked_sync, SyncGroupResponse, rule, error)
    was_leader = group.leader_id == old.member_id
    group.remove(old.member_id)
    member = ClassicGroupMember(
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
    arm_session(context, member)  # with the old session timeout, as in Kafka
    return member


def _answer_without_rebalance(
    context: StepContext,
    group: ClassicGroup,
    rule: RuleId,
    request: JoinGroup,
    reply_to: ReplyTo,
    member: ClassicGroupMember,
    old_leader_id: str | None,
) -> None:
    """Row W2: answer a returning static member at once with the current generation. `old_leader_id` is the
    leader's id before the replacement.
    """
    # A returning leader must not assign again. A client that does not know `skip_assignment` is answered with
    # the leader's old id, so that it does not see itself as the leader.
    if request.api_version >= FIRST_VERSION_WITH_SKIP_ASSIGNMENT:
        is_leader = group.leader_id == member.member_id
        answer_join(context, group, rule, reply_to, member, skip_assignment=is_leader)
        return
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
