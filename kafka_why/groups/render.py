"""The tables of `groups`, with the columns of kafka-consumer-groups, and the meanings of Kafka's errors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct, UnsetType

from kafka_why.contract.codec import PendingTransaction
from kafka_why.contract.kafka.history import ConsumerGroupState
from kafka_why.contract.messages import ErrorCode
from kafka_why.groups.describe import ConsumerMemberRow, MemberRow, PartitionRow, StateRow
from kafka_why.groups.list_groups import GroupListRow
from kafka_why.groups.streams import streams_text
from kafka_why.wording import Column, VisibleText, render_table, visible_text

# Kafka's broker returns this error. This tool detects it itself, because the coordinator knows no topics.
UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"

# The meanings of errors, by Kafka's names.
_TEXTS = {
    UNKNOWN_TOPIC_OR_PARTITION: "the topic or partition does not exist",
    "COORDINATOR_NOT_AVAILABLE": "the group is quarantined after a fault of the coordinator",
    "FENCED_INSTANCE_ID": "another member has this instance id",
    "GROUP_ID_NOT_FOUND": "the group does not exist",
    "GROUP_SUBSCRIBED_TO_TOPIC": "the group is subscribed to the topic",
    "INVALID_GROUP_ID": "the group id is not valid",
    "NON_EMPTY_GROUP": "the group is not empty",
    "REBALANCE_IN_PROGRESS": "the group is rebalancing",
    "UNKNOWN_MEMBER_ID": "the group has no such member",
}


def error_name(code: ErrorCode) -> str | None:
    """Return Kafka's name of an error, or None for NONE."""
    return None if code is ErrorCode.NONE else code.name


def error_text(name: str) -> str:
    """Return an error's name, with its meaning if known: `NON_EMPTY_GROUP: the group is not empty`."""
    return f"{name}: {_TEXTS[name]}" if name in _TEXTS else name


class ResetRow(Struct, frozen=True, kw_only=True):
    """The new offset of a partition, applied or planned."""

    group: str
    topic: str
    partition: int
    new_offset: int


class OffsetDeletion(Struct, frozen=True, kw_only=True):
    """The outcome of deleting one partition's offset."""

    topic: str
    partition: int | None  # None if the topic does not exist
    error: str | None


class Removal(Struct, frozen=True, kw_only=True):
    """The outcome of removing one member."""

    group: str
    consumer_id: str | None
    group_instance_id: str | None
    error: str | None


R = TypeVar("R", contravariant=True)


@dataclass(frozen=True, slots=True)
class _Column(Generic[R]):
    """A column, with a function that returns its cell in a row."""

    heading: str
    cell: Callable[[R], object]
    min_width: int = 15
    is_shown: bool = True


def _table(columns: Sequence[_Column[R]], rows: Sequence[R]) -> VisibleText:
    """Format the rows as a table of the columns that are shown."""
    shown_columns = [column for column in columns if column.is_shown]
    headings = [Column(column.heading, column.min_width) for column in shown_columns]
    return render_table(headings, [[column.cell(row) for column in shown_columns] for row in rows])


def group_list(
    groups: Sequence[GroupListRow], *, with_type: bool, with_state: bool, with_protocol: bool = False
) -> VisibleText:
    """Format the group ids, one per line, or as a table with the requested columns."""
    if not (with_type or with_state or with_protocol):
        return visible_text(group.group for group in groups)
    with_clients = any(group.clients is not None for group in groups)
    columns: list[_Column[GroupListRow]] = [
        _Column("GROUP", lambda row: row.group, 25),
        _Column("TYPE", lambda row: row.type, 20, is_shown=with_type),
        _Column("PROTOCOL", lambda row: row.protocol_type or None, 20, is_shown=with_protocol),
        _Column("STATE", lambda row: row.state, 20, is_shown=with_state),
        _Column("#CLIENTS", lambda row: row.clients, 8, is_shown=with_clients),
        _Column(
            "CLIENT-VERSION", lambda row: ", ".join(row.client_versions) or None, 0, is_shown=with_clients
        ),
    ]
    return _table(columns, groups)


def partition_table(rows: Sequence[PartitionRow], *, verbose: bool) -> VisibleText:
    """Format partitions with offsets and lag. `verbose` adds leader epochs.

    Pending offsets and lags in time have columns if there are any.
    """
    has_lag_seconds = any(not isinstance(row.lag_seconds, UnsetType) for row in rows)
    has_pending = any(row.pending_offset is not None for row in rows)
    columns: list[_Column[PartitionRow]] = [
        _Column("GROUP", lambda row: row.group),
        _Column("TOPIC", lambda row: row.topic),
        _Column("PARTITION", lambda row: row.partition, 10),
        _Column("LEADER-EPOCH", lambda row: row.leader_epoch, is_shown=verbose),
        _Column("CURRENT-OFFSET", lambda row: row.current_offset),
        _Column("PENDING-OFFSET", lambda row: row.pending_offset, is_shown=has_pending),
        _Column("LOG-END-OFFSET", lambda row: row.log_end_offset),
        _Column("LAG", lambda row: row.lag),
        _Column("LAG-SECONDS", lambda row: row.lag_seconds, is_shown=has_lag_seconds),
        _Column("CONSUMER-ID", lambda row: row.consumer_id),
        _Column("HOST", lambda row: row.host),
        _Column("CLIENT-ID", lambda row: row.client_id, 0),
    ]
    return _table(columns, rows)


def member_table(rows: Sequence[MemberRow], *, verbose: bool) -> VisibleText:
    """Format members.

    `verbose` adds assignments and, for a group with epochs, Kafka's columns and subscriptions.
    """
    has_static = any(row.group_instance_id is not None for row in rows)
    columns: list[_Column[MemberRow]] = [
        _Column("GROUP", lambda row: row.group),
        _Column("CONSUMER-ID", lambda row: row.consumer_id),
        _Column("GROUP-INSTANCE-ID", lambda row: row.group_instance_id or "", 17, is_shown=has_static),
        _Column("HOST", lambda row: row.host),
        _Column("CLIENT-ID", lambda row: row.client_id),
        _Column("#PARTITIONS", lambda row: row.partitions),
        *_lag_columns(is_shown=any(row.behind is not None for row in rows)),
    ]
    if verbose:
        columns += _verbose_columns(rows)
    return _table(columns, rows)


def _lag_columns(*, is_shown: bool) -> list[_Column[MemberRow | StateRow]]:
    return [
        _Column("LAG", lambda row: row.behind and row.behind.lag, is_shown=is_shown),
        _Column("LAG-SECONDS", lambda row: row.behind and row.behind.lag_seconds, is_shown=is_shown),
    ]


def _verbose_columns(rows: Sequence[MemberRow]) -> list[_Column[MemberRow]]:
    """Return the additional columns of `--verbose`, which depend on the type of the group."""
    details = [row.consumer for row in rows if row.consumer is not None]
    if not details:  # a classic group
        return [_Column("ASSIGNMENT", lambda row: assignment_text(row.assignment), 0)]
    has_both_protocols = len({consumer.upgraded for consumer in details}) > 1
    return [
        _Column("CURRENT-EPOCH", lambda row: _consumer_row(row).current_epoch),
        _Column("CURRENT-ASSIGNMENT", lambda row: assignment_text(row.assignment), 20),
        _Column("TARGET-EPOCH", lambda row: _consumer_row(row).target_epoch),
        _Column("TARGET-ASSIGNMENT", lambda row: assignment_text(_consumer_row(row).target_assignment), 20),
        _Column(
            "UPGRADED", lambda row: str(_consumer_row(row).upgraded).lower(), 8, is_shown=has_both_protocols
        ),
        _Column("SUBSCRIPTION", lambda row: _subscription_text(_consumer_row(row)), 0),
    ]


def _consumer_row(row: MemberRow) -> ConsumerMemberRow:
    assert row.consumer is not None, "either all members of a group have it, or none"
    return row.consumer


def _subscription_text(consumer: ConsumerMemberRow) -> str | None:
    subscription = [*consumer.subscribed_topics]
    if consumer.subscribed_pattern is not None:
        subscription.append(f"/{consumer.subscribed_pattern}/")
    return ",".join(subscription) or None


def assignment_text(assignment: Mapping[str, Sequence[int]] | None) -> str | None:
    """Return an assignment as text, such as `orders:0,1;prices:3`, or None if it is empty or unknown."""
    if not assignment:
        return None
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in sorted(assignment.items()))


def state_table(row: StateRow, *, verbose: bool = False) -> VisibleText:
    """Format one group's state and type. For a group with epochs, lines below say what it waits for.

    `verbose` shows the columns of epochs for a classic group, too.
    """
    shows_epochs = verbose or row.group_epoch is not None
    columns: list[_Column[StateRow]] = [
        _Column("GROUP", lambda row: row.group),
        _Column("COORDINATOR (ID)", lambda row: f"{row.coordinator} ({row.coordinator_id})", 25),
        _Column("ASSIGNMENT-STRATEGY", lambda row: row.assignment_strategy or None, 20),
        _Column("STATE", lambda row: row.state, 20),
        _Column("GROUP-EPOCH", lambda row: row.group_epoch, is_shown=shows_epochs),
        _Column(
            "TARGET-ASSIGNMENT-EPOCH", lambda row: row.target_assignment_epoch, 25, is_shown=shows_epochs
        ),
        _Column("#MEMBERS", lambda row: row.members, 8),
        *_lag_columns(is_shown=row.behind is not None),
        _Column("TYPE", lambda row: row.type, 0),
    ]
    return visible_text([_table(columns, [row]), *_waiting_lines(row)])


def _waiting_lines(row: StateRow) -> list[str]:
    """Return lines about the members that the group waits for."""
    lines = []
    if row.state == ConsumerGroupState.ASSIGNING:
        lines += [
            "",
            f"The target assignment of epoch {row.group_epoch} is not computed yet: the coordinator computes",
            "it with a member's next heartbeat.",
        ]
    if row.unsettled:
        lines += ["", f"Not at the target assignment: {len(row.unsettled)} of {row.members} members"]
        lines += [f"  {sentence}" for sentence in row.unsettled]
    if row.streams is not None:
        lines += streams_text(row.streams)
    if row.classic_members:
        number = len(row.classic_members)
        lines += [
            "",
            f"On the classic protocol: {number} of {row.members} members. The conversion to the consumer",
            "protocol is complete when these have left, or have joined again with it:",
        ]
        lines += [f"  {member_id}" for member_id in row.classic_members]
        if others := row.members - number:
            lines += [
                f"The way back is complete when the other {others} have left, or have joined again with the",
                "classic protocol, if group.consumer.migration.policy allows it.",
            ]
    return lines


def reset_table(rows: Sequence[ResetRow]) -> VisibleText:
    """Format new offsets."""
    columns = [Column("GROUP"), Column("TOPIC"), Column("PARTITION", 10), Column("NEW-OFFSET", 0)]
    return render_table(columns, [[row.group, row.topic, row.partition, row.new_offset] for row in rows])


def offset_deletion_table(rows: Sequence[OffsetDeletion]) -> VisibleText:
    """Format outcomes by partition."""
    columns = [Column("TOPIC"), Column("PARTITION", 10), Column("STATUS", 0)]
    return render_table(columns, [[row.topic, row.partition, _status_text(row.error)] for row in rows])


def removal_table(rows: Sequence[Removal]) -> VisibleText:
    """Format outcomes by member."""
    columns = [Column("GROUP"), Column("CONSUMER-ID"), Column("GROUP-INSTANCE-ID", 17), Column("STATUS", 0)]
    return render_table(
        columns,
        [[row.group, row.consumer_id, row.group_instance_id, _status_text(row.error)] for row in rows],
    )


def _status_text(error: str | None) -> str:
    return "Successful" if error is None else f"Error: {error_text(error)}"


def pending_table(pending: Iterable[PendingTransaction], now_ms: int) -> VisibleText:
    """Format pending offsets, one line for each TxnOffsetCommit."""
    names = ("GROUP", "TRANSACTIONAL-ID", "PRODUCER-ID", "EPOCH", "PARTITIONS")
    columns = [*map(Column, names), Column("AGE-S", 0)]
    return render_table(
        columns,
        [
            [
                one.group_id,
                one.transactional_id,
                str(one.producer_id),
                str(one.producer_epoch),
                str(one.partitions),
                str(max(0, now_ms - one.at_ms) // 1000),
            ]
            for one in pending
        ],
    )
