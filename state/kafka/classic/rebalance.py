"""The steps that requests share: adding a member, starting a rebalance, forming a generation. Rows B, R, I,
C.

Source: GroupMetadataManager.java (addMemberThenRebalanceOrCompleteJoin, prepareRebalance,
tryCompleteInitialRebalance..., completeClassicGroupJoin), ClassicGroup.java.
"""

from assignors.kafka.server_side import is_for_coordinator
from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.kafka.requests import JoinGroup, ReplyTo
from kafka_why.contract.kafka.responses import JoinGroupMember, JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.messages import ErrorCode
from state.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from state.kafka.classic import assignment
from state.kafka.classic.assignment import settle_topics
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
    """Arm the member's session timeout from now on."""
    member.heartbeat_deadline_ms = context.deadline(member.session_timeout_ms)


# The least extension of a join phase in which no member rejoined. With a rebalance timeout of 0 the phase
# would be extended forever without time passing, because the group's clock moves from deadline to deadline.
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
        context.rule("B1")
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
        context.rule("B3")
        maybe_complete_join(context, group)
    else:
        context.rule("B2")
        reason = f"new member {member_id} joined"
        prepare(context, group, rule, reason, member_id=member_id, client_reason=request.reason)


def update_member(
    context: StepContext,
    group: ClassicGroup,
    rule: RuleId,
    member: ClassicGroupMember,
    request: JoinGroup,
    reply_to: ReplyTo,
) -> None:
    """Update a rejoining member from its request and park the request. The session's deadline is
    not changed.
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


def prepare(
    context: StepContext,
    group: ClassicGroup,
    rule: RuleId,
    reason: str,
    *,
    member_id: str | None = None,
    client_reason: str | None = None,
) -> None:
    """Rows R1 to R5: start a rebalance, in which every member has to join again.

    `rule` is the row that led to it, `member_id` the member that caused it, or None if no single member did.
    """
    if group.state is GroupState.COMPLETING_REBALANCE:
        reset_assignments(context, context.rule("R1"), ErrorCode.REBALANCE_IN_PROGRESS)
    context.rule("R2")
    group.sync_deadline_ms = None
    for member in group.members.values():
        group.set_pending_sync(member, False)
    initial = group.state is GroupState.EMPTY
    if initial:
        context.rule("R3")
        delay_ms = context.config.group_initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        group.join_phase = JoinPhase(context.deadline(delay_ms), delay_ms, remaining_ms)
    elif not group.has_all_members_joined():
        _wait_for_joins(context, group)
    previous_at_ms = group.last_rebalance_at_ms
    group.last_rebalance_at_ms, group.last_rebalance_reason = context.now_ms, reason
    context.rule("R4")
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
        last_rebalance_at_ms=previous_at_ms,
    )
    if not initial:
        context.rule("R5")
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
    """Complete the join phase early if every member joined. An initial rebalance is excluded, because its
    delay collects the first members.
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
    if not (group.new_member_added and remaining_ms):
        context.rule("I2")
        complete_join(context, group)
        return
    row = context.rule("I1")
    group.new_member_added = False
    delay_ms = min(context.config.group_initial_rebalance_delay_ms, remaining_ms)
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
    """Rows C1 to C5: form the next generation from the members that joined."""
    group.join_phase = None
    for member in group.members_not_rejoined():
        if member.group_instance_id is None:
            row = context.rule("C1")
            group.remove(member.member_id)
            context.record_member(
                row, EntryType.MEMBER_REMOVED, member, "did not rejoin within the rebalance timeout"
            )
    if not _maybe_elect_new_joined_leader(context, group):
        return
    group.generation += 1
    if not group.members:
        row = context.rule("C4")
        group.protocol_name, group.leader_id = None, None
        group.subscribed_topics = assignment.all_topics(assignment.subscriptions(group))
        assignment.settle_partitions(context, group)
        settle_topics(group)
        transition(context, row, GroupState.EMPTY, EntryType.EMPTY, "the last member is gone")
        return
    left_out = _init_next_generation(context, group, context.rule("C5"))
    if is_for_coordinator(group.protocol_name):
        _assign(context, group, left_out)


def _init_next_generation(context: StepContext, group: ClassicGroup, rule: RuleId) -> list[str]:
    """Answer every parked JoinGroup and await a SyncGroup of every member.

    Return the topics that `settle_partitions` omits.
    """
    group.protocol_name = group.select_protocol()
    by_member = assignment.subscriptions(group)
    group.subscribed_topics = assignment.all_topics(by_member)
    left_out = assignment.settle_partitions(context, group)
    settle_topics(group)
    who = "the coordinator makes" if is_for_coordinator(group.protocol_name) else "the leader is asked for"
    transition(
        context,
        rule,
        GroupState.COMPLETING_REBALANCE,
        EntryType.COMPLETING_REBALANCE,
        f"the generation is formed, {who} the assignment",
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


def _assign(context: StepContext, group: ClassicGroup, left_out: list[str]) -> None:
    """Row M4: the coordinator assigns at once. Each SyncGroup is answered when it arrives."""
    row = context.rule("M4")
    known = group.partitions_per_topic
    unknown = [t for t in group.subscribed_topics or [] if not known.get(t) and t not in left_out]
    reason = "the coordinator made the assignment"
    if unknown:
        reason += f"; no JoinGroup reported the number of partitions of {', '.join(unknown)}"
    if left_out:
        most = context.config.group_max_partitions
        reason += f"; group.max.partitions ({most}) leaves out {', '.join(left_out)}"
    become_stable(context, group, row, assignment.assign(group, group.generation - 1), reason)


def _maybe_elect_new_joined_leader(context: StepContext, group: ClassicGroup) -> bool:
    """Rows C2 and C3: replace a leader that did not rejoin, and return True. If no member rejoined, extend
    the join phase and return False.
    """
    leader = group.members.get(group.leader_id or "")
    if not group.members or (leader is not None and leader.parked_join is not None):
        return True
    elected = next((m for m in group.members.values() if m.parked_join is not None), None)
    if elected is None:
        row = context.rule("C3")
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
    row = context.rule("C2")
    group.leader_id = elected.member_id
    context.record_member(row, EntryType.LEADER_ELECTED, elected, "the leader did not rejoin")
    return True


def _wait_for_joins(context: StepContext, group: ClassicGroup, at_least_ms: int = 0) -> None:
    delay_ms = max(group.rebalance_timeout_ms(), at_least_ms)
    group.join_phase = JoinPhase(context.deadline(delay_ms), delay_ms, None)


def answer_join(
    context: StepContext,
    group: ClassicGroup,
    rule: RuleId,
    reply_to: ReplyTo,
    member: ClassicGroupMember,
    *,
    skip_assignment: bool = False,
) -> None:
    """Answer a JoinGroup with the current generation. Only the leader receives the list of members."""
    is_leader = group.leader_id == member.member_id
    skip_assignment |= is_leader and is_for_coordinator(group.protocol_name)
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
            for m in (group.members.values() if is_leader else ())
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
    """Replace the member with the request's instance id by a copy with the id `member_id`. Rebalance only if
    it is necessary.
    """
    assert request.group_instance_id is not None
    old_leader_id = group.leader_id
    old = group.members[group.static_members[request.group_instance_id]]
    taken_over = context.rule("W1")
    member = _replace_member(context, group, taken_over, old, member_id)
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
        _answer_without_rebalance(
            context, group, context.rule("W2"), request, reply_to, member, old_leader_id
        )
        return
    group.set_parked_join(member, reply_to)
    if group.state is GroupState.PREPARING_REBALANCE:
        context.rule("W5")
        maybe_complete_join(context, group)
        return
    if group.state is GroupState.STABLE:
        row = context.rule("W3")
        reason = f"static member {member_id} changed the selected protocol"
    else:
        row = context.rule("W4")
        reason = f"static member {member_id} came back before the assignment was there"
    prepare(context, group, row, reason, member_id=member_id, client_reason=request.reason)


def _replace_member(
    context: StepContext, group: ClassicGroup, rule: RuleId, old: ClassicGroupMember, member_id: str
) -> ClassicGroupMember:
    """Row W1: fence the old id's parked requests, and replace the member with a copy that has the new id."""
    fenced = rule, ErrorCode.FENCED_INSTANCE_ID
    if old.parked_join is not None:
        context.reply(old.parked_join, JoinGroupResponse, *fenced, member_id=old.member_id)
    if old.parked_sync is not None:
        context.reply(old.parked_sync, SyncGroupResponse, *fenced)
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
    """Row W2: answer a returning static member at once."""
    # A returning leader must not assign again. Versions without skip_assignment get the leader's old id as
    # the leader.
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
