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
from kafka_why.contract.protocols.subscriptions import ProtocolError, TopicPartition, by_topic
from kafka_why.groups.list_groups import TYPES, GroupOffsets, OffsetWithEpoch
from kafka_why.lag.definitions import LogBounds, lag_records
from kafka_why.partition_text import partition_list

_ACTIVE = "active "
Partitions = dict[str, list[int]]
LagsMs: TypeAlias = Mapping[tuple[TopicPartition, int], int]
"""Lags in ms by partition and committed offset."""
_REBALANCING = frozenset(
    (
        GroupState.PREPARING_REBALANCE.value,
        GroupState.COMPLETING_REBALANCE.value,
        ConsumerGroupState.ASSIGNING.value,
        ConsumerGroupState.RECONCILING.value,
    )
)


class PartitionRow(Struct, frozen=True, kw_only=True):
    """A partition that is assigned to a member or has a committed offset, or one that is pending in a
    transaction. `log_end_offset` is None if the partition does not exist. `lag` (in records) is None if
    either offset is unknown, `lag_seconds` if a record's time is; that is left out unless it is asked for.
    `pending_offset` will be the committed offset if its transaction commits.
    """

    group: str
    topic: str
    partition: int
    leader_epoch: int | None
    current_offset: int | None
    pending_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str | None
    host: str | None
    client_id: str | None
    lag_seconds: float | UnsetType | None = UNSET


class LagSummary(Struct, frozen=True):
    """The lag of a member or a group: `lag` is the sum of its partitions' lags in records, `lag_seconds` the
    greatest lag in time, each None if it is not known of any.
    """

    lag: int | None
    lag_seconds: float | None


class MemberRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member. `assignment` holds partition numbers by topic, None if its bytes cannot be read. `consumer`
    is None in a classic group, and `behind` if it is not asked for.
    """

    group: str
    consumer_id: str
    group_instance_id: str | None
    host: str
    client_id: str
    partitions: int | None
    assignment: Partitions | None
    consumer: "ConsumerMemberRow | None" = None
    behind: LagSummary | None = None


class ConsumerMemberRow(Struct, frozen=True, kw_only=True):
    """The additional columns of a member of a group of the consumer protocol.

    `target_epoch` is the epoch of the group's target assignment, `target_assignment` what that has for the
    member. `upgraded` is False for a member on the classic protocol.
    """

    current_epoch: int
    target_epoch: int
    target_assignment: Partitions
    subscribed_topics: list[str]
    subscribed_pattern: str | None
    rack_id: str | None
    upgraded: bool


class StateRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group as a whole. `coordinator_id` is the partition of the requests topic for its requests.

    The fields from `group_epoch` on are for groups of the consumer protocol. `unsettled` has a sentence for
    each member that is not at the target assignment yet, `classic_members` the members that a conversion
    from the classic protocol waits for. `behind` is None if it is not asked for.
    """

    group: str
    type: str
    coordinator: str
    coordinator_id: int
    assignment_strategy: str
    state: str
    members: int
    group_epoch: int | None = None
    target_assignment_epoch: int | None = None
    unsettled: list[str] = []
    classic_members: list[str] = []
    behind: LagSummary | None = None


def assigned_partitions(member: MemberSnapshot) -> tuple[TopicPartition, ...] | None:
    """Return the partitions assigned to a member, None if its bytes are not a consumer assignment.

    In a group with epochs they include those that the member has to give up.
    """
    if member.consumer is not None:
        return tuple(dict.fromkeys([*member.held(), *flat(member.consumer.revoking)]))
    try:
        return member.held()
    except ProtocolError:
        return None


def _read_by(group: GroupSnapshot, member: MemberSnapshot) -> tuple[TopicPartition, ...]:
    """Return the partitions that a member consumes: in a streams group those that its active tasks read."""
    held = assigned_partitions(member) or ()
    if not (group.consumer and group.consumer.streams):
        return held
    sources = group.consumer.streams.subtopologies
    return tuple(
        TopicPartition(topic, number)
        for task, number in held
        if task.startswith(_ACTIVE)
        for topic in sources.get(task.removeprefix(_ACTIVE), ())
    )


def mentioned_partitions(group: GroupSnapshot, offsets: GroupOffsets) -> set[TopicPartition]:
    """Return the partitions for which `partition_rows` makes rows."""
    assigned = {p for member in group.members for p in _read_by(group, member)}
    return assigned.union(offsets.committed, offsets.pending)


def partition_rows(
    group: GroupSnapshot,
    offsets: GroupOffsets,
    bounds: Mapping[TopicPartition, LogBounds],
    lags_ms: LagsMs | None = None,
) -> list[PartitionRow]:
    """Rows of members with most partitions first, then unassigned partitions; each by topic and partition.

    `bounds`: those of the log of every existing partition. `lags_ms`: the known lags in time, None if they
    are not asked for.
    """
    members = [(member, sorted(_read_by(group, member))) for member in group.members]
    members.sort(key=lambda held: len(held[1]), reverse=True)
    assigned = {p for _, partitions in members for p in partitions}
    held = [(p, member) for member, partitions in members for p in partitions]
    committed, pending = offsets.committed, offsets.pending
    unheld = [(p, None) for p in sorted((committed.keys() | pending.keys()) - assigned)]
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
        for partition, member in [*held, *unheld]
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
        lag_seconds=UNSET if lags_ms is None else _seconds(partition, committed, lag, lags_ms),
        consumer_id=member.member_id if member is not None else None,
        host=member.client_host if member is not None else None,
        client_id=member.client_id if member is not None else None,
    )


def _seconds(
    partition: TopicPartition, committed: OffsetWithEpoch | None, lag: int | None, lags_ms: LagsMs
) -> float | None:
    if committed is None or not lag:
        return None if lag is None else 0.0
    ms = lags_ms.get((partition, committed.offset))
    return None if ms is None else ms / 1000


def behind(rows: Iterable[PartitionRow]) -> LagSummary:
    """Return how far these partitions are behind."""
    given = list(rows)
    lags = [row.lag for row in given if row.lag is not None]
    seconds = [row.lag_seconds for row in given if isinstance(row.lag_seconds, float)]
    return LagSummary(sum(lags) if lags else None, max(seconds, default=None))


def with_lags(members: Iterable[MemberRow], partitions: Sequence[PartitionRow]) -> list[MemberRow]:
    """Return the members with the lags of the partitions that each holds."""
    of_member: dict[str | None, list[PartitionRow]] = {}
    for row in partitions:
        of_member.setdefault(row.consumer_id, []).append(row)
    return [structs.replace(m, behind=behind(of_member.get(m.consumer_id, ()))) for m in members]


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
    """Return the row of the group; `partition` of the requests topic is the one for the group's requests."""
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
        classic_members=[
            m.member_id for m in group.members if m.consumer and m.consumer.member_type == CLASSIC
        ],
    )


def _unsettled_members(group: GroupSnapshot, details: ConsumerGroupSnapshot) -> list[str]:
    """Return a sentence for each member that is not at the target assignment: what it has to give up, and
    what it waits for and from whom.
    """
    holders = {p: m.member_id for m in group.members for p in assigned_partitions(m) or ()}
    if details.share:  # nobody waits for another member
        holders = {}
    return [
        sentence
        for member in group.members
        if member.consumer is not None
        and (sentence := _unsettled(member, member.consumer, details.assignment_epoch, holders)) is not None
    ]


def _unsettled(
    member: MemberSnapshot,
    progress: ConsumerMemberSnapshot,
    epoch: int,
    holders: Mapping[TopicPartition, str],
) -> str | None:
    held, target = set(assigned_partitions(member) or ()), set(flat(progress.target))
    who = f"{member.member_id} ({member.client_id} at {member.client_host})"  # the id may be a UUID
    if progress.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return f"{who} has left for a while (static member {member.group_instance_id})"
    parts = []
    if held - target:
        parts.append(f"has to give up {partition_list(held - target)}")
    for holder in sorted({holders.get(p, "") for p in target - held}):
        awaited = {p for p in target - held if holders.get(p, "") == holder}
        parts.append(
            f"waits for {partition_list(awaited)} of {holder}"
            if holder
            else f"gets {partition_list(awaited)} at its next heartbeat"
        )
    if not parts and progress.member_epoch == epoch:
        return None
    behind = f"{who} is at epoch {progress.member_epoch} of {epoch}"
    return f"{behind}: it {'; it '.join(parts)}" if parts else behind


def remark(group_id: str, state: str, type_: str = "consumer") -> str | None:
    """Return the remark for the user about a group in this state, None if there is none."""
    kind = type_.capitalize() if type_ in ("share", "streams") else "Consumer"
    remarks = {
        DEAD: f"Error: {kind} group '{group_id}' does not exist.",
        GroupState.EMPTY.value: f"{kind} group '{group_id}' has no active members.",
        NOT_READY: f"Warning: {kind} group '{group_id}' is not ready: topics of its topology are missing, or "
        "have wrong numbers of partitions.",
    }
    is_moving = state in _REBALANCING
    return f"Warning: {kind} group '{group_id}' is rebalancing." if is_moving else remarks.get(state)
