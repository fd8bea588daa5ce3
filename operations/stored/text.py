"""The tables of a state on the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from kafka_why.groups.render import assignment_text
from kafka_why.wording import Column, VisibleText, render_table, visible_text
from operations.stored.rows import AnyRow, GroupRow, GroupRows, StateTable, StoredMemberRow

_MAX_TIME_S = 253_402_300_799  # the last second of the year 9999


def time_text(at_ms: int | None) -> str | None:
    """Return a time such as `2026-01-31 18:30:00.000` in UTC, or None for None.

    A time outside the years 1970 to 9999 stays a number.
    """
    if at_ms is None:
        return None
    if not 0 <= at_ms <= _MAX_TIME_S * 1000:
        return str(at_ms)
    # Cut the microseconds to milliseconds.
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def group_text(rows: GroupRows) -> VisibleText:
    """Return the tables of one group, except empty ones."""
    return visible_text(_tables_and_remarks(rows), "\n\n")


def _tables_and_remarks(rows: GroupRows) -> Iterator[VisibleText]:
    """Yield the group's own table, and indented the remarks and the other tables."""
    group = rows.group
    yield table_text(StateTable.GROUPS, [group])
    remarks = []
    if group.last_rebalance_reason:
        time = time_text(group.last_rebalance_at_ms) or "unknown time"
        remarks.append(f"Last rebalance: {time}, {group.last_rebalance_reason}")
    if group.quarantined is not None:
        remarks.append(f"Warning: group '{group.group_id}' is quarantined: {group.quarantined}")
    if remarks:
        yield _indented(visible_text(remarks))
    for table in (
        StateTable.MEMBERS,
        StateTable.OFFSETS,
        StateTable.PENDING,
        StateTable.SHARES,
        StateTable.TIMERS,
        StateTable.LOCKS,
    ):
        if table_rows := rows.of(table):
            yield _indented(table_text(table, table_rows, with_group=False))


def _indented(text: VisibleText) -> VisibleText:
    return visible_text(f"  {line}" for line in text.splitlines())


def table_text(table: StateTable, rows: Sequence[AnyRow], *, with_group: bool = True) -> VisibleText:
    """Return one table with its heading. Columns without a value are left out, unless there are no rows."""
    cells = {
        heading: [cell(row) for row in rows]
        for heading, cell in _COLUMNS[table].items()
        if with_group or heading != _GROUP
    }
    not_empty = {
        heading: values
        for heading, values in cells.items()
        if not rows or any(value is not None for value in values)
    }
    table_rows = list(zip(*not_empty.values(), strict=True))
    return render_table([Column(heading, 0) for heading in not_empty], table_rows)


def _time_cell(field: str) -> Callable[[Any], str | None]:
    """Return a function that formats a field of a row that has a time in ms."""
    return lambda row: time_text(getattr(row, field))


def _assignment_cell(field: str) -> Callable[[Any], str | None]:
    """Return a function that formats a field of a row that has partitions by topic."""
    return lambda row: assignment_text(getattr(row, field))


def _protocol_cell(row: GroupRow) -> str:
    return f"{row.protocol} ({row.group_type})" if row.group_type in ("consumer", "share") else row.protocol


def _role_cell(row: StoredMemberRow) -> str:
    return "leader" if row.is_leader else "classic member" if row.is_classic else str(row.role)


def _subscription_cell(row: StoredMemberRow) -> str | None:
    patterns = [f"/{row.subscribed_pattern}/"] if row.subscribed_pattern else []
    return ",".join([*(row.subscribed_topics or ()), *patterns]) or None


_GROUP = "GROUP"
_TOPIC_PARTITION = {
    _GROUP: attrgetter("group_id"),
    "TOPIC": attrgetter("topic"),
    "PARTITION": attrgetter("partition"),
}
_COLUMNS: Mapping[StateTable, Mapping[str, Callable[[Any], object]]] = {
    StateTable.GROUPS: {
        _GROUP: attrgetter("group_id"),
        "PROTOCOL": _protocol_cell,
        "STATE": attrgetter("state"),
        "SINCE": _time_cell("state_since_ms"),
        "GENERATION": attrgetter("generation"),
        "TARGET-EPOCH": attrgetter("assignment_epoch"),
        "STRATEGY": lambda row: row.protocol_name or row.message_model,
        "#MEMBERS": attrgetter("members"),
        "#OFFSETS": attrgetter("offsets"),
        "#PENDING": lambda row: row.pending or None,
        "#LOCKS": attrgetter("locks"),
        "LAST-EVENT": _time_cell("clock_ms"),
        "NEXT-DEADLINE": _time_cell("next_deadline_ms"),
    },
    StateTable.MEMBERS: {
        _GROUP: attrgetter("group_id"),
        "MEMBER-ID": attrgetter("member_id"),
        "INSTANCE-ID": attrgetter("group_instance_id"),
        "CLIENT-ID": attrgetter("client_id"),
        "HOST": attrgetter("client_host"),
        "ROLE": _role_cell,
        "WAITS-FOR": attrgetter("waits_for"),
        "EXPIRES": _time_cell("deadline_ms"),
        "LAST-HEARTBEAT": _time_cell("last_update_ms"),
        "EPOCH": attrgetter("member_epoch"),
        "STATE": attrgetter("member_state"),
        "ASSIGNMENT": _assignment_cell("assignment"),
        "REVOKING": _assignment_cell("revoking"),
        "TARGET": _assignment_cell("target"),
        "SUBSCRIPTION": _subscription_cell,
    },
    StateTable.OFFSETS: {
        **_TOPIC_PARTITION,
        "OFFSET": attrgetter("offset"),
        "LEADER-EPOCH": attrgetter("leader_epoch"),
        "COMMITTED": _time_cell("committed_at_ms"),
        "EXPIRES": _time_cell("expire_at_ms"),
        "METADATA": lambda row: row.metadata or None,
    },
    StateTable.PENDING: {
        **_TOPIC_PARTITION,
        "PENDING-OFFSET": attrgetter("offset"),
        "TRANSACTIONAL-ID": attrgetter("transactional_id"),
        "PRODUCER-ID": attrgetter("producer_id"),
        "EPOCH": attrgetter("producer_epoch"),
        "POSITION": attrgetter("txn_position"),
        "REQUESTED": _time_cell("requested_at_ms"),
    },
    StateTable.TIMERS: {
        _GROUP: attrgetter("group_id"),
        "TIMER": attrgetter("kind"),
        "DEADLINE": _time_cell("deadline_ms"),
        "MEMBER-ID": attrgetter("member_id"),
    },
    StateTable.LOCKS: {
        _GROUP: attrgetter("group_id"),
        "TOPIC": attrgetter("topic"),
        "BROKER": attrgetter("broker_name"),
        "QUEUE": attrgetter("queue_id"),
        "CLIENT-ID": attrgetter("client_id"),
        "LAST-LOCKED": _time_cell("last_update_ms"),
    },
    StateTable.SHARES: {
        **_TOPIC_PARTITION,
        "STATE": attrgetter("state"),
        "TASK": attrgetter("task"),
        "ASKED": _time_cell("asked_at_ms"),
        "STATE-EPOCH": attrgetter("state_epoch"),
        "START-OFFSET": attrgetter("start_offset"),
        "ERROR": attrgetter("error_code"),
    },
}
"""The columns of each table: the heading, and the function that returns the cell of a row."""
