"""The consumer protocol (KIP-848) as an object."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from msgspec import UNSET

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH, ConsumerGroupState, EntryType
from kafka_why.contract.kafka.requests import (
    CommittedTopic,
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetch,
    RegexResolved,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import ConsumerGroupDescribeResponse, ConsumerGroupMemberDescription
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    Partitions,
    named,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.classic.rebalance import JOIN_EXTENSION_MIN_MS
from state.kafka.commits import FIRST_VERSION_WITH_ERRORS_OF_GROUPS, FIRST_VERSION_WITH_MEMBER_EPOCH
from state.kafka.consumer import classic_members
from state.kafka.consumer.classic_members import join
from state.kafka.consumer.heartbeat import (
    describe_no_group,
    heartbeat,
    refusal_of_describe,
    refusal_of_heartbeat,
)
from state.kafka.consumer.members import fence
from state.kafka.consumer.regex import regex_resolved
from state.kafka.consumer.renewals import RENEWALS
from state.kafka.consumer.target import SETTINGS, arm_session, preferred_assignor, topic_metadata
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleAndError, RuleId, StepContext
from state.kafka.group import DeadlineReached, Timer, TimerKind
from state.kafka.modern import described_partitions, record_stable
from state.kafka.offsets import pending_offsets
from state.kafka.protocol import Before, KafkaProtocol, common_fields, topic_snapshots
from state.protocol import Handlers, Outage, WhyRefused

# A group as readers see it: its view on the groups topic, and ConsumerGroupDescribe (rows AD3 to AD5).


# ConsumerGroupDescribe. Rows AD3 to AD5.
#
# Source: GroupMetadataManager.consumerGroupDescribe, ConsumerGroup.asDescribedGroup,
# ConsumerGroupMember.asConsumerGroupDescribeMember.


_CLASSIC, _CONSUMER = 0, 1  # the types of members (KIP-1099)


def describe(context: StepContext, _: ConsumerGroupDescribe, reply_to: ReplyTo) -> None:
    """Answer with the group, its members, their assignments and their targets."""
    group = context.group_of(ConsumerGroup)
    names = group.names_by_id()
    context.reply(
        reply_to,
        ConsumerGroupDescribeResponse,
        context.rule("AD3"),
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group, context.config),
        members=[_described_member(group, member, names) for member in group.members.values()],
        pending_offsets=pending_offsets(group) if group.pending else UNSET,
    )


def _described_member(
    group: ConsumerGroup, member: ConsumerMember, names: Mapping[bytes, str]
) -> ConsumerGroupMemberDescription:
    """Row AD4: describe a member. Its assignment includes partitions that it has not revoked yet (AD5)."""
    held: dict[bytes, set[int]] = {}
    for partitions in (member.assigned, member.pending_revocation):
        for topic_id, numbers in partitions.items():
            held.setdefault(topic_id, set()).update(numbers)
    return ConsumerGroupMemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=described_partitions(held, names),
        target_assignment=described_partitions(group.target.get(member.member_id, {}), names),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _members(group: ConsumerGroup) -> list[MemberSnapshot]:
    names = group.names_by_id()
    return [
        MemberSnapshot(
            member_id=m.member_id,
            group_instance_id=m.instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            session_timeout_ms=0 if m.classic is None else m.classic.session_timeout_ms,
            rebalance_timeout_ms=m.rebalance_timeout_ms,
            metadata=b"",
            assignment=b"",
            rejoined=False,
            consumer=_member(m, group.target.get(m.member_id, {}), names),
        )
        for m in group.members.values()
    ]


def _member(member: ConsumerMember, target: Partitions, names: dict[bytes, str]) -> ConsumerMemberSnapshot:
    return ConsumerMemberSnapshot(
        member_epoch=member.member_epoch,
        previous_epoch=member.previous_epoch,
        state=member.state.value,
        rack_id=member.rack_id,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        server_assignor=member.server_assignor,
        assigned=named(member.assigned, names),
        revoking=named(member.pending_revocation, names),
        target=named(target, names),
        member_type="consumer" if member.classic is None else "classic",
    )


def _details(group: ConsumerGroup) -> ConsumerGroupSnapshot:
    return ConsumerGroupSnapshot(
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.target_assignor,
        topics=topic_snapshots(group.topics),
        resolved_regexes={p: r.topics for p, r in sorted(group.resolved_regexes.items())},
        unknown_topics=group.unknown_topics(),
        unresolved_regexes=group.unresolved_regexes(),
        checked_regexes={p: c.seen for p, c in sorted(group.checked_regexes.items())} or UNSET,
    )


def _of_member(member: ConsumerMember) -> Iterator[Timer]:
    if (at_ms := member.session_deadline_ms) is not None:
        yield at_ms, TimerKind.HEARTBEAT, member.member_id
    if (at_ms := member.rebalance_deadline_ms) is not None:
        yield at_ms, TimerKind.REBALANCE, member.member_id
    classic = member.classic
    if classic is not None and classic.join_deadline_ms is not None:
        yield classic.join_deadline_ms, TimerKind.JOIN, member.member_id
    if classic is not None and classic.sync_deadline_ms is not None:
        yield classic.sync_deadline_ms, TimerKind.SYNC, member.member_id


def _cause_of_deadline(context: StepContext, member: ConsumerMember, kind: TimerKind) -> tuple[RuleId, str]:
    """Return the row of a due deadline, and a text about what the member failed to do in time."""
    own = f"within its rebalance timeout of {member.rebalance_timeout_ms} ms"
    match kind:
        case TimerKind.HEARTBEAT if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
            return context.rule("TM2"), f"no heartbeat within its session timeout of {timeout_ms} ms"
        case TimerKind.HEARTBEAT:
            timeout_ms = SETTINGS.of(context).session_timeout_ms
            missed = "no heartbeat"
            if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
                missed = "left for a while and did not come back"
            return context.rule("TM1"), f"{missed} within the session timeout of {timeout_ms} ms"
        case TimerKind.REBALANCE:
            return context.rule("TM3"), f"did not revoke its partitions {own}"
        case TimerKind.JOIN:
            return context.rule("TM4"), f"did not join again {own}"
        case TimerKind.SYNC:
            return context.rule("TM5"), f"no SyncGroup {own}"
        case TimerKind.RETENTION | TimerKind.PARKED | TimerKind.TASK | TimerKind.INITIAL_DELAY:
            raise AssertionError("this deadline belongs to no member")


def _is_due(context: StepContext, deadline_ms: int | None) -> bool:
    return deadline_ms is not None and deadline_ms <= context.now_ms


# Permission to commit to a group of the consumer protocol and fetch from it, by member epoch. Rows OF3 to
# OF23.
#
# A member whose epoch has moved on may still commit the partitions that it had at the epoch of its commit
# (KIP-1251). No commit extends a session, and the state of the member does not matter (rows OF15, OF17).
# Source: ConsumerGroup.validateOffsetCommit, ConsumerGroup.validateOffsetFetch.


def _validate_epoch(
    context: StepContext, member: ConsumerMember, epoch: int, topics: Iterable[CommittedTopic]
) -> RuleAndError:
    """Rows OF7 to OF13: check the epoch of a commit.

    The whole commit is refused if the member may not commit one of its partitions.
    """
    if epoch == member.member_epoch:
        return context.rule("OF7"), ErrorCode.NONE
    if epoch > member.member_epoch:
        return context.rule("OF8"), _epoch_error(member)
    context.rule("OF9")
    for topic in topics:
        topic_id = _topic_id(context.group_of(ConsumerGroup), topic)
        for partition in topic.partitions:
            since = _assignment_epoch(member, topic_id, partition.partition_index)
            if since is None or epoch < since:
                row = context.rule("OF11" if since is None else "OF12")
                context.rule("OF13")
                return row, _epoch_error(member)
    return context.rule("OF10"), ErrorCode.NONE


def _topic_id(group: ConsumerGroup, topic: CommittedTopic) -> bytes | None:
    if topic.topic_id is not None:
        return topic.topic_id.bytes
    known = group.topics.get(topic.name)
    return None if known is None else known.topic_id


def _assignment_epoch(member: ConsumerMember, topic_id: bytes | None, partition: int) -> int | None:
    """Return the epoch at which the member got the partition, or None if it does not have it."""
    if topic_id is None:
        return None
    assigned = member.assigned.get(topic_id, {})
    return assigned.get(partition, member.pending_revocation.get(topic_id, {}).get(partition))


def _epoch_error(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


class ConsumerProtocol(KafkaProtocol[ConsumerGroup]):
    """The consumer protocol. No request is parked: each is answered at once."""

    group_class = ConsumerGroup
    handlers: ClassVar[Handlers] = {
        ConsumerGroupHeartbeat: heartbeat,
        ConsumerGroupDescribe: describe,
        JoinGroup: join,
        SyncGroup: classic_members.sync,
        Heartbeat: classic_members.heartbeat,
        LeaveGroup: classic_members.leave,
    }
    without_own_group: ClassVar[Handlers] = {
        ConsumerGroupHeartbeat: heartbeat,
        ConsumerGroupDescribe: describe_no_group,
    }
    unanswered_handlers: ClassVar[Handlers] = {TopicMetadata: topic_metadata, RegexResolved: regex_resolved}
    refusals: ClassVar[Mapping[type, WhyRefused]] = {
        ConsumerGroupHeartbeat: refusal_of_heartbeat,
        ConsumerGroupDescribe: refusal_of_describe,
    }
    renewals = RENEWALS
    settings = SETTINGS.settings
    checks_group_id = (ConsumerGroupHeartbeat,)  # row HB6

    conflict_of = staticmethod(SETTINGS.conflict_of)

    def view(self, group: ConsumerGroup) -> GroupSnapshot:
        """Return a copy of the group for readers."""
        return GroupSnapshot(
            **common_fields(group),
            protocol_name=None,
            leader_id=None,
            members=_members(group),
            pending_members=[],
            subscribed_topics=sorted(group.subscribed()),
            consumer=_details(group),
        )

    def timers(self, group: ConsumerGroup) -> Iterator[Timer]:
        """Yield the timers of all members."""
        for member in group.members.values():
            yield from _of_member(member)

    def timers_of(self, group: ConsumerGroup, kind: TimerKind, member_id: str) -> Iterator[Timer]:
        """Yield the timers of the member, none if the group has no member with this id."""
        member = group.members.get(member_id)
        return iter(()) if member is None else _of_member(member)

    # Due deadlines of members. Rows TM1 to TM5: each removes its member.

    def deadline_reached(self, context: StepContext, group: ConsumerGroup, deadline: DeadlineReached) -> None:
        """Remove the member whose deadline is due."""
        member = group.members[deadline.member_id]
        row, reason = _cause_of_deadline(context, member, deadline.kind)
        fence(context, row, [member.member_id], reason)

    # Deadlines after an outage (row F5) or a quarantine (row F4), in which time stood still. Row TM12.

    def take_over(self, context: StepContext, group: ConsumerGroup, outage: Outage) -> None:
        """Restart all sessions and shift all other timers by the length of the outage."""
        # Row MD11: topics may have changed meanwhile.
        group.metadata_stale = True
        if not group.members:
            return
        row = context.rule("F5")
        self.shift_deadlines(context, group, outage.length_ms)
        context.record(
            row,
            EntryType.TAKEN_OVER,
            f"no coordinator ran for {outage.length_ms} ms: sessions begin anew, reconciliations go on",
            members=list(group.members),
        )

    def shift_deadlines(self, context: StepContext, group: ConsumerGroup, by_ms: int) -> None:
        """Restart the sessions, and shift the other deadlines by `by_ms`, for which time stood still."""
        for member in group.members.values():
            arm_session(context, member)
            if member.rebalance_deadline_ms is not None:
                member.rebalance_deadline_ms = context.deadline_at(member.rebalance_deadline_ms + by_ms)
            classic = member.classic
            if classic is not None and classic.join_deadline_ms is not None:
                classic.join_deadline_ms = context.deadline_at(classic.join_deadline_ms + by_ms)
            if classic is not None and classic.sync_deadline_ms is not None:
                classic.sync_deadline_ms = context.deadline_at(classic.sync_deadline_ms + by_ms)

    def release(self, context: StepContext, group: ConsumerGroup) -> None:
        """Row F4: give due deadlines of members their full time again.

        Otherwise the deadline whose handling raised would fire at once and quarantine the group again.
        """
        for member in group.members.values():
            full_ms = max(member.rebalance_timeout_ms, JOIN_EXTENSION_MIN_MS)
            if _is_due(context, member.rebalance_deadline_ms):
                member.rebalance_deadline_ms = context.deadline(full_ms)
            classic = member.classic
            if classic is not None and _is_due(context, classic.join_deadline_ms):
                classic.join_deadline_ms = context.deadline(full_ms)
            if classic is not None and _is_due(context, classic.sync_deadline_ms):
                classic.sync_deadline_ms = context.deadline(full_ms)

    # The end of a step: has the group become Stable or Empty? Rows GS1 and GS4.

    def before(self, group: ConsumerGroup) -> Before:
        """Return the state of the group, and True if its members are still moving to their targets."""
        return group.progress

    def settle(self, context: StepContext, group: ConsumerGroup, before: Before) -> None:
        """Record that the group has become Stable or Empty, and the time of each change of its state.

        `before` is the state before the step, `Empty` for a new group.
        """
        # Every change of the state has a history entry.
        if not context.has_history:
            return
        state_before, was_rebalancing = before
        group.forget_progress()
        state = group.progress.state
        if state == state_before:
            return
        group.state_timestamp_ms = context.now_ms
        if state is ConsumerGroupState.EMPTY:
            context.record(context.rule("GS1"), EntryType.EMPTY, "the last member is gone")
        elif state is ConsumerGroupState.STABLE:
            # A static member that comes back in time ends no rebalance.
            has_rebalanced = was_rebalancing or group.last_rebalance_at_ms == context.now_ms
            record_stable(context, group, context.rule("GS4"), group.members, has_rebalanced=has_rebalanced)

    def check_commit(self, context: StepContext, group: ConsumerGroup, request: OffsetCommit) -> RuleAndError:
        """Rows OF3, OF5 to OF13: return the row and the error for an OffsetCommit."""
        if request.generation_id < 0 and group.is_empty:
            return context.rule("OF3"), ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return context.rule("OF5"), ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and request.api_version < FIRST_VERSION_WITH_MEMBER_EPOCH:
            return context.rule("OF6"), ErrorCode.UNSUPPORTED_VERSION
        return _validate_epoch(context, member, request.generation_id, request.topics)

    def check_txn_commit(
        self, context: StepContext, group: ConsumerGroup, request: TxnOffsetCommit
    ) -> RuleAndError:
        """Rows OF3 to OF5, OF7 to OF13 and OF18: return the row and the error for a TxnOffsetCommit."""
        has_no_epoch = request.generation_id < 0
        if has_no_epoch and group.is_empty:
            return context.rule("OF3"), ErrorCode.NONE
        if has_no_epoch and not request.member_id and request.group_instance_id is None:
            return context.rule("OF4"), ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return context.rule("OF5"), ErrorCode.UNKNOWN_MEMBER_ID
        row, error = _validate_epoch(context, member, request.generation_id, request.topics)
        knows_error = request.api_version >= FIRST_VERSION_WITH_ERRORS_OF_GROUPS
        if error is ErrorCode.STALE_MEMBER_EPOCH and not knows_error:
            context.rule("OF18")
            error = ErrorCode.ILLEGAL_GENERATION
        return row, error

    def check_fetch(
        self, context: StepContext, group: ConsumerGroup, request: OffsetFetch
    ) -> RuleAndError | None:
        """Rows OF21 to OF23: return the row and the error that refuse the request, or None."""
        if request.member_id is None and request.member_epoch < 0:
            context.rule("OF21")
            return None
        members = group.members
        member = None if request.member_id is None else members.get(request.member_id)
        if member is None:
            return context.rule("OF22"), ErrorCode.UNKNOWN_MEMBER_ID
        row = context.rule("OF23")
        return None if request.member_epoch == member.member_epoch else (row, _epoch_error(member))


CONSUMER = ConsumerProtocol()
