"""The rows that describe a group: one for each partition, one for each member, or one for its state.

Source: ConsumerGroupCommand.collectGroupsOffsets, collectGroupsMembers, collectGroupsState.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, UnsetType

from assignors.kafka.api import TopicPartition
from assignors.kafka.consumer_protocol import PROTOCOL_TYPE, ProtocolError, decode_assignment
from insight.admin.requests import Committed
from state.kafka.classic_group import GroupState
from state.kafka.group import DEAD
from state.kafka.responses import DescribedMember, DescribeGroupResponse

REBALANCING = frozenset({GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE})


class PartitionRow(Struct, frozen=True, kw_only=True):
    """A partition that is assigned to a member or has a committed offset, or one that is pending in a
    transaction. `log_end_offset` is None if the partition does not exist, `lag` (in records) is None if
    either offset is unknown. `pending_offset` will be the committed offset if its transaction commits.
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


class MemberRow(Struct, frozen=True, kw_only=True):
    """A member. `assignment` holds partition numbers by topic, None if its bytes cannot be read."""

    group: str
    consumer_id: str
    group_instance_id: str | None
    host: str
    client_id: str
    partitions: int | None
    assignment: dict[str, list[int]] | None


class StateRow(Struct, frozen=True, kw_only=True):
    """A group as a whole. `coordinator_id` is the partition of the requests topic for its requests."""

    group: str
    coordinator: str
    coordinator_id: int
    assignment_strategy: str
    state: str
    members: int


def is_consumer_group(described: DescribeGroupResponse) -> bool:
    """Whether the members use the consumer protocol; a group that never had members counts as one."""
    return described.protocol_type in ("", PROTOCOL_TYPE)


def remark(group_id: str, state: str) -> str | None:
    """Return the remark for the user about a group in this state, None if there is none."""
    if state == DEAD:
        return f"Error: Consumer group '{group_id}' does not exist."
    if state == GroupState.EMPTY:
        return f"Consumer group '{group_id}' has no active members."
    if state in REBALANCING:
        return f"Warning: Consumer group '{group_id}' is rebalancing."
    return None


def assigned_partitions(member: DescribedMember) -> tuple[TopicPartition, ...] | None:
    """Return the partitions assigned to a member, None if its bytes are not a consumer assignment."""
    if not member.member_assignment:
        return ()
    try:
        return decode_assignment(member.member_assignment).partitions
    except ProtocolError:
        return None


def mentioned_partitions(
    described: DescribeGroupResponse, committed: Iterable[TopicPartition]
) -> set[TopicPartition]:
    """Return the partitions for which `partition_rows` makes rows."""
    assigned = {p for member in described.members for p in assigned_partitions(member) or ()}
    return assigned.union(committed, pending_offsets(described))


def pending_offsets(described: DescribeGroupResponse) -> dict[TopicPartition, int]:
    """Return the offsets that are pending in transactions."""
    if isinstance(described.pending_offsets, UnsetType):
        return {}
    return {
        TopicPartition(topic, partition): offset
        for topic, offsets in described.pending_offsets.items()
        for partition, offset in offsets.items()
    }


def partition_rows(
    described: DescribeGroupResponse,
    committed: Mapping[TopicPartition, Committed],
    ends: Mapping[TopicPartition, int],
) -> list[PartitionRow]:
    """Rows of members with most partitions first, then unassigned partitions; each by topic and partition.

    `ends`: the log end offset of every existing partition.
    """
    members = [(member, sorted(assigned_partitions(member) or ())) for member in described.members]
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
            ends.get(partition),
        )
        for partition, member in [*held, *unheld]
    ]


def _partition_row(
    group_id: str,
    partition: TopicPartition,
    member: DescribedMember | None,
    committed: Committed | None,
    pending: int | None,
    end: int | None,
) -> PartitionRow:
    epoch = committed.leader_epoch if committed is not None else -1
    return PartitionRow(
        group=group_id,
        topic=partition.topic,
        partition=partition.partition,
        leader_epoch=epoch if epoch >= 0 else None,
        current_offset=committed.offset if committed is not None else None,
        pending_offset=pending,
        log_end_offset=end,
        lag=end - committed.offset if committed is not None and end is not None else None,
        consumer_id=member.member_id if member is not None else None,
        host=member.client_host if member is not None else None,
        client_id=member.client_id if member is not None else None,
    )


def member_rows(described: DescribeGroupResponse) -> list[MemberRow]:
    """Return the members in the coordinator's order."""
    return [_member_row(described.group_id, member) for member in described.members]


def _member_row(group_id: str, member: DescribedMember) -> MemberRow:
    partitions = assigned_partitions(member)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions or ()):
        by_topic.setdefault(topic, []).append(partition)
    return MemberRow(
        group=group_id,
        consumer_id=member.member_id,
        group_instance_id=member.group_instance_id,
        host=member.client_host,
        client_id=member.client_id,
        partitions=None if partitions is None else len(partitions),
        assignment=None if partitions is None else by_topic,
    )


def state_row(described: DescribeGroupResponse, requests_topic: str, partition: int) -> StateRow:
    """Return the row of the group; `partition` of the requests topic is the one for the group's requests."""
    return StateRow(
        group=described.group_id,
        coordinator=requests_topic,
        coordinator_id=partition,
        assignment_strategy=described.protocol_data,
        state=described.group_state,
        members=len(described.members),
    )
