"""The rows that describe a group: one for each partition, one for each member, or one for its state.

Source: ConsumerGroupCommand.collectGroupsOffsets, collectGroupsMembers, collectGroupsState.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType, structs

from kafka_why.contract.kafka.history import (
    CLASSIC,
    DEAD,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    NOT_READY,
    ConsumerGroupState,
    GroupState,
)
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    flat,
)
from kafka_why.contract.protocols.streams_protocol import ACTIVE, role_and_task, task_holder
from kafka_why.contract.protocols.subscriptions import ProtocolError, TopicPartition, by_topic
from kafka_why.grouping import grouped
from kafka_why.groups.list_groups import TYPES, GroupOffsets, OffsetWithEpoch
from kafka_why.groups.streams import StreamsRow, process_of, streams_row
from kafka_why.lag.definitions import LogBounds, lag_records
from kafka_why.wording import partition_list

Partitions = dict[str, list[int]]
LagsMs: TypeAlias = Mapping[tuple[TopicPartition, int], int]
"""Lags in ms by partition and committed offset."""
_REBALANCING_STATES = frozenset(
    (
        GroupState.PREPARING_REBALANCE.value,
        GroupState.COMPLETING_REBALANCE.value,
        ConsumerGroupState.ASSIGNING.value,
        ConsumerGroupState.RECONCILING.value,
    )
)


class PartitionRow(Struct, frozen=True, kw_only=True):
    """A partition that is assigned to a member, or has a committed or pending offset."""

    group: str
    topic: str
    partition: int
    leader_epoch: int | None  # of the committed offset; None if the client did not send it
    current_offset: int | None  # the committed offset; None if there is none
    pending_offset: int | None  # becomes the committed offset if its transaction commits
    log_end_offset: int | None  # None if the partition does not exist
    lag: int | None  # in records; None if unknown
    consumer_id: str | None  # as `host` and `client_id`, None if no member has the partition
    host: str | None
    client_id: str | None
    lag_seconds: float | UnsetType | None = UNSET  # None if unknown; omitted unless requested


class LagSummary(Struct, frozen=True):
    """The lag of a member or a group. A value is None if it is unknown for all partitions."""

    lag: int | None  # sum, in records
    lag_seconds: float | None  # greatest


class MemberRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member of a group."""

    group: str
    consumer_id: str
    group_instance_id: str | None
    host: str
    client_id: str
    partitions: int | None  # number of assigned partitions; None if `assignment` is None
    assignment: Partitions | None  # None if it cannot be decoded
    consumer: "ConsumerMemberRow | None" = None  # None in a classic group
    behind: LagSummary | None = None  # the member's lag; None unless requested


class ConsumerMemberRow(Struct, frozen=True, kw_only=True):
    """The additional columns of a member of a group of the consumer protocol."""

    current_epoch: int
    target_epoch: int  # of the group's target assignment
    target_assignment: Partitions  # the member's part
    subscribed_topics: list[str]
    subscribed_pattern: str | None
    rack_id: str | None
    upgraded: bool  # False on the classic protocol


class StateRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group as a whole. The fields from `group_epoch` on are for groups with epochs."""

    group: str
    type: str
    coordinator: str  # the topic that stores the group, where Kafka's tool shows a broker
    coordinator_id: int  # the group's partition of this topic
    assignment_strategy: str
    state: str
    members: int
    group_epoch: int | None = None
    target_assignment_epoch: int | None = None
    unsettled: list[str] = []  # a sentence for each member that has not reached its target
    classic_members: list[str] = []  # on the classic protocol, so the conversion is not complete
    behind: LagSummary | None = None  # None unless requested
    streams: StreamsRow | None = None


def assigned_partitions(member: MemberSnapshot) -> tuple[TopicPartition, ...] | None:
    """Return the partitions assigned to a member, or None if its assignment is not one of Kafka's consumer.

    They include partitions that the member must still revoke.
    """
    if member.consumer is not None:
        return tuple(dict.fromkeys([*member.held(), *flat(member.consumer.revoking)]))
    try:
        return member.held()
    except ProtocolError:
        return None


def _consumed_partitions(group: GroupSnapshot, member: MemberSnapshot) -> tuple[TopicPartition, ...]:
    """Return the partitions that a member consumes: in a streams group, those of its active tasks."""
    assigned = assigned_partitions(member) or ()
    if not (group.consumer and group.consumer.streams):
        return assigned
    source_topics = group.consumer.streams.subtopologies
    active_tasks = [task for role, task in map(role_and_task, assigned) if role == ACTIVE]
    return tuple(
        TopicPartition(topic, number)
        for subtopology, number in active_tasks
        for topic in source_topics.get(subtopology, ())
    )


def mentioned_partitions(group: GroupSnapshot, offsets: GroupOffsets) -> set[TopicPartition]:
    """Return the partitions for which `partition_rows` returns a row."""
    assigned = {p for member in group.members for p in _consumed_partitions(group, member)}
    return assigned.union(offsets.committed, offsets.pending)


def partition_rows(
    group: GroupSnapshot,
    offsets: GroupOffsets,
    bounds: Mapping[TopicPartition, LogBounds],
    lags_ms: LagsMs | None = None,
) -> list[PartitionRow]:
    """Return the group's rows, by member. Rows without a member are last.

    The member with the most partitions is first. `bounds` has every existing partition. `lags_ms` has the
    known lags in time, or is None if they were not requested.
    """
    consumed = {member.member_id: sorted(_consumed_partitions(group, member)) for member in group.members}
    members = sorted(group.members, key=lambda member: len(consumed[member.member_id]), reverse=True)
    with_member = [(p, member) for member in members for p in consumed[member.member_id]]
    assigned = {p for p, _ in with_member}
    committed, pending = offsets.committed, offsets.pending
    without_member = [(p, None) for p in sorted((committed.keys() | pending.keys()) - assigned)]
    return [
        _partition_row(
            group.group_id,
            partition,
            member,
            committed.get(partition),
            pending.get(partition),
            bounds.get(partition),
            lags_ms,
        )
        for partition, member in [*with_member, *without_member]
    ]


def _partition_row(
    group_id: str,
    partition: TopicPartition,
    member: MemberSnapshot | None,
    committed: OffsetWithEpoch | None,
    pending: int | None,
    log: LogBounds | None,
    lags_ms: LagsMs | None,
) -> PartitionRow:
    epoch = committed.leader_epoch if committed is not None else -1
    lag = lag_records(committed.offset, log) if committed is not None and log is not None else None
    return PartitionRow(
        group=group_id,
        topic=partition.topic,
        partition=partition.partition,
        leader_epoch=epoch if epoch >= 0 else None,
        current_offset=committed.offset if committed is not None else None,
        pending_offset=pending,
        log_end_offset=log.latest if log is not None else None,
        lag=lag,
        lag_seconds=UNSET if lags_ms is None else _lag_seconds(partition, committed, lag, lags_ms),
        consumer_id=member.member_id if member is not None else None,
        host=member.client_host if member is not None else None,
        client_id=member.client_id if member is not None else None,
    )


def _lag_seconds(
    partition: TopicPartition, committed: OffsetWithEpoch | None, lag: int | None, lags_ms: LagsMs
) -> float | None:
    """Return the lag in time, or None if it is unknown. `lag` is the lag in records, or None."""
    if committed is None or lag is None:
        return None
    if lag == 0:
        return 0.0
    ms = lags_ms.get((partition, committed.offset))
    return None if ms is None else ms / 1000


def lag_summary(rows: Iterable[PartitionRow]) -> LagSummary:
    """Return the lag of these partitions together."""
    all_rows = list(rows)
    lags = [row.lag for row in all_rows if row.lag is not None]
    seconds = [row.lag_seconds for row in all_rows if isinstance(row.lag_seconds, float)]
    return LagSummary(sum(lags) if lags else None, max(seconds, default=None))


def with_lags(members: Iterable[MemberRow], partitions: Sequence[PartitionRow]) -> list[MemberRow]:
    """Return the members, each with the lag of its partitions."""
    rows_of = grouped((row.consumer_id, row) for row in partitions)
    return [structs.replace(m, behind=lag_summary(rows_of.get(m.consumer_id, ()))) for m in members]


def member_rows(group: GroupSnapshot) -> list[MemberRow]:
    """Return the members in the coordinator's order."""
    return [_member_row(group, member) for member in group.members]


def _member_row(group: GroupSnapshot, member: MemberSnapshot) -> MemberRow:
    partitions = assigned_partitions(member)
    return MemberRow(
        group=group.group_id,
        consumer_id=member.member_id,
        group_instance_id=member.group_instance_id,
        host=member.client_host,
        client_id=member.client_id,
        partitions=None if partitions is None else len(partitions),
        assignment=None if partitions is None else by_topic(partitions),
        consumer=_consumer_row(member.consumer, group.consumer)
        if member.consumer and group.consumer
        else None,
    )


def _consumer_row(member: ConsumerMemberSnapshot, group: ConsumerGroupSnapshot) -> ConsumerMemberRow:
    return ConsumerMemberRow(
        current_epoch=member.member_epoch,
        target_epoch=group.assignment_epoch,
        target_assignment=by_topic(flat(member.target)),
        subscribed_topics=member.subscribed_topic_names,
        subscribed_pattern=member.subscribed_topic_regex or None,
        rack_id=member.rack_id,
        upgraded=member.member_type != CLASSIC,
    )


def state_row(group: GroupSnapshot, requests_topic: str, partition: int) -> StateRow:
    """Return the group's row.

    `requests_topic` is the topic that stores the group: the requests topic, an observer's groups topic, or
    `__consumer_offsets`. `partition` is the group's partition of it.
    """
    row = StateRow(
        group=group.group_id,
        type=TYPES[group.group_type],
        coordinator=requests_topic,
        coordinator_id=partition,
        assignment_strategy=group.protocol_name or "",
        state=group.state,
        members=len(group.members),
    )
    if not group.consumer:
        return row
    return structs.replace(
        row,
        assignment_strategy=group.consumer.assignor_name,
        group_epoch=group.generation,
        target_assignment_epoch=group.consumer.assignment_epoch,
        unsettled=_unsettled_members(group, group.consumer),
        streams=streams_row(group),
        classic_members=[
            m.member_id for m in group.members if m.consumer and m.consumer.member_type == CLASSIC
        ],
    )


def _unsettled_members(group: GroupSnapshot, details: ConsumerGroupSnapshot) -> list[str]:
    """Return a sentence for each member that has not reached its target assignment."""
    assigned = {m.member_id: frozenset(assigned_partitions(m) or ()) for m in group.members}
    processes = {m.member_id: process_of(m) for m in group.members}
    holder_of = {p: member_id for member_id, partitions in assigned.items() for p in partitions}
    sentences = []
    for member in group.members:
        progress = member.consumer
        if progress is None:
            continue
        awaited = [p for p in flat(progress.target) if p not in assigned[member.member_id]]
        if details.share:  # members of a share group do not wait for each other
            holders = dict.fromkeys(awaited, "")
        elif details.streams:  # several members may hold a task
            holders = {p: task_holder(p, member.member_id, assigned, processes) or "" for p in awaited}
        else:
            holders = {p: holder_of.get(p, "") for p in awaited}
        sentences.append(_unsettled_sentence(member, progress, details.assignment_epoch, holders))
    return [sentence for sentence in sentences if sentence is not None]


def _unsettled_sentence(
    member: MemberSnapshot,
    progress: ConsumerMemberSnapshot,
    assignment_epoch: int,
    holders: Mapping[TopicPartition, str],
) -> str | None:
    """Return a sentence about a member that has not reached its target, or None if it has.

    `assignment_epoch` is the epoch of the group's target assignment. `holders` has, for each awaited
    partition, the member that has to give it up first, or "" if none has to.
    """
    assigned, target = set(assigned_partitions(member) or ()), set(flat(progress.target))
    who = f"{member.member_id} ({member.client_id} at {member.client_host})"  # the id may be a UUID
    if progress.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return f"{who} has left for a while (static member {member.group_instance_id})"
    parts = []
    if assigned - target:
        parts.append(f"has to give up {partition_list(assigned - target)}")
    for holder in sorted(set(holders.values())):
        awaited = [p for p, holder_of_partition in holders.items() if holder_of_partition == holder]
        parts.append(
            f"waits for {partition_list(awaited)} of {holder}"
            if holder
            else f"gets {partition_list(awaited)} at its next heartbeat"
        )
    if not parts and progress.member_epoch == assignment_epoch:
        return None
    epochs = f"{who} is at epoch {progress.member_epoch} of {assignment_epoch}"
    return f"{epochs}: it {'; it '.join(parts)}" if parts else epochs


def state_remark(group_id: str, state: str, type_: str = "consumer") -> str | None:
    """Return a remark about a group in this state, or None for a Stable group."""
    kind = type_.capitalize() if type_ in ("share", "streams") else "Consumer"
    if state in _REBALANCING_STATES:
        return f"Warning: {kind} group '{group_id}' is rebalancing."
    remarks = {
        DEAD: f"Error: {kind} group '{group_id}' does not exist.",
        GroupState.EMPTY.value: f"{kind} group '{group_id}' has no active members.",
        NOT_READY: f"Warning: {kind} group '{group_id}' is not ready: topics of its topology are missing, or "
        "have wrong numbers of partitions.",
    }
    return remarks.get(state)
