"""What all requests share: a member enters, a rebalance opens, and a generation is formed. Rows B, R, I, C.

Source: GroupMetadataManager.java (addMemberThenRebalanceOrCompleteJoin, prepareRebalance,
tryCompleteInitialRebalance..., completeClassicGroupJoin), ClassicGroup.java.
"""

from assignors.kafka.server_side import is_for_coordinator
from state.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from state.errors import ErrorCode
from state.kafka import assignment, subscription
from state.kafka.context import Turn
from state.kafka.group import GroupState, JoinPhase, Member
from state.kafka.history import EventType
from state.kafka.requests import JoinGroup, ReplyTo
from state.kafka.responses import JoinGroupMember, JoinGroupResponse, SyncGroupResponse

# A round in which nobody rejoined goes on for at least this long. A rebalance timeout of 0 would extend it
# for ever without time going on: Kafka's clock runs while it does so, this one only runs from deadline to
# deadline.
EXTENSION_AT_LEAST_MS = 1_000


def add_member(turn: Turn, request: JoinGroup, reply_to: ReplyTo, member_id: str) -> None:
    """Rows B1 to B3: a new member enters with its join parked, and the group rebalances for it."""
    group = turn.group
    if group.is_initial_rebalance():
        turn.rule("B1")
        group.new_member_added = True
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        parked_join=reply_to,
        # A client that went away while its join was parked is not noticed; this is how long it counts.
        heartbeat_deadline_ms=turn.deadline(NEW_MEMBER_JOIN_TIMEOUT_MS),
    )
    group.add(member, request.protocol_type)
    turn.record_member(EventType.MEMBER_ADDED, member, "a new member joined", client_reason=request.reason)
    if group.state is GroupState.PREPARING_REBALANCE:
        turn.rule("B3")
        maybe_complete_join(turn)
    else:
        turn.rule("B2")
        prepare(turn, f"new member {member_id} joined", member_id=member_id, client_reason=request.reason)


def update_member(turn: Turn, member: Member, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Take over what a rejoining member says now, and park its join. The session's deadline is not moved."""
    if member.parked_join is not None:
        supersede(turn, member.parked_join, "the member sent a newer JoinGroup")
    member.protocols = request.protocols
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.parked_join = reply_to
    turn.record_member(
        EventType.MEMBER_REJOINED, member, "a member joined again", client_reason=request.reason
    )


def supersede(turn: Turn, request: ReplyTo, reason: str) -> None:
    """A parked request will never be answered: leave a trace of that."""
    turn.record(EventType.REQUEST_SUPERSEDED, reason, superseded=request.request)


def prepare(
    turn: Turn, reason: str, *, member_id: str | None = None, client_reason: str | None = None
) -> None:
    """Rows R1 to R5: open the next round; everyone has to join again. `member_id` is who brought it about."""
    group = turn.group
    if group.state is GroupState.COMPLETING_REBALANCE:
        turn.rule("R1")
        reset_assignments(turn, ErrorCode.REBALANCE_IN_PROGRESS)
    turn.rule("R2")
    group.sync_deadline_ms = None
    for member in group.members.values():
        member.awaiting_sync = False
    initial = group.state is GroupState.EMPTY
    if initial:
        turn.rule("R3")
        delay_ms = turn.config.group_initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        group.join_phase = JoinPhase(turn.deadline(delay_ms), delay_ms, remaining_ms)
    elif not group.has_all_members_joined():
        _wait_for_joins(turn)
    group.last_rebalance_at_ms, group.last_rebalance_reason = turn.now_ms, reason
    turn.rule("R4")
    turn.transition(
        GroupState.PREPARING_REBALANCE,
        EventType.PREPARING_REBALANCE,
        reason,
        member_id=member_id,
        client_reason=client_reason,
        waiting_for=[m.member_id for m in group.members_not_rejoined()] + list(group.pending_members),
        deadline_ms=group.join_phase.deadline_ms if group.join_phase else None,
    )
    if not initial:
        turn.rule("R5")
        if group.has_all_members_joined():
            complete_join(turn)


def reset_assignments(turn: Turn, error: ErrorCode) -> None:
    """Clear every assignment and answer every parked sync with an error; those answered have a session
    again.
    """
    for member in turn.group.members.values():
        member.assignment = b""
        if member.parked_sync is not None:
            turn.reply(member.parked_sync, SyncGroupResponse, error)
            member.parked_sync = None
            turn.arm_session(member)


def maybe_complete_join(turn: Turn) -> None:
    """Complete the round early if everyone is in; never an initial one, whose delay collects the first
    members.
    """
    group = turn.group
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and not group.is_initial_rebalance()
        and group.has_all_members_joined()
    ):
        complete_join(turn)


def initial_delay_over(turn: Turn, phase: JoinPhase, remaining_ms: int) -> None:
    """Rows I1 and I2: the initial delay passed; it is extended while new members keep coming and time
    remains.
    """
    group = turn.group
    if not (group.new_member_added and remaining_ms):
        turn.rule("I2")
        complete_join(turn)
        return
    turn.rule("I1")
    group.new_member_added = False
    delay_ms = min(turn.config.group_initial_rebalance_delay_ms, remaining_ms)
    next_remaining_ms = max(remaining_ms - phase.delay_ms, 0)
    group.join_phase = JoinPhase(turn.deadline(delay_ms), delay_ms, next_remaining_ms)
    turn.record(
        EventType.INITIAL_DELAY_EXTENDED,
        "new members came during the initial delay",
        deadline_ms=group.join_phase.deadline_ms,
        members=list(group.members),
    )


def complete_join(turn: Turn) -> None:
    """Rows C1 to C5: whoever has joined is the next generation."""
    group = turn.group
    group.join_phase = None
    for member in group.members_not_rejoined():
        if member.group_instance_id is None:
            turn.rule("C1")
            group.remove(member.member_id)
            turn.record_member(
                EventType.MEMBER_REMOVED, member, "did not rejoin within the rebalance timeout"
            )
    if not _settle_leader(turn):
        return
    group.generation += 1
    if not group.members:
        turn.rule("C4")
        group.protocol_name, group.leader_id = None, None
        group.subscribed_topics = subscription.all_topics(subscription.subscriptions(group))
        assignment.settle_partitions(group)
        turn.transition(GroupState.EMPTY, EventType.EMPTY, "the last member is gone")
        return
    turn.rule("C5")
    _begin_generation(turn)
    if is_for_coordinator(group.protocol_name):
        _assign(turn)


def _begin_generation(turn: Turn) -> None:
    """Answer every parked join; a SyncGroup is due from all."""
    group = turn.group
    group.protocol_name = group.select_protocol()
    by_member = subscription.subscriptions(group)
    group.subscribed_topics = subscription.all_topics(by_member)
    assignment.settle_partitions(group)
    who = "the coordinator makes" if is_for_coordinator(group.protocol_name) else "the leader is asked for"
    turn.transition(
        GroupState.COMPLETING_REBALANCE,
        EventType.COMPLETING_REBALANCE,
        f"the generation is formed, {who} the assignment",
        members=list(group.members),
        leader_id=group.leader_id,
        protocol_name=group.protocol_name,
        topics=group.subscribed_topics,
        subscriptions=subscription.where_they_differ(by_member),
    )
    for member in group.members.values():
        if member.parked_join is not None:
            answer_join(turn, member.parked_join, member)
            member.parked_join = None
        turn.arm_session(member)
        member.is_new = False
        member.awaiting_sync = True
    group.sync_deadline_ms = turn.deadline(group.rebalance_timeout_ms())


def _assign(turn: Turn) -> None:
    """Row M4: nobody is waited for, each SyncGroup is answered as it comes."""
    turn.rule("M4")
    group = turn.group
    unknown = [t for t in group.subscribed_topics or [] if not group.partitions_per_topic.get(t)]
    reason = "the coordinator made the assignment"
    if unknown:
        reason += f"; no JoinGroup told how many partitions there are of {', '.join(unknown)}"
    become_stable(turn, assignment.assign(group, group.generation - 1), reason)


def _settle_leader(turn: Turn) -> bool:
    """Rows C2 and C3: a leader that did not rejoin loses its place. False: nobody rejoined, the round goes
    on.
    """
    group = turn.group
    leader = group.members.get(group.leader_id or "")
    if not group.members or (leader is not None and leader.parked_join is not None):
        return True
    elected = next((m for m in group.members.values() if m.parked_join is not None), None)
    if elected is None:
        turn.rule("C3")
        _wait_for_joins(turn, EXTENSION_AT_LEAST_MS)
        assert group.join_phase is not None
        turn.record(
            EventType.REBALANCE_EXTENDED,
            "no member rejoined, and static members are kept until their sessions end",
            waiting_for=list(group.members),
            deadline_ms=group.join_phase.deadline_ms,
        )
        return False
    turn.rule("C2")
    group.leader_id = elected.member_id
    turn.record_member(EventType.LEADER_ELECTED, elected, "the leader did not rejoin")
    return True


def _wait_for_joins(turn: Turn, at_least_ms: int = 0) -> None:
    delay_ms = max(turn.group.rebalance_timeout_ms(), at_least_ms)
    turn.group.join_phase = JoinPhase(turn.deadline(delay_ms), delay_ms, None)


def answer_join(turn: Turn, reply_to: ReplyTo, member: Member, *, skip_assignment: bool = False) -> None:
    """The generation as it is; the leader alone is told who else is in it."""
    group = turn.group
    is_leader = group.leader_id == member.member_id
    skip_assignment |= is_leader and is_for_coordinator(group.protocol_name)
    turn.reply(
        reply_to,
        JoinGroupResponse,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=current_members(turn) if is_leader else [],
    )


def current_members(turn: Turn) -> list[JoinGroupMember]:
    group = turn.group
    return [
        JoinGroupMember(m.member_id, m.group_instance_id, m.metadata(group.protocol_name))
        for m in group.members.values()
    ]


def become_stable(turn: Turn, assignments: dict[str, bytes], reason: str) -> None:
    """The generation has its assignment: hand it to every parked sync. Who is left out gets empty bytes."""
    group = turn.group
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    turn.transition(
        GroupState.STABLE,
        EventType.STABLE,
        reason,
        leader_id=group.leader_id,
        protocol_name=group.protocol_name,
        assignments={m.member_id: m.assignment for m in group.members.values()},
        waiting_for=[m.member_id for m in group.members.values() if m.awaiting_sync],
    )
    for member in group.members.values():
        if member.parked_sync is not None:
            answer_sync(turn, member.parked_sync, member)
            member.parked_sync = None
            turn.arm_session(member)


def answer_sync(turn: Turn, reply_to: ReplyTo, member: Member) -> None:
    """The member's own part of the assignment."""
    group = turn.group
    turn.reply(
        reply_to,
        SyncGroupResponse,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
