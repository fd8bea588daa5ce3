"""The protocol of streams groups (KIP-1071) as an object."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from msgspec import UNSET

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    CommittedTopic,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetch,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import JoinGroupResponse, LeaveGroupResponse, LeftMember
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
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
from state.kafka.classic_group import ClassicGroup
from state.kafka.commits import FIRST_VERSION_WITH_ERRORS_OF_GROUPS
from state.kafka.context import RuleAndError, RuleId, StepContext, restart_group
from state.kafka.group import DeadlineReached, Timer, TimerKind
from state.kafka.modern import record_stable, store_watched
from state.kafka.protocol import Before, KafkaProtocol, answer_with, common_fields, topic_snapshots
from state.kafka.streams.heartbeat import (
    describe_no_group,
    heartbeat,
    refusal_of_describe,
    refusal_of_heartbeat,
)
from state.kafka.streams.members import fence
from state.kafka.streams.settings import OWN_SETTINGS, SETTINGS
from state.kafka.streams.target import ASSIGNOR, initial_delay_over
from state.kafka.streams_group import (
    NO_TASKS,
    RoleTasks,
    StreamsGroup,
    StreamsGroupMember,
    StreamsGroupState,
    Task,
    task_ids,
)
from state.kafka.streams_topics import ConfiguredTopology, TopologyProblem, source_topics
from state.protocol import Handlers, Outage, WhyRefused

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
        context.rule("KSD2"),
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR.name,
        topology=_described_topology(context, group),
        members=[_described_member(context, group, member) for _, member in sorted(group.members.items())],
        streams=_streams_snapshot(group),
        pending={id_: _assignment(one.pending) for id_, one in sorted(group.members.items()) if one.pending},
    )


def _described_topology(context: StepContext, group: StreamsGroup) -> TopologyDescription | None:
    if group.topology is None:
        return None
    context.rule("KSD3")
    subtopologies: Iterable[Subtopology] = group.topology.subtopologies
    if group.is_ready and isinstance(group.configured, ConfiguredTopology):
        subtopologies = group.configured.subtopologies
    return TopologyDescription(
        group.topology.epoch,
        [
            SubtopologyDescription(
                subtopology_id=one.subtopology_id,
                source_topics=sorted(one.source_topics),
                repartition_sink_topics=sorted(one.repartition_sink_topics),
                state_changelog_topics=_by_name(one.state_changelog_topics),
                repartition_source_topics=_by_name(one.repartition_source_topics),
            )
            for one in subtopologies
        ],
    )


def _by_name(topics: Iterable[StreamsTopicInfo]) -> list[StreamsTopicInfo]:
    return sorted(topics, key=lambda topic: topic.name)


def _described_member(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember
) -> StreamsGroupMemberDescription:
    context.rule("KSD4")
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


def _member_snapshot(group: StreamsGroup, member: StreamsGroupMember) -> MemberSnapshot:
    endpoint = member.user_endpoint
    return MemberSnapshot(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=0,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        metadata=b"",
        assignment=b"",
        rejoined=False,
        consumer=ConsumerMemberSnapshot(
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
        ),
    )


def _details(group: StreamsGroup) -> ConsumerGroupSnapshot:
    return ConsumerGroupSnapshot(
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.target_assignor,
        topics=topic_snapshots(group.topics),
        resolved_regexes={},
        unknown_topics=group.unknown_topics(),
        unresolved_regexes=[],
        streams=_streams_snapshot(group),
    )


def _streams_snapshot(group: StreamsGroup) -> StreamsSnapshot:
    subtopologies = group.topology.subtopologies if group.topology is not None else []
    problem = group.configured if isinstance(group.configured, TopologyProblem) else None
    return StreamsSnapshot(
        topology_epoch=None if group.topology is None else group.topology.epoch,
        validated_topology_epoch=group.validated_topology_epoch,
        subtopologies={one.subtopology_id: source_topics(one) for one in subtopologies},
        assignment_configs=group.assignment_configs,
        stateful=[one.subtopology_id for one in subtopologies if one.state_changelog_topics],
        not_ready=UNSET if problem is None else problem.detail,
        shutdown_requested_by=group.shutdown_requested_by or UNSET,
        initial_deadline_ms=UNSET if group.initial_deadline_ms is None else group.initial_deadline_ms,
    )


# Requests of other protocols to a streams group. Rows KSV3 to KSV5, KSV8.
#
# Source: GroupMetadataManager (classicGroupJoin, classicGroupSync, classicGroupHeartbeat, classicGroupLeave).


def join(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Turn an Empty group into a classic group if a new group would accept the JoinGroup, else refuse it.
    Kafka deletes the Empty group even if the JoinGroup is refused.
    """
    refusal = classic_requests.validate_join(context, request)
    if refusal is None and not context.group.is_empty:
        row, error = context.rule("KSV5"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        context.reply(reply_to, JoinGroupResponse, row, error, member_id="")
        return
    if refusal is None and request.member_id:
        refusal = context.rule("KSV4"), ErrorCode.UNKNOWN_MEMBER_ID
    if refusal is None and not (request.protocol_type and request.protocols):
        refusal = context.rule("KSV4"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if refusal is not None:
        context.reply(reply_to, JoinGroupResponse, *refusal, member_id=request.member_id)
        return
    reason = "a JoinGroup to the Empty streams group: it becomes a classic group; its offsets stay"
    restart_group(context, context.rule("KSV3"), ClassicGroup, reason)
    classic_requests.join(context, request, reply_to)


def _refuse_leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    error = ErrorCode.UNKNOWN_MEMBER_ID
    members = [LeftMember(member.member_id, member.group_instance_id, error) for member in request.members]
    context.reply(reply_to, LeaveGroupResponse, context.rule("KSV8"), members=members)


def topic_metadata(context: StepContext, group: StreamsGroup, request: TopicMetadata) -> None:
    """Row KSQ4: store the topic watcher's reports of topics that the topology requires. The next heartbeat
    looks at them.
    """
    if store_watched(context, group, request.topics, group.required):
        context.rule("KSQ4")
        group.forget_configured()


# Permission to commit to a streams group and fetch from it, by member epoch. Rows KSO3 to KSO14.
#
# Source: StreamsGroup.validateOffsetCommit, StreamsGroup.validateOffsetFetch.


FIRST_VERSION_WITH_MEMBER_EPOCH = 9


def _validate_epoch(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    epoch: int,
    topics: Iterable[CommittedTopic],
) -> RuleAndError:
    """Rows KSO7 to KSO11. One partition that may not be committed refuses the whole request."""
    if epoch == member.member_epoch:
        return context.rule("KSO7"), ErrorCode.NONE
    stale = ErrorCode.STALE_MEMBER_EPOCH
    if epoch > member.member_epoch:
        return context.rule("KSO8"), stale
    for topic in topics:
        readers = group.readers.get(topic.name, [])
        if not readers:
            return context.rule("KSO9"), stale
        for partition in topic.partitions:
            # A topic may have several readers; Kafka looks at one of them only (row KSB13).
            tasks = [(subtopology, partition.partition_index) for subtopology in readers]
            since = [member.assignment_epochs[task] for task in tasks if task in member.assignment_epochs]
            if not since or epoch < min(since):
                return context.rule("KSO11"), stale
    return context.rule("KSO10"), ErrorCode.NONE


def _cause(context: StepContext, member: StreamsGroupMember, kind: TimerKind) -> tuple[RuleId, str]:
    """Return the row of a member's due deadline, and a text about what the member failed to do in time."""
    if kind is TimerKind.REBALANCE:
        timeout_ms = member.rebalance_timeout_ms
        return context.rule(
            "KSM2"
        ), f"did not revoke its tasks within its rebalance timeout of {timeout_ms} ms"
    timeout_ms = SETTINGS.of(context).session_timeout_ms
    missed = "left for a while and did not come back" if member.is_away else "no heartbeat"
    return context.rule("KSM1"), f"{missed} within the session timeout of {timeout_ms} ms"


class StreamsProtocol(KafkaProtocol[StreamsGroup]):
    """The protocol of streams groups. No request is parked: each is answered at once."""

    group_class = StreamsGroup
    handlers: ClassVar[Handlers] = {
        StreamsGroupHeartbeat: heartbeat,
        StreamsGroupDescribe: describe,
        JoinGroup: join,
        SyncGroup: answer_with("KSV8", ErrorCode.UNKNOWN_MEMBER_ID),
        Heartbeat: answer_with("KSV8", ErrorCode.UNKNOWN_MEMBER_ID),
        LeaveGroup: _refuse_leave,
    }
    without_own_group: ClassVar[Handlers] = {
        StreamsGroupHeartbeat: heartbeat,
        StreamsGroupDescribe: describe_no_group,
    }
    unanswered_handlers: ClassVar[Handlers] = {TopicMetadata: topic_metadata}
    refusals: ClassVar[Mapping[type, WhyRefused]] = {
        StreamsGroupHeartbeat: refusal_of_heartbeat,
        StreamsGroupDescribe: refusal_of_describe,
    }
    settings = (*SETTINGS.settings, *OWN_SETTINGS)
    checks_group_id = (StreamsGroupHeartbeat,)  # row KSH8

    conflict_of = staticmethod(SETTINGS.conflict_of)

    def view(self, group: StreamsGroup) -> GroupSnapshot:
        """Return a copy of the group for readers."""
        return GroupSnapshot(
            **common_fields(group),
            protocol_name=None,
            leader_id=None,
            members=[_member_snapshot(group, member) for member in group.members.values()],
            pending_members=[],
            subscribed_topics=sorted(group.subscribed()),
            consumer=_details(group),
        )

    # The timers: each member's session, the rebalance timer of a member that has to give tasks up, and the
    # initial delay of the group. Rows KSM1 to KSM6.

    def timers(self, group: StreamsGroup) -> Iterator[Timer]:
        """Yield the timers of the group and all members."""
        yield from self.timers_of(group, TimerKind.INITIAL_DELAY, "")
        for member_id in group.members:
            yield from self.timers_of(group, TimerKind.HEARTBEAT, member_id)

    def timers_of(self, group: StreamsGroup, kind: TimerKind, member_id: str) -> Iterator[Timer]:
        """Yield the timers of one member, or of the group."""
        if kind is TimerKind.INITIAL_DELAY:
            if group.initial_deadline_ms is not None:
                yield group.initial_deadline_ms, kind, ""
            return
        member = group.members.get(member_id)
        if member is not None and member.session_deadline_ms is not None:
            yield member.session_deadline_ms, TimerKind.HEARTBEAT, member_id
        if member is not None and member.rebalance_deadline_ms is not None:
            yield member.rebalance_deadline_ms, TimerKind.REBALANCE, member_id

    def deadline_reached(self, context: StepContext, group: StreamsGroup, deadline: DeadlineReached) -> None:
        """Compute the first target at the end of the initial delay, or remove the member whose deadline is
        due.
        """
        if deadline.kind is TimerKind.INITIAL_DELAY:
            initial_delay_over(context, group)
            return
        member = group.members[deadline.member_id]
        row, reason = _cause(context, member, deadline.kind)
        fence(context, group, row, member, reason)

    def take_over(self, context: StepContext, group: StreamsGroup, outage: Outage) -> None:
        """Restart all sessions and shift the other timers by the length of the outage. The topics are looked
        at again, because they may have changed meanwhile.
        """
        group.metadata_stale = True
        row = context.rule("F5")
        self.shift_deadlines(context, group, outage.length_ms)
        if group.members:
            context.record(
                row,
                EntryType.TAKEN_OVER,
                f"no coordinator ran for {outage.length_ms} ms: sessions begin anew, reconciliations go on",
                members=list(group.members),
                deadline_ms=group.initial_deadline_ms,
            )

    def shift_deadlines(self, context: StepContext, group: StreamsGroup, by_ms: int) -> None:
        """Restart the sessions, and shift the other deadlines by `by_ms`, for which time stood still."""
        timeout_ms = SETTINGS.of(context).session_timeout_ms
        for member in group.members.values():
            member.session_deadline_ms = context.deadline(timeout_ms)
            if member.rebalance_deadline_ms is not None:
                member.rebalance_deadline_ms = context.deadline_at(member.rebalance_deadline_ms + by_ms)
        if group.initial_deadline_ms is not None:
            group.initial_deadline_ms = context.deadline_at(group.initial_deadline_ms + by_ms)

    def release(self, context: StepContext, group: StreamsGroup) -> None:
        """Row F4: give a member whose rebalance timer is due at the release its full time again, because its
        handling may have raised. An initial delay that is due ends without a target; the next heartbeat
        computes it.
        """
        for member in group.members.values():
            due_ms = member.rebalance_deadline_ms
            if due_ms is not None and due_ms <= context.now_ms:
                member.rebalance_deadline_ms = context.deadline(max(member.rebalance_timeout_ms, 1))
        if group.initial_deadline_ms is not None and group.initial_deadline_ms <= context.now_ms:
            group.initial_deadline_ms = None

    # The end of a step. Rows KSG1 to KSG5.

    def before(self, group: StreamsGroup) -> Before:
        """Return the state of the group, and True if its members are still moving to their targets."""
        return group.progress

    def settle(self, context: StepContext, group: StreamsGroup, before: Before) -> None:
        """Note the new state of the group, and record that it has become Stable or Empty.

        Every change of the state has a history entry, so a step without one costs nothing here.
        """
        if not context.has_history:
            return
        state_before, was_rebalancing = before
        group.forget_progress()
        state = group.state
        if state == state_before:
            return
        group.state_timestamp_ms = context.now_ms
        if state is StreamsGroupState.EMPTY:
            context.record(context.rule("KSG1"), EntryType.EMPTY, "the last member is gone")
        elif state is StreamsGroupState.STABLE:
            has_rebalanced = was_rebalancing or group.last_rebalance_at_ms == context.now_ms
            row = context.rule("KSG5")
            record_stable(context, group, row, group.members, has_rebalanced=has_rebalanced)

    # Who may commit and fetch offsets.

    def check_commit(self, context: StepContext, group: StreamsGroup, request: OffsetCommit) -> RuleAndError:
        """Rows KSO3, KSO5 to KSO11: return the row and the error for an OffsetCommit."""
        if request.generation_id < 0 and group.is_empty:
            return context.rule("KSO3"), ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return context.rule("KSO5"), ErrorCode.UNKNOWN_MEMBER_ID
        if request.api_version < FIRST_VERSION_WITH_MEMBER_EPOCH:
            return context.rule("KSO6"), ErrorCode.UNSUPPORTED_VERSION
        return _validate_epoch(context, group, member, request.generation_id, request.topics)

    def check_txn_commit(
        self, context: StepContext, group: StreamsGroup, request: TxnOffsetCommit
    ) -> RuleAndError:
        """Rows KSO3 to KSO5, KSO7 to KSO12: return the row and the error for a TxnOffsetCommit."""
        has_no_epoch = request.generation_id < 0
        if has_no_epoch and group.is_empty:
            return context.rule("KSO3"), ErrorCode.NONE
        if has_no_epoch and not request.member_id and request.group_instance_id is None:
            return context.rule("KSO4"), ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return context.rule("KSO5"), ErrorCode.UNKNOWN_MEMBER_ID
        row, error = _validate_epoch(context, group, member, request.generation_id, request.topics)
        knows_error = request.api_version >= FIRST_VERSION_WITH_ERRORS_OF_GROUPS
        if error is ErrorCode.STALE_MEMBER_EPOCH and not knows_error:
            context.rule("KSO12")
            error = ErrorCode.ILLEGAL_GENERATION
        return row, error

    def check_fetch(
        self, context: StepContext, group: StreamsGroup, request: OffsetFetch
    ) -> RuleAndError | None:
        """Rows KSO13 and KSO14: return the row that refuses the request, None if none does."""
        if request.member_id is None and request.member_epoch < 0:
            context.rule("KSO13")
            return None
        member = None if request.member_id is None else group.members.get(request.member_id)
        row = context.rule("KSO14")
        if member is None:
            return row, ErrorCode.UNKNOWN_MEMBER_ID
        return None if request.member_epoch == member.member_epoch else (row, ErrorCode.STALE_MEMBER_EPOCH)


STREAMS = StreamsProtocol()
