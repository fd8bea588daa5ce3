"""The rows that describe a group: one for each partition, one for each member, or one for its state.

Source: ConsumerGroupCommand.collectGroupsOffsets, collectGroupsMembers, collectGroupsState.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType, structs

from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMemberDescription,
    DescribedMember,
)
from kafka_why.contract.kafka.states import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from kafka_why.contract.protocols.consumer_protocol import PROTOCOL_TYPE, ProtocolError, decode_assignment
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.committed import Committed
from kafka_why.groups.described import SHARE, STREAMS, AnyDescribed, EpochsDescription, group_type
from kafka_why.groups.list_groups import TYPES
from kafka_why.lag.definitions import lag_records
from kafka_why.lag.log import LogBounds
from kafka_why.partition_text import partition_list

_ACTIVE = "active "
AnyMember = DescribedMember | ConsumerGroupMemberDescription
Partitions = dict[str, list[int]]
LagsMs: TypeAlias = Mapping[tuple[TopicPartition, int], int]
"""Lags in ms by partition and committed offset."""
_CLASSIC_MEMBER = 0


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


class Behind(Struct, frozen=True):
    """How far a member or a group is behind: `lag` is the sum of its partitions' lags in records,
    `lag_seconds` the greatest lag in time, each None if it is not known of any.
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
    behind: Behind | None = None


class ConsumerMemberRow(Struct, frozen=True, kw_only=True):
    """What a member of a group of the consumer protocol has besides.

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
    behind: Behind | None = None


def protocol_type(described: AnyDescribed) -> str:
    """The protocol type of the group, "" if it never had members."""
    return PROTOCOL_TYPE if isinstance(described, ConsumerGroupDescribeResponse) else described.protocol_type


def is_consumer_group(described: AnyDescribed) -> bool:
    """Whether the members are Kafka's consumers; a group that never had members counts as one."""
    return protocol_type(described) in ("", PROTOCOL_TYPE)


def assigned_partitions(member: AnyMember) -> tuple[TopicPartition, ...] | None:
    """Return the partitions assigned to a member, None if its bytes are not a consumer assignment.

    In a group of the consumer protocol they include those that the member has to give up.
    """
    if isinstance(member, ConsumerGroupMemberDescription):
        return _flat(member.assignment)
    if not member.member_assignment:
        return ()
    try:
        return decode_assignment(member.member_assignment).partitions
    except ProtocolError:
        return None


def instance_id(member: AnyMember) -> str | None:
    """Return the member's group.instance.id, None if it is not static."""
    return member.group_instance_id if isinstance(member, DescribedMember) else member.instance_id


def _flat(assignment: Iterable[AssignedTopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic_name, n) for topic in assignment for n in topic.partitions)


def _read_by(described: AnyDescribed, member: AnyMember) -> tuple[TopicPartition, ...]:
    """The partitions that a member consumes: in a streams group those that its active tasks read."""
    held = assigned_partitions(member) or ()
    if not (isinstance(described, EpochsDescription) and described.group_type == STREAMS):
        return held
    return tuple(
        TopicPartition(topic, number)
        for task, number in held
        if task.startswith(_ACTIVE)
        for topic in described.sources.get(task.removeprefix(_ACTIVE), ())
    )


def mentioned_partitions(described: AnyDescribed, committed: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions for which `partition_rows` makes rows."""
    assigned = {p for member in described.members for p in _read_by(described, member)}
    return assigned.union(committed, pending_offsets(described))


def pending_offsets(described: AnyDescribed) -> dict[TopicPartition, int]:
    """Return the offsets that are pending in transactions."""
    if isinstance(described.pending_offsets, UnsetType):
        return {}
    return {
        TopicPartition(topic, partition): offset
        for topic, offsets in described.pending_offsets.items()
        for partition, offset in offsets.items()
    }


def partition_rows(
    described: AnyDescribed,
    committed: Mapping[TopicPartition, Committed],
    bounds: Mapping[TopicPartition, LogBounds],
    lags_ms: LagsMs | None = None,
) -> list[PartitionRow]:
    """Rows of members with most partitions first, then unassigned partitions; each by topic and partition.

    `bounds`: those of the log of every existing partition. `lags_ms`: the known lags in time, None if they
    are not asked for.
    """
    members: list[tuple[AnyMember, list[TopicPartition]]] = [
        (member, sorted(_read_by(described, member))) for member in described.members
    ]
    members.sort(key=lambda held: len(held[1]), reverse=True)
    assigned = {p for _, partitions in members for p in partitions}
    held = [(p, member) for member, partitions in members for p in partitions]
    pending = pending_offsets(described)
    unheld = [(p, None) for p in sorted((committed.keys() | pending.keys()) - assigned)]
    return [
        _partition_row(
            described.group_id,
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
    member: AnyMember | None,
    committed: Committed | None,
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
    partition: TopicPartition, committed: Committed | None, lag: int | None, lags_ms: LagsMs
) -> float | None:
    if committed is None or not lag:
        return None if lag is None else 0.0
    ms = lags_ms.get((partition, committed.offset))
    return None if ms is None else ms / 1000


def behind(rows: Iterable[PartitionRow]) -> Behind:
    """Return how far these partitions are behind."""
    given = list(rows)
    lags = [row.lag for row in given if row.lag is not None]
    seconds = [row.lag_seconds for row in given if isinstance(row.lag_seconds, float)]
    return Behind(sum(lags) if lags else None, max(seconds, default=None))


def with_lags(members: Iterable[MemberRow], partitions: Sequence[PartitionRow]) -> list[MemberRow]:
    """Return the members with the lags of the partitions that each holds."""
    of_member: dict[str | None, list[PartitionRow]] = {}
    for row in partitions:
        of_member.setdefault(row.consumer_id, []).append(row)
    return [structs.replace(m, behind=behind(of_member.get(m.consumer_id, ()))) for m in members]


def member_rows(described: AnyDescribed) -> list[MemberRow]:
    """Return the members in the coordinator's order."""
    if isinstance(described, ConsumerGroupDescribeResponse):
        epoch = described.assignment_epoch
        return [_member_row(described.group_id, m, _consumer_row(m, epoch)) for m in described.members]
    return [_member_row(described.group_id, m, None) for m in described.members]


def _member_row(group_id: str, member: AnyMember, consumer: ConsumerMemberRow | None) -> MemberRow:
    partitions = assigned_partitions(member)
    return MemberRow(
        group=group_id,
        consumer_id=member.member_id,
        group_instance_id=instance_id(member),
        host=member.client_host,
        client_id=member.client_id,
        partitions=None if partitions is None else len(partitions),
        assignment=None if partitions is None else _by_topic(partitions),
        consumer=consumer,
    )


def _consumer_row(member: ConsumerGroupMemberDescription, target_epoch: int) -> ConsumerMemberRow:
    return ConsumerMemberRow(
        current_epoch=member.member_epoch,
        target_epoch=target_epoch,
        target_assignment=_by_topic(_flat(member.target_assignment)),
        subscribed_topics=member.subscribed_topic_names,
        subscribed_pattern=member.subscribed_topic_regex or None,
        rack_id=member.rack_id,
        upgraded=member.member_type != _CLASSIC_MEMBER,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> Partitions:
    by_topic: Partitions = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def state_row(described: AnyDescribed, requests_topic: str, partition: int) -> StateRow:
    """Return the row of the group; `partition` of the requests topic is the one for the group's requests."""
    row = StateRow(
        group=described.group_id,
        type=TYPES[group_type(described)],
        coordinator=requests_topic,
        coordinator_id=partition,
        assignment_strategy="",
        state=described.group_state,
        members=len(described.members),
    )
    if not isinstance(described, ConsumerGroupDescribeResponse):
        return structs.replace(row, assignment_strategy=described.protocol_data)
    return structs.replace(
        row,
        assignment_strategy=described.assignor_name,
        group_epoch=described.group_epoch,
        target_assignment_epoch=described.assignment_epoch,
        unsettled=unsettled(described),
        classic_members=[m.member_id for m in described.members if m.member_type == _CLASSIC_MEMBER],
    )


def unsettled(described: ConsumerGroupDescribeResponse) -> list[str]:
    """Return a sentence for each member that is not at the target assignment: what it has to give up, and
    what it waits for and from whom.
    """
    holders = {p: m.member_id for m in described.members for p in _flat(m.assignment)}
    if group_type(described) == SHARE:  # nobody waits for another member
        holders = {}
    return [
        sentence
        for member in described.members
        if (sentence := _unsettled(member, described.assignment_epoch, holders)) is not None
    ]


def _unsettled(
    member: ConsumerGroupMemberDescription, epoch: int, holders: Mapping[TopicPartition, str]
) -> str | None:
    held, target = set(_flat(member.assignment)), set(_flat(member.target_assignment))
    if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return f"{_who(member)} has left for a while (static member {member.instance_id})"
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
    if not parts and member.member_epoch == epoch:
        return None
    behind = f"{_who(member)} is at epoch {member.member_epoch} of {epoch}"
    return f"{behind}: it {'; it '.join(parts)}" if parts else behind


def _who(member: ConsumerGroupMemberDescription) -> str:
    """The member id, which may be a UUID, with the client and the host."""
    return f"{member.member_id} ({member.client_id} at {member.client_host})"
