"""The protocol of streams groups (KIP-1071) as one class: its handlers, timers, views, and commit checks.

A row, such as KSD2, is a rule of docs/rules-streams.md. `context.cite` records that a row was applied.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from msgspec import UNSET

from kafka_why.contract.kafka.requests import (
    CommittedTopic,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
)
from kafka_why.contract.kafka.responses import JoinGroupResponse
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    StreamsMemberSnapshot,
    StreamsSnapshot,
)
from kafka_why.contract.kafka.streams_responses import (
    KeyValue,
    StreamsAssignment,
    StreamsGroupDescribe,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeat,
    StreamsGroupMemberDescription,
    StreamsTopicInfo,
    Subtopology,
    SubtopologyDescription,
    TaskOffset,
    TopologyDescription,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.classic import requests as classic_requests
from state.kafka.context import RuleAndError, StepContext
from state.kafka.group import DeadlineReached, Timer, TimerKind
from state.kafka.modern import answer_not_found, other_type_refusal, store_watched_topics
from state.kafka.modern_protocol import EpochProtocol, EpochRows
from state.kafka.protocol import answer_with, refuse_leave_with, topic_snapshots
from state.kafka.streams.heartbeat import KIND, heartbeat
from state.kafka.streams.members import fence
from state.kafka.streams.requests import check_request
from state.kafka.streams.settings import OWN_SETTINGS, SETTINGS
from state.kafka.streams.target import ASSIGNOR, end_initial_delay
from state.kafka.streams_group import (
    NO_TASKS,
    RoleTasks,
    StreamsGroup,
    StreamsGroupMember,
    Task,
    task_ids,
)
from state.kafka.streams_topics import ConfiguredTopology, TopologyProblem, source_topics
from state.protocol import Handlers, WhyRefused

# A group as readers see it: StreamsGroupDescribe, and its view on the groups topic. Rows KSD2 to KSD4.
#
# Source: GroupMetadataManager.streamsGroupDescribe, StreamsGroup.asDescribedGroup,
# StreamsGroupMember.asStreamsGroupDescribeMember.


def describe(context: StepContext, _: StreamsGroupDescribe, reply_to: ReplyTo) -> None:
    """Answer with the group, its topology and its members."""
    group = context.group_of(StreamsGroup)
    context.reply(
        reply_to,
        StreamsGroupDescribeResponse,
        context.cite("KSD2"),
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR.name,
        topology=_described_topology(context, group),
        members=[_described_member(context, group, member) for _, member in sorted(group.members.items())],
        streams=_streams_snapshot(group),
        pending={
            id_: _assignment(member.pending)
            for id_, member in sorted(group.members.items())
            if member.pending
        },
    )


def _described_topology(context: StepContext, group: StreamsGroup) -> TopologyDescription | None:
    """Row KSD3: describe the topology, or return None if there is none. If it is ready, its internal topics
    have their numbers of partitions.
    """
    if group.topology is None:
        return None
    context.cite("KSD3")
    subtopologies: Iterable[Subtopology] = group.topology.subtopologies
    if group.is_ready and isinstance(group.configured, ConfiguredTopology):
        subtopologies = group.configured.subtopologies
    return TopologyDescription(
        group.topology.epoch,
        [
            SubtopologyDescription(
                subtopology_id=subtopology.subtopology_id,
                source_topics=sorted(subtopology.source_topics),
                repartition_sink_topics=sorted(subtopology.repartition_sink_topics),
                state_changelog_topics=_sorted_by_name(subtopology.state_changelog_topics),
                repartition_source_topics=_sorted_by_name(subtopology.repartition_source_topics),
            )
            for subtopology in subtopologies
        ],
    )


def _sorted_by_name(topics: Iterable[StreamsTopicInfo]) -> list[StreamsTopicInfo]:
    return sorted(topics, key=lambda topic: topic.name)


def _described_member(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember
) -> StreamsGroupMemberDescription:
    context.cite("KSD4")
    return StreamsGroupMemberDescription(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=member.user_endpoint,
        client_tags=[KeyValue(key, value) for key, value in member.client_tags.items()],
        task_offsets=_offsets(member.task_offsets),
        task_end_offsets=_offsets(member.task_end_offsets),
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(group.target.get(member.member_id, NO_TASKS)),
    )


def _offsets(offsets: Mapping[Task, int]) -> list[TaskOffset]:
    return [TaskOffset(subtopology, number, offset) for (subtopology, number), offset in offsets.items()]


def _assignment(tasks: RoleTasks) -> StreamsAssignment:
    return StreamsAssignment(task_ids(tasks.active), task_ids(tasks.standby), task_ids(tasks.warm_up))


def _streams_snapshot(group: StreamsGroup) -> StreamsSnapshot:
    subtopologies = group.topology.subtopologies if group.topology is not None else []
    problem = group.configured if isinstance(group.configured, TopologyProblem) else None
    return StreamsSnapshot(
        topology_epoch=None if group.topology is None else group.topology.epoch,
        validated_topology_epoch=group.validated_topology_epoch,
        subtopologies={s.subtopology_id: source_topics(s) for s in subtopologies},
        assignment_configs=group.assignment_configs,
        stateful=[s.subtopology_id for s in subtopologies if s.state_changelog_topics],
        not_ready=UNSET if problem is None else problem.detail,
        shutdown_requested_by=group.shutdown_requested_by or UNSET,
        initial_deadline_ms=UNSET if group.initial_deadline_ms is None else group.initial_deadline_ms,
    )


# Requests of other protocols to a streams group. Rows KSV3 to KSV5, KSV8.
#
# Source: GroupMetadataManager (classicGroupJoin, classicGroupSync, classicGroupHeartbeat, classicGroupLeave).


def join(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Handle a JoinGroup: replace an Empty streams group with a classic group, or refuse the request if the
    group has members.
    """
    refusal = classic_requests.validate_join(context, request)
    if refusal is not None:
        context.reply(reply_to, JoinGroupResponse, *refusal, member_id=request.member_id)
    elif not context.group.is_empty:
        row, error = context.cite("KSV5"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        context.reply(reply_to, JoinGroupResponse, row, error, member_id="")
    else:
        classic_requests.join_instead(context, request, reply_to, "streams", refused="KSV4", joined="KSV3")


def topic_metadata(context: StepContext, group: StreamsGroup, request: TopicMetadata) -> None:
    """Row KSQ4: store the topic watcher's reports of topics that the topology requires. The next heartbeat
    checks the topology against them.
    """
    if store_watched_topics(context, group, request.topics, group.required):
        context.cite("KSQ4")
        group.forget_configured()


class StreamsProtocol(EpochProtocol[StreamsGroup]):
    """The protocol of streams groups. No request is parked: each is answered at once.

    Source of the rows about commits: StreamsGroup.validateOffsetCommit, StreamsGroup.validateOffsetFetch.
    """

    group_class = StreamsGroup
    handlers: ClassVar[Handlers] = {
        StreamsGroupHeartbeat: heartbeat,
        StreamsGroupDescribe: describe,
        JoinGroup: join,
        SyncGroup: answer_with("KSV8", ErrorCode.UNKNOWN_MEMBER_ID),
        Heartbeat: answer_with("KSV8", ErrorCode.UNKNOWN_MEMBER_ID),
        LeaveGroup: refuse_leave_with("KSV8"),
    }
    without_own_group: ClassVar[Handlers] = {
        StreamsGroupHeartbeat: heartbeat,
        StreamsGroupDescribe: answer_not_found("KSD1", KIND, StreamsGroupDescribeResponse),
    }
    unanswered_handlers: ClassVar[Handlers] = {TopicMetadata: topic_metadata}
    refusals: ClassVar[Mapping[type, WhyRefused]] = {
        StreamsGroupHeartbeat: other_type_refusal("KSH22", KIND, check_request),
        StreamsGroupDescribe: other_type_refusal("KSD1", KIND),
    }
    group_settings = SETTINGS
    settings = (*SETTINGS.settings, *OWN_SETTINGS)
    checks_group_id = (StreamsGroupHeartbeat,)  # row KSH8

    rows = EpochRows(
        session_over="KSM1",
        not_revoked="KSM2",
        emptied="KSG1",
        stable="KSG5",
        commit_to_empty_group="KSO3",
        commit_without_member="KSO4",
        commit_of_no_member="KSO5",
        commit_too_old="KSO6",
        commit_at_epoch="KSO7",
        commit_above_epoch="KSO8",
        error_unknown_to_client="KSO12",
        fetch_without_member="KSO13",
        fetch_of_no_member="KSO14",
        fetch_of_member="KSO14",
    )

    def member_details(
        self, group: StreamsGroup, member: StreamsGroupMember, names: Mapping[bytes, str]
    ) -> ConsumerMemberSnapshot:
        endpoint = member.user_endpoint
        return ConsumerMemberSnapshot(
            member_epoch=member.member_epoch,
            previous_epoch=member.previous_epoch,
            state=member.state.value,
            rack_id=member.rack_id,
            subscribed_topic_names=[],
            subscribed_topic_regex="",
            server_assignor=None,
            assigned=member.assigned.shown(),
            revoking=member.pending.shown(),
            target=group.target.get(member.member_id, NO_TASKS).shown(),
            member_type=group.type_name,
            streams=StreamsMemberSnapshot(
                member.topology_epoch,
                member.process_id,
                None if endpoint is None else str(endpoint),
                member.client_tags,
            ),
        )

    def details(self, group: StreamsGroup) -> ConsumerGroupSnapshot:
        return ConsumerGroupSnapshot(
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.target_assignor,
            topics=topic_snapshots(group.topics),
            resolved_regexes={},
            unknown_topics=group.unknown_topics(),
            unresolved_regexes=[],
            streams=_streams_snapshot(group),
        )

    # The timers: each member's session, the rebalance timer of a member that has to give tasks up, and the
    # initial delay of the group. Rows KSM1 to KSM6.

    def group_timers(self, group: StreamsGroup) -> Iterator[Timer]:
        """Yield the timer of the initial delay, if it is armed."""
        if group.initial_deadline_ms is not None:
            yield group.initial_deadline_ms, TimerKind.INITIAL_DELAY, ""

    def deadline_reached(self, context: StepContext, group: StreamsGroup, deadline: DeadlineReached) -> None:
        """Compute the first target at the end of the initial delay, or remove the member whose deadline is
        due.
        """
        if deadline.kind is TimerKind.INITIAL_DELAY:
            end_initial_delay(context, group)
            return
        member = group.members[deadline.member_id]
        row, reason = self.cause_of_deadline(context, group, member, deadline.kind)
        fence(context, group, row, member, reason)

    def shift_deadlines(self, context: StepContext, group: StreamsGroup, by_ms: int) -> None:
        super().shift_deadlines(context, group, by_ms)
        group.initial_deadline_ms = context.delayed(group.initial_deadline_ms, by_ms)

    def release(self, context: StepContext, group: StreamsGroup) -> None:
        """Row F4: restart the members' rebalance deadlines that are due.

        Otherwise the deadline whose handling raised an exception would fire at once and quarantine the group
        again. An initial delay that is due ends without a target. The next heartbeat computes the target.
        """
        for member in group.members.values():
            timeout_ms = max(member.rebalance_timeout_ms, 1)  # at least 1, so that it is not due at once
            member.rebalance_deadline_ms = context.renewed(member.rebalance_deadline_ms, timeout_ms)
        if group.initial_deadline_ms is not None and group.initial_deadline_ms <= context.now_ms:
            group.initial_deadline_ms = None

    def validate_past_epoch(
        self,
        context: StepContext,
        group: StreamsGroup,
        member: StreamsGroupMember,
        epoch: int,
        topics: Iterable[CommittedTopic],
    ) -> RuleAndError:
        """Rows KSO9 to KSO11: accept the commit if the member already had, at the commit's epoch, a task that
        reads each of the committed partitions.
        """
        stale = ErrorCode.STALE_MEMBER_EPOCH
        for topic in topics:
            readers = group.readers.get(topic.name, [])
            if not readers:
                return context.cite("KSO9"), stale
            for partition in topic.partitions:
                # Several subtopologies may read the topic. Kafka checks only one of them (row KSB13).
                tasks = [(subtopology, partition.partition_index) for subtopology in readers]
                epochs = member.assignment_epochs
                since_epochs = [epochs[task] for task in tasks if task in epochs]
                if not since_epochs or epoch < min(since_epochs):
                    return context.cite("KSO11"), stale
        return context.cite("KSO10"), ErrorCode.NONE


STREAMS = StreamsProtocol()
