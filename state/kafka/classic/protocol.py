"""The classic protocol as one class: its handlers, timers, views and checks of commits.

A row, such as T2, is a rule of docs/rules.md. `context.cite` records that a row was applied.
"""

from collections.abc import Iterator
from typing import ClassVar

from msgspec import UNSET

from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.kafka.requests import (
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OversizedRequest,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import (
    DescribedMember,
    DescribeGroupResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.messages import ErrorCode
from state.kafka.classic import rebalance
from state.kafka.classic.assignment import topic_metadata
from state.kafka.classic.rebalance import JOIN_EXTENSION_MIN_MS, arm_session
from state.kafka.classic.renewals import RENEWALS
from state.kafka.classic.requests import heartbeat, join, leave, oversized, sync
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.context import RuleAndError, RuleId, StepContext
from state.kafka.group import DeadlineReached, Timer, TimerKind
from state.kafka.offsets import pending_offsets
from state.kafka.protocol import KafkaProtocol, common_fields
from state.protocol import Handlers, Outage

# A group as readers see it: its view on the groups topic, and DescribeGroups (rows V2, V3).
#
# Source: ClassicGroup.describe.


def describe(context: StepContext, _: DescribeGroup, reply_to: ReplyTo) -> None:
    """Answer with the group as Kafka describes it. The protocol and the members' metadata are shown only if
    the group is Stable.
    """
    group = context.group_of(ClassicGroup)
    is_stable = group.state is GroupState.STABLE
    row = context.cite("V2" if is_stable else "V3")
    members = [
        DescribedMember(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            member_metadata=m.metadata(group.protocol_name) if is_stable else b"",
            member_assignment=m.assignment,
        )
        for m in group.members.values()
    ]
    context.reply(
        reply_to,
        DescribeGroupResponse,
        row,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=members,
        pending_offsets=pending_offsets(group) if group.pending else UNSET,
    )


def _member_snapshots(group: ClassicGroup) -> list[MemberSnapshot]:
    """Return the members as the groups topic shows them. As in DescribeGroups, their metadata is shown only
    if the group is Stable.
    """
    is_stable = group.state is GroupState.STABLE
    return [
        MemberSnapshot(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            session_timeout_ms=m.session_timeout_ms,
            rebalance_timeout_ms=m.rebalance_timeout_ms,
            metadata=m.metadata(group.protocol_name) if is_stable else b"",
            assignment=m.assignment,
            rejoined=m.parked_join is not None,
        )
        for m in group.members.values()
    ]


def _expire_pending_id(context: StepContext, group: ClassicGroup, member_id: str) -> None:
    """Row T2: remove a pending id, a member id that was assigned to a client and not used to join in time."""
    row = context.cite("T2")
    pending = group.pending_members[member_id]
    group.remove(member_id)
    context.record(
        row,
        EntryType.PENDING_MEMBER_REMOVED,
        "did not join with the id it was given within its session timeout",
        member_id=member_id,
        client_id=pending.client_id,
        client_host=pending.client_host,
    )
    _complete_if_all_joined(context, group)


def _expire_session(context: StepContext, group: ClassicGroup, member: ClassicGroupMember) -> None:
    """Rows T3 to T5: remove a member whose session is over. A member that waits for an answer is removed only
    if it is new.
    """
    member.heartbeat_deadline_ms = None
    if member.is_new and member.parked_join is not None:
        row = context.cite("T3")
        context.reply(member.parked_join, JoinGroupResponse, row, ErrorCode.UNKNOWN_MEMBER_ID)
        reason = "its first JoinGroup waited for longer than a new member may"
    elif member.parked_join is not None or member.parked_sync is not None:
        # The member waits for the coordinator. Its session is armed again when the member is answered.
        context.cite("T4")
        return
    else:
        row = context.cite("T5")
        reason = f"no heartbeat within its session timeout of {member.session_timeout_ms} ms"
    group.remove(member.member_id)
    context.record_member(row, EntryType.MEMBER_REMOVED, member, reason)
    if group.state is GroupState.PREPARING_REBALANCE:
        _complete_if_all_joined(context, group)
    else:
        rebalance_reason = f"member {member.member_id} expired: {reason}"
        rebalance.prepare_rebalance(context, group, row, rebalance_reason, member_id=member.member_id)


def _complete_if_all_joined(context: StepContext, group: ClassicGroup) -> None:
    """Complete the join phase after an expiry, if nobody else is awaited."""
    # As in Kafka, this includes an initial rebalance: an expiry can end the initial delay early.
    if group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined():
        rebalance.complete_join(context, group)


def _handle_join_deadline(context: StepContext) -> None:
    """Complete the join phase. In an initial rebalance the phase may be extended instead."""
    phase = context.group_of(ClassicGroup).join_phase
    assert phase is not None, "a join deadline exists only in a join phase"
    if phase.initial_remaining_ms is None:  # not an initial rebalance
        rebalance.complete_join(context, context.group_of(ClassicGroup))
    else:
        rebalance.extend_or_end_initial_delay(context, phase, phase.initial_remaining_ms)


def _expire_pending_sync(context: StepContext, group: ClassicGroup) -> None:
    """Row Y2: remove members that did not sync in time, and rebalance (KAFKA-12890)."""
    row = context.cite("Y2")
    group.sync_deadline_ms = None
    overdue = [m for m in group.members.values() if m.pending_sync]
    for member in overdue:
        group.remove(member.member_id)
        context.record_member(
            row, EntryType.MEMBER_REMOVED, member, "did not sync within the rebalance timeout"
        )
    names = ", ".join(m.member_id for m in overdue)
    rebalance.prepare_rebalance(
        context, group, row, f"no SyncGroup within the rebalance timeout from {names}"
    )


class ClassicProtocol(KafkaProtocol[ClassicGroup]):
    """The classic protocol."""

    group_class = ClassicGroup
    handlers: ClassVar[Handlers] = {
        JoinGroup: join,
        SyncGroup: sync,
        OversizedRequest: oversized,
        Heartbeat: heartbeat,
        LeaveGroup: leave,
        DescribeGroup: describe,
    }
    renewals = RENEWALS
    unanswered_handlers: ClassVar[Handlers] = {TopicMetadata: topic_metadata}
    breaks_ties_by_member = False

    def view(self, group: ClassicGroup) -> GroupSnapshot:
        """Return a copy of the group for readers."""
        return GroupSnapshot(
            **common_fields(group),
            protocol_name=group.protocol_name if group.state is GroupState.STABLE else None,
            leader_id=group.leader_id,
            members=_member_snapshots(group),
            pending_members=list(group.pending_members),
            subscribed_topics=group.subscribed_topics,
            wanted_topics=group.wanted_topics or UNSET,
        )

    def member_timers(self, member: ClassicGroupMember) -> Iterator[Timer]:
        """Yield the timer of the member's session, if it is armed."""
        if (at_ms := member.heartbeat_deadline_ms) is not None:
            yield at_ms, TimerKind.HEARTBEAT, member.member_id

    def group_timers(self, group: ClassicGroup) -> Iterator[Timer]:
        """Yield the timers of pending ids and of the rebalance."""
        for member_id, pending in group.pending_members.items():
            yield pending.heartbeat_deadline_ms, TimerKind.HEARTBEAT, member_id
        if group.join_phase is not None:
            yield group.join_phase.deadline_ms, TimerKind.JOIN, ""
        if group.sync_deadline_ms is not None:
            yield group.sync_deadline_ms, TimerKind.SYNC, ""

    def timers_of(self, group: ClassicGroup, member_id: str) -> Iterator[Timer]:
        """Return the timers of a member or pending id, or those of the group if the id is empty."""
        pending = group.pending_members.get(member_id)
        if pending is None:
            return super().timers_of(group, member_id)
        return iter([(pending.heartbeat_deadline_ms, TimerKind.HEARTBEAT, member_id)])

    def deadline_reached(self, context: StepContext, group: ClassicGroup, deadline: DeadlineReached) -> None:
        """Handle a due deadline of a member or of a rebalance."""
        match deadline.kind:
            case TimerKind.HEARTBEAT if deadline.member_id in group.pending_members:
                _expire_pending_id(context, group, deadline.member_id)
            case TimerKind.HEARTBEAT:
                _expire_session(context, group, group.members[deadline.member_id])
            case TimerKind.JOIN:
                _handle_join_deadline(context)
            case TimerKind.SYNC:
                _expire_pending_sync(context, group)

    # Deadlines and parked requests when time stands still: in an outage (row F5), or in a quarantine (rows
    # F3, F4).

    def take_over(self, context: StepContext, group: ClassicGroup, outage: Outage) -> None:
        """Restart all sessions and shift all other timers by the length of the outage.

        In Kafka, too, a new coordinator restarts all sessions (GroupMetadataManager.onLoaded). Kafka also
        restarts every rebalance; here a rebalance continues, see docs/rules.md.
        """
        if not (group.members or group.pending_members):
            return
        row = context.cite("F5")
        self.shift_deadlines(context, group, outage.length_ms)
        context.record(
            row,
            EntryType.TAKEN_OVER,
            f"no coordinator ran for {outage.length_ms} ms: sessions begin anew, rounds go on",
            members=list(group.members),
            deadline_ms=group.join_phase.deadline_ms if group.join_phase else None,
        )

    def shift_deadlines(self, context: StepContext, group: ClassicGroup, by_ms: int) -> None:
        """Restart the sessions, and delay the deadlines of joins, syncs and pending ids by `by_ms`."""
        for member in group.members.values():
            # A new member has no session yet: its deadline limits how long its JoinGroup stays parked.
            if member.is_new and member.heartbeat_deadline_ms is not None:
                member.heartbeat_deadline_ms = context.deadline_at(member.heartbeat_deadline_ms + by_ms)
            elif member.heartbeat_deadline_ms is not None or not member.has_parked_request():
                arm_session(context, member)
        for pending in group.pending_members.values():
            pending.heartbeat_deadline_ms = context.deadline_at(pending.heartbeat_deadline_ms + by_ms)
        if group.join_phase is not None:
            group.join_phase.deadline_ms = context.deadline_at(group.join_phase.deadline_ms + by_ms)
        group.sync_deadline_ms = context.delayed(group.sync_deadline_ms, by_ms)

    def answer_parked(self, context: StepContext, group: ClassicGroup, row: RuleId) -> None:
        """Answer every parked request with an error, because no deadline of a quarantined group fires."""
        for member in group.members.values():
            if member.parked_join is not None:
                context.reply(member.parked_join, JoinGroupResponse, row, ErrorCode.UNKNOWN_SERVER_ERROR)
            if member.parked_sync is not None:
                context.reply(member.parked_sync, SyncGroupResponse, row, ErrorCode.UNKNOWN_SERVER_ERROR)
            group.set_parked_join(member, None)
            member.parked_sync = None
            member.is_new = False

    def release(self, context: StepContext, group: ClassicGroup) -> int | None:
        """Row F4: restart the join or sync deadline if it is due. Return the end of the join phase in ms, or
        None if the group is in no join phase.

        The deadline is due if its handling raised an exception, which began the quarantine. Waiting members
        were answered with an error then, and have to send their requests again.
        """
        phase = group.join_phase
        if phase is not None and phase.deadline_ms <= context.now_ms:
            phase.deadline_ms = context.deadline(max(phase.delay_ms, JOIN_EXTENSION_MIN_MS))
        sync_timeout_ms = max(group.rebalance_timeout_ms(), JOIN_EXTENSION_MIN_MS)
        group.sync_deadline_ms = context.renewed(group.sync_deadline_ms, sync_timeout_ms)
        return None if phase is None else phase.deadline_ms

    # Who may commit to a group: a member of its generation, or anybody while it has no members. Rows O3 to
    # O8, TO4, TO5.
    #
    # Source: ClassicGroup.validateOffsetCommit.

    def check_commit(self, context: StepContext, group: ClassicGroup, request: OffsetCommit) -> RuleAndError:
        """Return the first row that applies, with its error or NONE. An accepted commit renews the session of
        a member.
        """
        has_no_generation = request.generation_id < 0
        if has_no_generation and group.is_empty:
            return context.cite("O3"), ErrorCode.NONE
        if has_no_generation and not request.member_id and request.group_instance_id is None:
            return context.cite("O4"), ErrorCode.UNKNOWN_MEMBER_ID
        error = group.validate_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return context.cite("O5"), error
        if request.generation_id != group.generation:
            return context.cite("O6"), ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.COMPLETING_REBALANCE:
            return context.cite("O7"), ErrorCode.REBALANCE_IN_PROGRESS
        arm_session(context, group.members[request.member_id])
        return context.cite("O8"), ErrorCode.NONE

    def check_txn_commit(
        self, context: StepContext, group: ClassicGroup, request: TxnOffsetCommit
    ) -> RuleAndError:
        """Return the first row that applies, with its error or NONE. No session is renewed, and the state of
        the group does not matter.
        """
        has_no_generation = request.generation_id < 0
        names_no_member = has_no_generation and not request.member_id and request.group_instance_id is None
        if names_no_member or (has_no_generation and group.is_empty):
            return context.cite("TO4"), ErrorCode.NONE
        error = group.validate_member(request.member_id, request.group_instance_id)
        if error is ErrorCode.NONE and request.generation_id != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return context.cite("TO5"), error


CLASSIC = ClassicProtocol()
