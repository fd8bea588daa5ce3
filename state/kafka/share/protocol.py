"""The protocol of share groups (KIP-932) as one class: its handlers, timers and views.

A row, such as SD3, is a rule of docs/rules-share.md. `context.cite` records that a row was applied.
"""

from collections.abc import Iterator, Mapping
from functools import partial
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
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponse,
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
    ShareSnapshot,
    ShareTask,
    ShareTaskPartitions,
    named,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import RuleAndError, StepContext
from state.kafka.group import Timer, TimerKind
from state.kafka.modern import answer_not_found, described_partitions, other_type_refusal, record_stable
from state.kafka.modern_protocol import ModernProtocol
from state.kafka.offsets import fetch_nothing
from state.kafka.protocol import Before, answer_with, refuse_leave_with, topic_snapshots
from state.kafka.share.heartbeat import (
    KIND,
    SETTINGS,
    alter_without_group,
    check_request,
    deadline_reached,
    heartbeat,
)
from state.kafka.share.offsets import alter_offsets, delete_offsets
from state.kafka.share.state import (
    answer_parked,
    apply_deletion,
    apply_initialization,
    delete_group,
    disarm_overdue_timer,
    forget_unused,
    maybe_end_deletion,
    store_outcomes,
    topic_metadata,
)
from state.kafka.share_group import InitializationTask, ShareGroup, ShareMember
from state.protocol import Handlers, WhyRefused

# A share group as readers see it: its view on the groups topic, ShareGroupDescribe, and the coordinator's
# part of DescribeShareGroupOffsets. Rows SD3, SO3.
#
# Source: GroupMetadataManager.shareGroupDescribe, ShareGroup.asDescribedGroup,
# ShareGroupMember.asShareGroupDescribeMember, GroupCoordinatorService.describeShareGroupAllOffsets.


def describe(context: StepContext, _: ShareGroupDescribe, reply_to: ReplyTo) -> None:
    """Answer with the group and its members, sorted by id. Members' partitions of deleted topics are left
    out.
    """
    group = context.group_of(ShareGroup)
    names = group.names_by_id()
    context.reply(
        reply_to,
        ShareGroupDescribeResponse,
        context.cite("SD3"),
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
    """Answer with the initialized partitions of existing topics, by topic name. The sender of the request
    reads their offsets from the share coordinator.
    """
    group = context.group_of(ShareGroup)
    names = group.names_by_id()
    topics = sorted((names[id_], id_) for id_ in group.initialized if id_ in names)
    context.reply(
        reply_to,
        DescribeShareGroupOffsetsResponse,
        context.cite("SO3"),
        topics=[
            ShareTopicPartitions(name, UUID(bytes=id_), group.initialized[id_].partitions)
            for name, id_ in topics
        ],
    )


def open_tasks(group: ShareGroup) -> list[ShareTask]:
    """Return the open tasks, the oldest first. One task has all partitions that were requested together."""
    tasks: dict[str, ShareTask] = {}
    for topic_id, initializing in group.initializing.items():
        numbers_by_task: dict[InitializationTask, list[int]] = {}
        for number, initialization in initializing.partitions.items():
            if initialization.task:
                numbers_by_task.setdefault(initialization, []).append(number)
        for initialization, numbers in numbers_by_task.items():
            task = tasks.setdefault(
                initialization.task,
                ShareTask(initialization.task, "initialize", initialization.at_ms, []),
            )
            task.topics.append(
                ShareTaskPartitions(
                    str(UUID(bytes=topic_id)),
                    initializing.name,
                    sorted(numbers),
                    initialization.state_epoch,
                    initialization.start_offset,
                    initialization.error_code,
                    initialization.altered,
                )
            )
    for topic_id, deleting in group.deleting.items():
        numbers = sorted(number for number, code in deleting.partitions.items() if not code)  # no outcome yet
        if deleting.task and numbers:
            task = tasks.setdefault(deleting.task, ShareTask(deleting.task, "delete", deleting.at_ms, []))
            task.topics.append(ShareTaskPartitions(str(UUID(bytes=topic_id)), deleting.name, numbers))
    return sorted(tasks.values(), key=lambda task: (task.asked_at_ms, task.task))


def state_result(context: StepContext, group: ShareGroup, result: ShareStateResult) -> None:
    """Apply the share coordinator's outcome of a task, or of some partitions of the task. Members see the
    consequences at their next heartbeats.
    """
    is_deletion = any(topic.task == result.task for topic in group.deleting.values())
    apply = apply_deletion if is_deletion else apply_initialization
    ended = apply(context, group, result)
    disarm_overdue_timer(group)
    store_outcomes(context, group, ended)
    topics_with_state = group.initializing.keys() | group.initialized.keys() | group.deleting.keys()
    if not ended.keys() <= topics_with_state:  # a topic has lost its last state, so it may be unused
        forget_unused(context, group)
    maybe_end_deletion(context, group)


# Requests of other protocols to a share group. Rows SD8, SD9, SO21, SO22.
#
# Source: GroupMetadataManager (classicGroupJoin, classicGroupSync, classicGroupHeartbeat,
# classicGroupLeave), OffsetMetadataManager.validateOffsetCommit.


class ShareProtocol(ModernProtocol[ShareGroup]):
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
        LeaveGroup: refuse_leave_with("SD9"),
        OffsetFetch: partial(fetch_nothing, row="SO22"),  # without committed offsets, which is not an error
        OffsetDelete: answer_with("SO21", ErrorCode.GROUP_ID_NOT_FOUND),
    }
    without_own_group: ClassVar[Handlers] = {
        ShareGroupHeartbeat: heartbeat,
        ShareGroupDescribe: answer_not_found("SD2", KIND, ShareGroupDescribeResponse),
        DescribeShareGroupOffsets: answer_with("SO5"),  # as in Kafka, a missing share group is not an error
        AlterShareGroupOffsets: alter_without_group,
        DeleteShareGroupOffsets: answer_not_found("SO14a", KIND, DeleteShareGroupOffsetsResponse),
    }
    unanswered_handlers: ClassVar[Handlers] = {TopicMetadata: topic_metadata, ShareStateResult: state_result}
    refusals: ClassVar[Mapping[type, WhyRefused]] = {
        ShareGroupHeartbeat: other_type_refusal("SD11", KIND, check_request),
        ShareGroupDescribe: other_type_refusal("SD2", KIND),
        DescribeShareGroupOffsets: other_type_refusal("SD11", KIND),
        AlterShareGroupOffsets: other_type_refusal("SD11", KIND),
        DeleteShareGroupOffsets: other_type_refusal("SD11", KIND),
    }
    group_settings = SETTINGS
    settings = SETTINGS.settings
    checks_group_id = (ShareGroupHeartbeat,)  # row SH7

    deadline_reached = staticmethod(deadline_reached)
    answer_parked = staticmethod(answer_parked)

    resumption = "sessions begin anew"  # row SR7

    def member_details(
        self, group: ShareGroup, member: ShareMember, names: Mapping[bytes, str]
    ) -> ConsumerMemberSnapshot:
        return ConsumerMemberSnapshot(
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
        )

    def details(self, group: ShareGroup) -> ConsumerGroupSnapshot:
        return ConsumerGroupSnapshot(
            assignment_epoch=group.assignment_epoch,
            assignor_name=simple.NAME,
            topics=topic_snapshots(group.topics),
            resolved_regexes={},
            unknown_topics=group.unknown_topics(),
            unresolved_regexes=[],
            share=ShareSnapshot(
                initializing={topic.name: sorted(topic.partitions) for topic in group.initializing.values()},
                initialized={topic.name: topic.partitions for topic in group.initialized.values()},
                deleting={topic.name: sorted(topic.partitions) for topic in group.deleting.values()},
                tasks=open_tasks(group),
            ),
        )

    # The armed timers of a share group, besides its members' sessions.

    def group_timers(self, group: ShareGroup) -> Iterator[Timer]:
        """Yield the timers of parked requests and of tasks."""
        if group.parked:
            yield min(parked.deadline_ms for parked in group.parked), TimerKind.PARKED, ""
        if group.overdue_deadline_ms is not None:
            yield group.overdue_deadline_ms, TimerKind.TASK, ""

    # The end of a step: changes of the state, and the end of a rebalance. Rows SG4, SG5, SP25.

    def record_outcome(self, context: StepContext, group: ShareGroup, before: Before) -> None:
        """Store the time of a change of the group's state. Record the end of a rebalance, at which all
        members have reached their targets, because the state does not show it: a group with members is always
        Stable.
        """
        # A step without a history entry has not changed the state.
        if not context.has_history:
            return
        state_before, was_moving = before
        group.forget_progress()
        state, is_moving = group.progress
        if state != state_before:
            context.cite("SG5" if group.members else "SG4")
            group.state_timestamp_ms = context.now_ms
        has_rebalanced = was_moving or context.has_recorded(EntryType.GROUP_EPOCH_BUMPED)
        if group.members and has_rebalanced and not is_moving:
            record_stable(context, group, context.cite("SP25"), group.members, has_rebalanced=True)

    def shift_deadlines(self, context: StepContext, group: ShareGroup, by_ms: int) -> None:
        super().shift_deadlines(context, group, by_ms)
        for parked in group.parked:
            parked.deadline_ms = context.deadline_at(parked.deadline_ms + by_ms)
        group.overdue_deadline_ms = context.delayed(group.overdue_deadline_ms, by_ms)

    def check_commit(
        self, context: StepContext, group: ShareGroup, request: OffsetCommit | TxnOffsetCommit
    ) -> RuleAndError:
        """Refuse the commit: a share group has no committed offsets."""
        return context.cite("SO21"), ErrorCode.GROUP_ID_NOT_FOUND

    check_txn_commit = check_commit


SHARE = ShareProtocol()
