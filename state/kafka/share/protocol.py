"""The protocol of share groups (KIP-932) as an object."""

from collections.abc import Iterator, Mapping
from typing import ClassVar
from uuid import UUID

from assignors.kafka import simple
from kafka_why.contract.kafka.history import EntryType, MemberState
from kafka_why.contract.kafka.requests import (
    DeleteGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import (
    DescribeShareGroupOffsetsResponse,
    LeaveGroupResponse,
    LeftMember,
    ShareGroupDescribeResponse,
    ShareGroupMemberDescription,
    ShareTopicPartitions,
)
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStateResult,
)
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    ShareSnapshot,
    ShareTask,
    ShareTaskPartitions,
    named,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import RuleAndError, StepContext
from state.kafka.group import Timer, TimerKind
from state.kafka.modern import described_partitions, record_stable
from state.kafka.offsets import answer_fetch
from state.kafka.protocol import Before, KafkaProtocol, answer_with, common_fields, topic_snapshots
from state.kafka.share.heartbeat import (
    SETTINGS,
    alter_no_offsets,
    deadline_reached,
    delete_no_offsets,
    describe_no_group,
    heartbeat,
    refusal_of_describe,
    refusal_of_heartbeat,
    refusal_of_offsets,
)
from state.kafka.share.offsets import alter_offsets, delete_offsets
from state.kafka.share.state import (
    answer_parked,
    delete_group,
    forget_unused,
    maybe_end_deletion,
    note_deletion,
    note_ended,
    note_initialization,
    stop_watching,
    topic_metadata,
)
from state.kafka.share_group import InitializationTask, ShareGroup, ShareMember
from state.protocol import Handlers, Outage, WhyRefused

# A share group as readers see it: its view on the groups topic, ShareGroupDescribe and
# DescribeShareGroupOffsets.


# ShareGroupDescribe, and the coordinator's part of DescribeShareGroupOffsets. Rows SD3, SO3.
#
# Source: GroupMetadataManager.shareGroupDescribe, ShareGroup.asDescribedGroup,
# ShareGroupMember.asShareGroupDescribeMember, GroupCoordinatorService.describeShareGroupAllOffsets.


def describe(context: StepContext, _: ShareGroupDescribe, reply_to: ReplyTo) -> None:
    """Answer with the group and its members, sorted by id. Their partitions of deleted topics are
    left out.
    """
    group = context.group_of(ShareGroup)
    names = group.names_by_id()
    context.reply(
        reply_to,
        ShareGroupDescribeResponse,
        context.rule("SD3"),
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=simple.NAME,
        members=[
            ShareGroupMemberDescription(
                member_id=member.member_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.subscribed_topic_names,
                assignment=described_partitions(member.assigned, names),
            )
            for _, member in sorted(group.members.items())
        ],
    )


def describe_offsets(context: StepContext, _: DescribeShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Answer with the initialized partitions of existing topics, by topic name."""
    group = context.group_of(ShareGroup)
    names = group.names_by_id()
    found = sorted((names[id_], id_) for id_ in group.initialized if id_ in names)
    context.reply(
        reply_to,
        DescribeShareGroupOffsetsResponse,
        context.rule("SO3"),
        topics=[
            ShareTopicPartitions(name, UUID(bytes=id_), group.initialized[id_].partitions)
            for name, id_ in found
        ],
    )


def _member_snapshot(group: ShareGroup, member: ShareMember, names: dict[bytes, str]) -> MemberSnapshot:
    return MemberSnapshot(
        member_id=member.member_id,
        group_instance_id=None,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=0,
        rebalance_timeout_ms=0,
        metadata=b"",
        assignment=b"",
        rejoined=False,
        consumer=ConsumerMemberSnapshot(
            member_epoch=member.member_epoch,
            previous_epoch=member.previous_epoch,
            state=MemberState.STABLE.value,
            rack_id=member.rack_id,
            subscribed_topic_names=member.subscribed_topic_names,
            subscribed_topic_regex="",
            server_assignor=None,
            assigned=named(member.assigned, names),
            revoking={},
            target=named(group.target.get(member.member_id, {}), names),
            member_type=group.type_name,
        ),
    )


def open_tasks(group: ShareGroup) -> list[ShareTask]:
    """Return the open tasks, the oldest first. One task has all partitions that were requested together."""
    tasks: dict[str, ShareTask] = {}
    for topic_id, initializing in group.initializing.items():
        alike: dict[InitializationTask, list[int]] = {}
        for number, asked in initializing.partitions.items():
            if asked.task:
                alike.setdefault(asked, []).append(number)
        for asked, numbers in alike.items():
            task = tasks.setdefault(asked.task, ShareTask(asked.task, "initialize", asked.at_ms, []))
            task.topics.append(
                ShareTaskPartitions(
                    str(UUID(bytes=topic_id)),
                    initializing.name,
                    sorted(numbers),
                    asked.state_epoch,
                    asked.start_offset,
                    asked.error_code,
                    asked.altered,
                )
            )
    for topic_id, deleting in group.deleting.items():
        numbers = sorted(number for number, code in deleting.partitions.items() if not code)
        if deleting.task and numbers:
            task = tasks.setdefault(deleting.task, ShareTask(deleting.task, "delete", deleting.at_ms, []))
            task.topics.append(ShareTaskPartitions(str(UUID(bytes=topic_id)), deleting.name, numbers))
    return sorted(tasks.values(), key=lambda task: (task.asked_at_ms, task.task))


def state_result(context: StepContext, group: ShareGroup, result: ShareStateResult) -> None:
    """Apply the outcome of a task or of a part of it. Members get the consequences with their next
    heartbeats.
    """
    deletes = any(topic.task == result.task for topic in group.deleting.values())
    ended = note_deletion(context, group, result) if deletes else note_initialization(context, group, result)
    stop_watching(group)
    note_ended(context, group, ended)
    if not ended.keys() <= group.initializing.keys() | group.initialized.keys() | group.deleting.keys():
        forget_unused(context, group)
    maybe_end_deletion(context, group)


# Requests of other protocols to a share group. Rows SD8, SD9, SO21, SO22.
#
# Source: GroupMetadataManager (classicGroupJoin, classicGroupSync, classicGroupHeartbeat,
# classicGroupLeave), OffsetMetadataManager.validateOffsetCommit.


def _refuse_leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    error = ErrorCode.UNKNOWN_MEMBER_ID
    members = [LeftMember(member.member_id, member.group_instance_id, error) for member in request.members]
    context.reply(reply_to, LeaveGroupResponse, context.rule("SD9"), members=members)


def _fetch_no_offsets(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    # A share group has no committed offsets, which is not an error.
    answer_fetch(context, request, reply_to, {}, {}, context.rule("SO22"))


class ShareProtocol(KafkaProtocol[ShareGroup]):
    """The protocol of share groups. Requests that need the share coordinator are parked."""

    group_class = ShareGroup
    handlers: ClassVar[Handlers] = {
        ShareGroupHeartbeat: heartbeat,
        ShareGroupDescribe: describe,
        DescribeShareGroupOffsets: describe_offsets,
        AlterShareGroupOffsets: alter_offsets,
        DeleteShareGroupOffsets: delete_offsets,
        DeleteGroup: delete_group,
        # A share group never becomes a group of another protocol, not even an Empty one.
        JoinGroup: answer_with("SD8", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        SyncGroup: answer_with("SD9", ErrorCode.UNKNOWN_MEMBER_ID),
        Heartbeat: answer_with("SD9", ErrorCode.UNKNOWN_MEMBER_ID),
        LeaveGroup: _refuse_leave,
        OffsetFetch: _fetch_no_offsets,
        OffsetDelete: answer_with("SO21", ErrorCode.GROUP_ID_NOT_FOUND),
    }
    without_own_group: ClassVar[Handlers] = {
        ShareGroupHeartbeat: heartbeat,
        ShareGroupDescribe: describe_no_group,
        DescribeShareGroupOffsets: answer_with("SO5"),  # as in Kafka, a missing share group is not an error
        AlterShareGroupOffsets: alter_no_offsets,
        DeleteShareGroupOffsets: delete_no_offsets,
    }
    unanswered_handlers: ClassVar[Handlers] = {TopicMetadata: topic_metadata, ShareStateResult: state_result}
    refusals: ClassVar[Mapping[type, WhyRefused]] = {
        ShareGroupHeartbeat: refusal_of_heartbeat,
        ShareGroupDescribe: refusal_of_describe,
        DescribeShareGroupOffsets: refusal_of_offsets,
        AlterShareGroupOffsets: refusal_of_offsets,
        DeleteShareGroupOffsets: refusal_of_offsets,
    }
    settings = SETTINGS.settings
    checks_group_id = (ShareGroupHeartbeat,)  # row SH7

    deadline_reached = staticmethod(deadline_reached)
    answer_parked = staticmethod(answer_parked)

    conflict_of = staticmethod(SETTINGS.conflict_of)

    def view(self, group: ShareGroup) -> GroupSnapshot:
        """Return a copy of the group for readers."""
        names = group.names_by_id()
        return GroupSnapshot(
            **common_fields(group),
            protocol_name=None,
            leader_id=None,
            members=[_member_snapshot(group, member, names) for member in group.members.values()],
            pending_members=[],
            subscribed_topics=sorted(group.subscribed()),
            consumer=ConsumerGroupSnapshot(
                assignment_epoch=group.assignment_epoch,
                assignor_name=simple.NAME,
                topics=topic_snapshots(group.topics),
                resolved_regexes={},
                unknown_topics=group.unknown_topics(),
                unresolved_regexes=[],
                share=ShareSnapshot(
                    initializing={
                        topic.name: sorted(topic.partitions) for topic in group.initializing.values()
                    },
                    initialized={topic.name: topic.partitions for topic in group.initialized.values()},
                    deleting={topic.name: sorted(topic.partitions) for topic in group.deleting.values()},
                    tasks=open_tasks(group),
                ),
            ),
        )

    # The armed timers of a share group: its members' sessions, and the timers of parked requests and of the
    # share coordinator's tasks.

    def timers(self, group: ShareGroup) -> Iterator[Timer]:
        """Yield the timers of the group and all members."""
        for member_id in group.members:
            yield from self.timers_of(group, TimerKind.HEARTBEAT, member_id)
        yield from self.timers_of(group, TimerKind.PARKED, "")
        yield from self.timers_of(group, TimerKind.TASK, "")

    def timers_of(self, group: ShareGroup, kind: TimerKind, member_id: str) -> Iterator[Timer]:
        """Yield the timer of this kind of one member, or of the group, if it is armed."""
        if kind is TimerKind.PARKED:
            if group.parked:
                yield min(parked.deadline_ms for parked in group.parked), kind, ""
            return
        if kind is TimerKind.TASK:
            if group.overdue_deadline_ms is not None:
                yield group.overdue_deadline_ms, kind, ""
            return
        member = group.members.get(member_id)
        if member is not None and member.session_deadline_ms is not None:
            yield member.session_deadline_ms, TimerKind.HEARTBEAT, member_id

    # The end of a step: has the group members, and has each its target? Rows SG4, SG5, SP25.

    def before(self, group: ShareGroup) -> Before:
        """Return the state of the group, and True if members are still moving to a target."""
        return group.state, not group.is_settled

    def settle(self, context: StepContext, group: ShareGroup, before: Before) -> None:
        """Record that each member has its target, and the time of each change of the state.

        The group's state does not show the former. `before` is the state before the step, `Empty` for a new
        group.
        """
        # Every change of the state has a history entry.
        if not context.has_history:
            return
        state_before, was_unsettled = before
        group.forget_progress()
        if group.state != state_before:
            context.rule("SG5" if group.members else "SG4")
            group.state_timestamp_ms = context.now_ms
        has_rebalanced = was_unsettled or context.has_recorded(EntryType.GROUP_EPOCH_BUMPED)
        if group.members and has_rebalanced and group.is_settled:
            record_stable(context, group, context.rule("SP25"), group.members, has_rebalanced=True)

    def take_over(self, context: StepContext, group: ShareGroup, outage: Outage) -> None:
        """Restart all sessions (row SR7). The topics are compared again, because they may have changed."""
        group.metadata_stale = True
        row = context.rule("F5")
        self.shift_deadlines(context, group, outage.length_ms)
        if group.members:
            context.record(
                row,
                EntryType.TAKEN_OVER,
                f"no coordinator ran for {outage.length_ms} ms: sessions begin anew",
                members=list(group.members),
            )

    def shift_deadlines(self, context: StepContext, group: ShareGroup, by_ms: int) -> None:
        """Restart the sessions, and shift the other deadlines by `by_ms`, for which time stood still."""
        timeout_ms = SETTINGS.of(context).session_timeout_ms
        for member in group.members.values():
            member.session_deadline_ms = context.deadline(timeout_ms)
        for parked in group.parked:
            parked.deadline_ms = context.deadline_at(parked.deadline_ms + by_ms)
        if group.overdue_deadline_ms is not None:
            group.overdue_deadline_ms = context.deadline_at(group.overdue_deadline_ms + by_ms)

    def release(self, context: StepContext, group: ShareGroup) -> None:
        """Row F4: do nothing, because the sessions moved with the group's clock."""

    def check_commit(
        self, context: StepContext, group: ShareGroup, request: OffsetCommit | TxnOffsetCommit
    ) -> RuleAndError:
        """Refuse the commit: a share group has no committed offsets."""
        return context.rule("SO21"), ErrorCode.GROUP_ID_NOT_FOUND

    check_txn_commit = check_commit


SHARE = ShareProtocol()
