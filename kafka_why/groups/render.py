"""The tables of `groups`, with the columns of kafka-consumer-groups, and the meanings of Kafka's errors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, UnsetType

from kafka_why.contract.codec import PendingTransaction
from kafka_why.contract.kafka.history import ConsumerGroupState
from kafka_why.contract.messages import ErrorCode
from kafka_why.groups.describe import LagSummary, MemberRow, PartitionRow, StateRow
from kafka_why.groups.list_groups import GroupListRow
from kafka_why.groups.streams import streams_text
from kafka_why.wording import Column, VisibleText, render_table, visible_text

# Kafka's broker returns this error. This tool detects it itself, because the coordinator knows no topics.
UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"

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


def group_list(
    groups: Sequence[GroupListRow], *, with_type: bool, with_state: bool, with_protocol: bool = False
) -> VisibleText:
    """Format the group ids, one per line, or as a table with the requested columns."""
    if not (with_type or with_state or with_protocol):
        return visible_text(group.group for group in groups)
    with_clients = any(group.clients is not None for group in groups)
    columns = [Column("GROUP", 25)]
    columns += [Column("TYPE", 20)] if with_type else []
    columns += [Column("PROTOCOL", 20)] if with_protocol else []
    columns += [Column("STATE", 20)] if with_state else []
    columns += [Column("#CLIENTS", 8), Column("CLIENT-VERSION", 0)] if with_clients else []
    return render_table(
        columns,
        [
            [
                group.group,
                *([group.type] if with_type else []),
                *([group.protocol_type or None] if with_protocol else []),
                *([group.state] if with_state else []),
                *([group.clients, ", ".join(group.client_versions) or None] if with_clients else []),
            ]
            for group in groups
        ],
    )


def partition_table(rows: Sequence[PartitionRow], *, verbose: bool) -> VisibleText:
    """Format partitions with offsets and lag. `verbose` adds leader epochs.

    Pending offsets and lags in time have columns if there are any.
    """
    is_timed = any(not isinstance(row.lag_seconds, UnsetType) for row in rows)
    is_pending = any(row.pending_offset is not None for row in rows)
    epoch = [Column("LEADER-EPOCH")] if verbose else []
    columns = [Column("GROUP"), Column("TOPIC"), Column("PARTITION", 10), *epoch]
    offsets = ["CURRENT-OFFSET", *(["PENDING-OFFSET"] if is_pending else []), "LOG-END-OFFSET"]
    lags = ["LAG", *(["LAG-SECONDS"] if is_timed else [])]
    columns += [Column(name) for name in (*offsets, *lags, "CONSUMER-ID", "HOST")]
    columns.append(Column("CLIENT-ID", 0))
    return render_table(
        columns,
        [
            [
                *(row.group, row.topic, row.partition),
                *([row.leader_epoch] if verbose else []),
                row.current_offset,
                *([row.pending_offset] if is_pending else []),
                *(row.log_end_offset, row.lag),
                *([row.lag_seconds] if is_timed else []),
                *(row.consumer_id, row.host, row.client_id),
            ]
            for row in rows
        ],
    )


def member_table(rows: Sequence[MemberRow], *, verbose: bool) -> VisibleText:
    """Format members.

    `verbose` adds assignments and, for a group with epochs, Kafka's columns and subscriptions.
    """
    static = any(row.group_instance_id is not None for row in rows)
    columns = [Column("GROUP"), Column("CONSUMER-ID")]
    columns += [Column("GROUP-INSTANCE-ID", 17)] if static else []
    columns += [Column("HOST"), Column("CLIENT-ID"), Column("#PARTITIONS")]
    is_timed = any(row.behind is not None for row in rows)
    columns += _LAG_COLUMNS if is_timed else []
    columns += _verbose_columns(rows) if verbose else []
    return render_table(
        columns,
        [
            [
                *(row.group, row.consumer_id),
                *([row.group_instance_id or ""] if static else []),
                *(row.host, row.client_id, row.partitions),
                *(_lag_cells(row.behind) if is_timed else []),
                *(_verbose_cells(row, mixed=_is_mixed(rows)) if verbose else []),
            ]
            for row in rows
        ],
    )


_LAG_COLUMNS = [Column("LAG"), Column("LAG-SECONDS")]


def _lag_cells(behind: LagSummary | None) -> list[int | float | None]:
    return [None, None] if behind is None else [behind.lag, behind.lag_seconds]


def _is_mixed(rows: Sequence[MemberRow]) -> bool:
    return len({row.consumer.upgraded for row in rows if row.consumer is not None}) > 1


def _verbose_columns(rows: Sequence[MemberRow]) -> list[Column]:
    if not any(row.consumer is not None for row in rows):
        return [Column("ASSIGNMENT", 0)]
    columns = [Column("CURRENT-EPOCH"), Column("CURRENT-ASSIGNMENT", 20)]
    columns += [Column("TARGET-EPOCH"), Column("TARGET-ASSIGNMENT", 20)]
    columns += [Column("UPGRADED", 8)] if _is_mixed(rows) else []
    return [*columns, Column("SUBSCRIPTION", 0)]


def _verbose_cells(row: MemberRow, *, mixed: bool) -> list[str | int | None]:
    assignment, consumer = assignment_text(row.assignment), row.consumer
    if consumer is None:
        return [assignment]
    subscription = [*consumer.subscribed_topics]
    if consumer.subscribed_pattern is not None:
        subscription.append(f"/{consumer.subscribed_pattern}/")
    return [
        *(consumer.current_epoch, assignment),
        *(consumer.target_epoch, assignment_text(consumer.target_assignment)),
        *([str(consumer.upgraded).lower()] if mixed else []),
        ",".join(subscription) or None,
    ]


def assignment_text(assignment: Mapping[str, Sequence[int]] | None) -> str | None:
    """Return an assignment as text, such as `orders:0,1;prices:3`."""
    if not assignment:
        return None
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in sorted(assignment.items()))


def state_table(row: StateRow, *, verbose: bool = False) -> VisibleText:
    """Format one group's state and type. Below it, a group with epochs has what it waits for."""
    with_epochs = verbose or row.group_epoch is not None
    columns = [Column("GROUP"), Column("COORDINATOR (ID)", 25), Column("ASSIGNMENT-STRATEGY", 20)]
    columns += [Column("STATE", 20)]
    columns += [Column("GROUP-EPOCH"), Column("TARGET-ASSIGNMENT-EPOCH", 25)] if with_epochs else []
    columns += [Column("#MEMBERS", 8), *(_LAG_COLUMNS if row.behind is not None else []), Column("TYPE", 0)]
    cells: list[Any] = [row.group, f"{row.coordinator} ({row.coordinator_id})"]
    cells += [row.assignment_strategy or None, row.state]
    cells += [row.group_epoch, row.target_assignment_epoch] if with_epochs else []
    cells += [row.members, *(_lag_cells(row.behind) if row.behind is not None else []), row.type]
    return visible_text([render_table(columns, [cells]), *_waits(row)])


def _waits(row: StateRow) -> list[str]:
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
        classic = len(row.classic_members)
        lines += [
            "",
            f"On the classic protocol: {classic} of {row.members} members. The conversion to the consumer",
            "protocol is complete when these have left, or have joined again with it:",
        ]
        lines += [f"  {member_id}" for member_id in row.classic_members]
        if others := row.members - classic:
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
    return render_table(columns, [[row.topic, row.partition, _status(row.error)] for row in rows])


def removal_table(rows: Sequence[Removal]) -> VisibleText:
    """Format outcomes by member."""
    columns = [Column("GROUP"), Column("CONSUMER-ID"), Column("GROUP-INSTANCE-ID", 17), Column("STATUS", 0)]
    return render_table(
        columns, [[row.group, row.consumer_id, row.group_instance_id, _status(row.error)] for row in rows]
    )


def _status(error: str | None) -> str:
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
