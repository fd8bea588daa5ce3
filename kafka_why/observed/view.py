"""Builds the view of an observed group: its state and members, as a record of the groups topic."""

from collections.abc import Mapping
from uuid import UUID

from msgspec import UNSET
from msgspec.structs import astuple

from kafka_why.contract.kafka.history import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    SHARE,
    STREAMS,
    GroupState,
    MemberState,
)
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    ShareSnapshot,
    StreamsMemberSnapshot,
    StreamsSnapshot,
    TopicSnapshot,
)
from kafka_why.observed.group import Assigned, Epochs, ObservedGroup, ShareState, Topology
from kafka_why.observed.records import MemberSubscription

# The assignment of a member that has no record of a current assignment.
_NO_ASSIGNMENT = Assigned(
    epoch=0,
    previous_epoch=0,
    state=MemberState.UNRELEASED_PARTITIONS,
    partitions={},
    revoking={},
    revoking_since_ms=None,
    since_ms=0,
)


def view_of(group: ObservedGroup, names: Mapping[bytes, str]) -> GroupSnapshot:
    """Return the group's view. `names` are topic names by id."""
    state, classic, epochs = group.state_now(), group.classic, group.epochs
    is_stable = state == GroupState.STABLE
    return GroupSnapshot(
        group_id=group.group_id,
        incarnation=group.incarnation,
        seq=group.seq,
        at_ms=group.at_ms,
        state=state,
        state_timestamp_ms=group.state_timestamp_ms,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=classic.protocol_name if classic is not None and is_stable else None,
        leader_id=None if classic is None else classic.leader_id,
        members=_member_snapshots(group, names),
        pending_members=[],
        last_rebalance_at_ms=group.last_rebalance_at_ms,
        last_rebalance_reason=group.last_rebalance_reason,
        quarantined=None,
        observed=True,
        consumer=UNSET if epochs is None else _consumer_snapshot(group, epochs, names),
    )


def _member_snapshots(group: ObservedGroup, names: Mapping[bytes, str]) -> list[MemberSnapshot]:
    epochs = group.epochs
    if epochs is not None:
        return [
            _member_snapshot(group, epochs, member_id, member, names)
            for member_id, member in epochs.subscriptions.items()
        ]
    return [
        MemberSnapshot(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            session_timeout_ms=m.session_timeout_ms,
            rebalance_timeout_ms=m.rebalance_timeout_ms,
            metadata=m.subscription,
            assignment=m.assignment,
            rejoined=False,
        )
        for m in (group.classic.members if group.classic is not None else ())
    ]


def _member_snapshot(
    group: ObservedGroup,
    epochs: Epochs,
    member_id: str,
    member: MemberSubscription,
    names: Mapping[bytes, str],
) -> MemberSnapshot:
    assigned = epochs.assigned.get(member_id, _NO_ASSIGNMENT)
    is_away = assigned.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH
    return MemberSnapshot(
        member_id=member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        metadata=b"",
        assignment=b"",
        rejoined=False,
        consumer=ConsumerMemberSnapshot(
            member_epoch=assigned.epoch,
            previous_epoch=assigned.previous_epoch,
            state=(MemberState.STABLE if is_away or assigned.state is None else assigned.state).value,
            rack_id=member.rack_id,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.topic_regex,
            server_assignor=member.server_assignor,
            assigned=group.partitions_by_name(assigned.partitions, names),
            revoking=group.partitions_by_name(assigned.revoking, names),
            target=group.partitions_by_name(epochs.targets.get(member_id, {}), names),
            member_type="classic" if member.is_classic else epochs.kind,
            streams=UNSET if member.streams is None else StreamsMemberSnapshot(*astuple(member.streams)),
        ),
    )


def _consumer_snapshot(
    group: ObservedGroup, epochs: Epochs, names: Mapping[bytes, str]
) -> ConsumerGroupSnapshot:
    return ConsumerGroupSnapshot(
        assignment_epoch=epochs.assignment_epoch,
        assignor_name=epochs.assignor() or "",
        topics={
            name: TopicSnapshot(str(UUID(bytes=topic_id)), partitions)
            for topic_id, (name, partitions) in sorted(epochs.topics.items(), key=lambda item: item[1])
        },
        resolved_regexes={regex: list(topics) for regex, topics in sorted(epochs.regexes.items())},
        unknown_topics=[],
        unresolved_regexes=[],
        share=_share_snapshot(group, epochs, names) if epochs.kind == SHARE else UNSET,
        streams=_streams_snapshot(epochs.topology) if epochs.kind == STREAMS else UNSET,
    )


def _share_snapshot(group: ObservedGroup, epochs: Epochs, names: Mapping[bytes, str]) -> ShareSnapshot:
    state = epochs.share or ShareState(first_ms=0)
    return ShareSnapshot(
        initializing=group.partitions_by_name(state.initializing, names),
        initialized=group.partitions_by_name(state.initialized, names),
        deleting=group.partitions_by_name({topic_id: [] for topic_id in state.deleting}, names),
    )


def _streams_snapshot(topology: Topology) -> StreamsSnapshot:
    return StreamsSnapshot(
        topology_epoch=topology.epoch,
        validated_topology_epoch=topology.validated_epoch,
        subtopologies={name: list(topics) for name, topics in sorted(topology.sources.items())},
        assignment_configs=topology.configs or {},
    )
