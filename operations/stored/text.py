"""The tables of a state on the terminal."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from kafka_why.escaping import VisibleText, visible_text
from kafka_why.groups.tables import Column, render_table
from operations.stored.offset_rows import OffsetRow, PendingRow
from operations.stored.rows import AnyRow, GroupRow, GroupRows, LockRow, MemberRow, Table, TimerRow
from operations.stored.share_rows import ShareRow

_EVER_S = 253_402_300_799  # the last second of the year 9999


def time_text(at_ms: int | None) -> str | None:
    """`2026-01-31 18:30:00.000` in UTC, None for None; the number itself if it is no time of this era."""
    if at_ms is None:
        return None
    if not 0 <= at_ms <= _EVER_S * 1000:
        return str(at_ms)
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def assignment_text(assignment: dict[str, list[int]] | None) -> str | None:
    """`orders:0,1;prices:3`."""
    if not assignment:
        return None
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in sorted(assignment.items()))


def group_text(rows: GroupRows) -> VisibleText:
    """The tables of one group, without those that have no rows."""
    return visible_text(_blocks(rows), "\n\n")


def _blocks(rows: GroupRows) -> Iterator[VisibleText]:
    group = rows.group
    yield table_text(Table.GROUPS, [group])
    remarks = []
    if group.last_rebalance_reason:
        at = time_text(group.last_rebalance_at_ms)
        remarks.append(f"Last rebalance: {at or 'unknown time'}, {group.last_rebalance_reason}")
    if group.quarantined is not None:
        remarks.append(f"Warning: group '{group.group_id}' is quarantined: {group.quarantined}")
    if remarks:
        yield _indented(visible_text(remarks))
    for table in (Table.MEMBERS, Table.OFFSETS, Table.PENDING, Table.SHARES, Table.TIMERS, Table.LOCKS):
        if of_table := rows.of(table):
            yield _indented(table_text(table, of_table, with_group=False))


def _indented(text: VisibleText) -> VisibleText:
    return visible_text(f"  {line}" for line in text.splitlines())


def table_text(table: Table, rows: Sequence[AnyRow], *, with_group: bool = True) -> VisibleText:
    """One table with its heading, without the columns in which no row has a value."""
    headings, cells_of = _LAYOUTS[table]
    cells = [cells_of(row) for row in rows]
    shown = [
        number
        for number, heading in enumerate(headings)
        if (with_group or heading != _GROUP) and (not rows or any(line[number] is not None for line in cells))
    ]
    columns = [Column(headings[number], 0) for number in shown]
    return render_table(columns, [[line[number] for number in shown] for line in cells])


def _group_cells(row: AnyRow) -> list[object]:
    assert isinstance(row, GroupRow)
    strategy = row.protocol_name or row.message_model
    has_epochs = row.group_type in ("consumer", "share")
    protocol = f"{row.protocol} ({row.group_type})" if has_epochs else row.protocol
    cells: list[object] = [row.group_id, protocol, row.state, time_text(row.state_since_ms)]
    cells += [
        row.generation,
        row.assignment_epoch,
        strategy,
        row.members,
        row.offsets,
        row.pending or None,
        row.locks,
    ]
    return [*cells, time_text(row.clock_ms), time_text(row.next_deadline_ms)]


def _member_cells(row: AnyRow) -> list[object]:
    assert isinstance(row, MemberRow)
    role = "leader" if row.is_leader else "classic member" if row.is_classic else str(row.role)
    cells: list[object] = [row.group_id, row.member_id, row.group_instance_id, row.client_id]
    cells += [row.client_host, role, row.waits_for, time_text(row.deadline_ms)]
    cells += [time_text(row.last_update_ms), row.member_epoch, row.member_state]
    cells += [assignment_text(row.assignment), assignment_text(row.revoking), assignment_text(row.target)]
    subscription = [*(row.subscribed_topics or ()), *([f"/{p}/"] if (p := row.subscribed_pattern) else [])]
    return [*cells, ",".join(subscription) or None]


def _offset_cells(row: AnyRow) -> list[object]:
    assert isinstance(row, OffsetRow)
    cells: list[object] = [row.group_id, row.topic, row.partition, row.offset, row.leader_epoch]
    return [*cells, time_text(row.committed_at_ms), time_text(row.expire_at_ms), row.metadata or None]


def _pending_cells(row: AnyRow) -> list[object]:
    assert isinstance(row, PendingRow)
    cells: list[object] = [row.group_id, row.topic, row.partition, row.offset]
    cells += [row.transactional_id, row.producer_id, row.producer_epoch, row.txn_position]
    return [*cells, time_text(row.requested_at_ms)]


def _timer_cells(row: AnyRow) -> list[object]:
    assert isinstance(row, TimerRow)
    return [row.group_id, row.kind, time_text(row.deadline_ms), row.member_id]


def _lock_cells(row: AnyRow) -> list[object]:
    assert isinstance(row, LockRow)
    cells: list[object] = [row.group_id, row.topic, row.broker_name, row.queue_id, row.client_id]
    return [*cells, time_text(row.last_update_ms)]


def _share_cells(row: AnyRow) -> list[object]:
    assert isinstance(row, ShareRow)
    cells: list[object] = [row.group_id, row.topic, row.partition, row.state, row.task]
    return [*cells, time_text(row.asked_at_ms), row.state_epoch, row.start_offset, row.error_code]


_GROUP = "GROUP"
_LAYOUTS = {
    Table.GROUPS: (
        (
            *(_GROUP, "PROTOCOL", "STATE", "SINCE", "GENERATION", "TARGET-EPOCH", "STRATEGY"),
            *("#MEMBERS", "#OFFSETS", "#PENDING", "#LOCKS", "LAST-EVENT", "NEXT-DEADLINE"),
        ),
        _group_cells,
    ),
    Table.MEMBERS: (
        (
            *(_GROUP, "MEMBER-ID", "INSTANCE-ID", "CLIENT-ID", "HOST", "ROLE", "WAITS-FOR", "EXPIRES"),
            *("LAST-HEARTBEAT", "EPOCH", "STATE", "ASSIGNMENT", "REVOKING", "TARGET", "SUBSCRIPTION"),
        ),
        _member_cells,
    ),
    Table.OFFSETS: (
        (_GROUP, "TOPIC", "PARTITION", "OFFSET", "LEADER-EPOCH", "COMMITTED", "EXPIRES", "METADATA"),
        _offset_cells,
    ),
    Table.PENDING: (
        (
            *(_GROUP, "TOPIC", "PARTITION", "PENDING-OFFSET", "TRANSACTIONAL-ID", "PRODUCER-ID"),
            *("EPOCH", "POSITION", "REQUESTED"),
        ),
        _pending_cells,
    ),
    Table.TIMERS: ((_GROUP, "TIMER", "DEADLINE", "MEMBER-ID"), _timer_cells),
    Table.LOCKS: (
        (_GROUP, "TOPIC", "BROKER", "QUEUE", "CLIENT-ID", "LAST-LOCKED"),
        _lock_cells,
    ),
    Table.SHARES: (
        (
            *(_GROUP, "TOPIC", "PARTITION", "STATE", "TASK", "ASKED", "STATE-EPOCH", "START-OFFSET"),
            "ERROR",
        ),
        _share_cells,
    ),
}
