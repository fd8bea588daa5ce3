"""The consumer protocol (KIP-848) as one class: its handlers, timers, views and checks of commits.

A row, such as AD3, is a rule of docs/rules-consumer.md. `context.cite` records that a row was applied.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from msgspec import UNSET

from kafka_why.contract.kafka.requests import (
    CommittedTopic,
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    RegexResolved,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
)
from kafka_why.contract.kafka.responses import ConsumerGroupDescribeResponse, ConsumerGroupMemberDescription
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    named,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.classic.rebalance import JOIN_EXTENSION_MIN_MS
from state.kafka.consumer import classic_members
from state.kafka.consumer.classic_members import join
from state.kafka.consumer.heartbeat import KIND, check_request, heartbeat
from state.kafka.consumer.members import fence
from state.kafka.consumer.regex import regex_resolved
from state.kafka.consumer.renewals import RENEWALS
from state.kafka.consumer.target import SETTINGS, preferred_assignor, topic_metadata
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleAndError, RuleId, StepContext
from state.kafka.group import DeadlineReached, Timer, TimerKind
from state.kafka.modern import answer_not_found, described_partitions, other_type_refusal
from state.kafka.modern_protocol import EpochProtocol, EpochRows
from state.kafka.offsets import pending_offsets
from state.kafka.protocol import topic_snapshots
from state.protocol import Handlers, WhyRefused

# A group as readers see it: its view on the groups topic, and ConsumerGroupDescribe (rows AD3 to AD5).
#
# Source: GroupMetadataManager.consumerGroupDescribe, ConsumerGroup.asDescribedGroup,
# ConsumerGroupMember.asConsumerGroupDescribeMember.


_MEMBER_TYPE_CLASSIC, _MEMBER_TYPE_CONSUMER = 0, 1  # as in ConsumerGroupDescribe (KIP-1099)


def describe(context: StepContext, _: ConsumerGroupDescribe, reply_to: ReplyTo) -> None:
    """Answer with the group, its members, their assignments and their targets."""
    group = context.group_of(ConsumerGroup)
    names = group.names_by_id()
    context.reply(
        reply_to,
        ConsumerGroupDescribeResponse,
        context.cite("AD3"),
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
    """Row AD4: describe a member. Its assignment includes partitions that it still has to revoke (AD5)."""
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
        member_type=_MEMBER_TYPE_CONSUMER if member.classic is None else _MEMBER_TYPE_CLASSIC,
    )


# Permission to commit to a group of the consumer protocol and fetch from it, by member epoch. Rows OF3 to
# OF23.
#
# A commit with an earlier epoch of the member is accepted if the member already had the partitions at that
# epoch (KIP-1251). No commit extends a session, and the state of the member does not matter (rows OF15,
# OF17). Source: ConsumerGroup.validateOffsetCommit, ConsumerGroup.validateOffsetFetch.


def _topic_id(group: ConsumerGroup, topic: CommittedTopic) -> bytes | None:
    """Return the topic id of the request, or if it has none, the group's id for the name, or None."""
    if topic.topic_id is not None:
        return topic.topic_id.bytes
    group_topic = group.topics.get(topic.name)
    return None if group_topic is None else group_topic.topic_id


def _epoch_of_partition(member: ConsumerMember, topic_id: bytes | None, partition: int) -> int | None:
    """Return the epoch at which the member got the partition, or None if it does not have it."""
    if topic_id is None:
        return None
    assigned = member.assigned.get(topic_id, {})
    return assigned.get(partition, member.pending_revocation.get(topic_id, {}).get(partition))


class ConsumerProtocol(EpochProtocol[ConsumerGroup]):
    """The consumer protocol. Every request is answered at once, none is parked."""

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
        ConsumerGroupDescribe: answer_not_found("AD2", KIND, ConsumerGroupDescribeResponse),
    }
    unanswered_handlers: ClassVar[Handlers] = {TopicMetadata: topic_metadata, RegexResolved: regex_resolved}
    refusals: ClassVar[Mapping[type, WhyRefused]] = {
        ConsumerGroupHeartbeat: other_type_refusal("HB19", KIND, check_request),
        ConsumerGroupDescribe: other_type_refusal("AD2", KIND),
    }
    renewals = RENEWALS
    group_settings = SETTINGS
    settings = SETTINGS.settings
    checks_group_id = (ConsumerGroupHeartbeat,)  # row HB6

    rows = EpochRows(
        session_over="TM1",
        not_revoked="TM3",
        emptied="GS1",
        stable="GS4",
        commit_to_empty_group="OF3",
        commit_without_member="OF4",
        commit_of_no_member="OF5",
        commit_too_old="OF6",
        commit_at_epoch="OF7",
        commit_above_epoch="OF8",
        error_unknown_to_client="OF18",
        fetch_without_member="OF21",
        fetch_of_no_member="OF22",
        fetch_of_member="OF23",
    )

    def member_details(
        self, group: ConsumerGroup, member: ConsumerMember, names: Mapping[bytes, str]
    ) -> ConsumerMemberSnapshot:
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
            target=named(group.target.get(member.member_id, {}), names),
            member_type="consumer" if member.classic is None else "classic",
        )

    def details(self, group: ConsumerGroup) -> ConsumerGroupSnapshot:
        return ConsumerGroupSnapshot(
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.target_assignor,
            topics=topic_snapshots(group.topics),
            resolved_regexes={p: r.topics for p, r in sorted(group.resolved_regexes.items())},
            unknown_topics=group.unknown_topics(),
            unresolved_regexes=group.unresolved_regexes(),
            checked_regexes={p: c.seen for p, c in sorted(group.checked_regexes.items())} or UNSET,
        )

    def member_timers(self, member: ConsumerMember) -> Iterator[Timer]:
        """Yield the timers of the member. A classic member also has those of JoinGroup and SyncGroup."""
        yield from super().member_timers(member)
        classic = member.classic
        if classic is not None and classic.join_deadline_ms is not None:
            yield classic.join_deadline_ms, TimerKind.JOIN, member.member_id
        if classic is not None and classic.sync_deadline_ms is not None:
            yield classic.sync_deadline_ms, TimerKind.SYNC, member.member_id

    # Due deadlines of members. Rows TM1 to TM5: each removes its member.

    def deadline_reached(self, context: StepContext, group: ConsumerGroup, deadline: DeadlineReached) -> None:
        """Remove the member whose deadline is due."""
        member = group.members[deadline.member_id]
        row, reason = self.cause_of_deadline(context, group, member, deadline.kind)
        fence(context, row, [member.member_id], reason)

    def cause_of_deadline(
        self, context: StepContext, group: ConsumerGroup, member: ConsumerMember, kind: TimerKind
    ) -> tuple[RuleId, str]:
        within_timeout = f"within its rebalance timeout of {member.rebalance_timeout_ms} ms"
        match kind:
            case TimerKind.HEARTBEAT if member.session_timeout_ms is not None:
                session_timeout = f"its session timeout of {member.session_timeout_ms} ms"
                return context.cite("TM2"), f"no heartbeat within {session_timeout}"
            case TimerKind.JOIN:
                return context.cite("TM4"), f"did not join again {within_timeout}"
            case TimerKind.SYNC:
                return context.cite("TM5"), f"no SyncGroup {within_timeout}"
        return super().cause_of_deadline(context, group, member, kind)

    # Deadlines after an outage (row F5) or a quarantine (row F4), in which time stood still. Row TM12.

    def shift_deadlines(self, context: StepContext, group: ConsumerGroup, by_ms: int) -> None:
        super().shift_deadlines(context, group, by_ms)
        for member in group.members.values():
            if (classic := member.classic) is not None:
                classic.join_deadline_ms = context.delayed(classic.join_deadline_ms, by_ms)
                classic.sync_deadline_ms = context.delayed(classic.sync_deadline_ms, by_ms)

    def release(self, context: StepContext, group: ConsumerGroup) -> None:
        """Row F4: restart the members' deadlines that are due.

        Otherwise the deadline whose handling raised an exception would fire at once and quarantine the group
        again.
        """
        for member in group.members.values():
            timeout_ms = max(member.rebalance_timeout_ms, JOIN_EXTENSION_MIN_MS)
            member.rebalance_deadline_ms = context.renewed(member.rebalance_deadline_ms, timeout_ms)
            if (classic := member.classic) is not None:
                classic.join_deadline_ms = context.renewed(classic.join_deadline_ms, timeout_ms)
                classic.sync_deadline_ms = context.renewed(classic.sync_deadline_ms, timeout_ms)

    # Who may commit and fetch offsets. Rows OF3 to OF23.

    def stale_error(self, member: ConsumerMember) -> ErrorCode:
        """Return the error for another epoch than the member's, from the protocol that its client uses."""
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def validate_past_epoch(
        self,
        context: StepContext,
        group: ConsumerGroup,
        member: ConsumerMember,
        epoch: int,
        topics: Iterable[CommittedTopic],
    ) -> RuleAndError:
        """Rows OF9 to OF13: accept the commit if the member already had each committed partition at the
        commit's epoch.
        """
        context.cite("OF9")
        for topic in topics:
            topic_id = _topic_id(group, topic)
            for partition in topic.partitions:
                since_epoch = _epoch_of_partition(member, topic_id, partition.partition_index)
                if since_epoch is None or epoch < since_epoch:
                    row = context.cite("OF11" if since_epoch is None else "OF12")
                    context.cite("OF13")
                    return row, self.stale_error(member)
        return context.cite("OF10"), ErrorCode.NONE


CONSUMER = ConsumerProtocol()
