"""The tables of a state on the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from kafka_why.groups.render import assignment_text
from kafka_why.wording import Column, VisibleText, render_table, visible_text
from operations.stored.rows import AnyRow, GroupRow, GroupRows, StateTable, StoredMemberRow

_LAST_S = 253_402_300_799  # the last second of the year 9999


def time_text(at_ms: int | None) -> str | None:
    """Return a time such as `2026-01-31 18:30:00.000` in UTC, or None."""
    if at_ms is None:
        return None
    if not 0 <= at_ms <= _LAST_S * 1000:
        # Outside the years 1970 to 9999.
        return str(at_ms)
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def group_text(rows: GroupRows) -> VisibleText:
    """Return the tables of one group that have rows."""
    return visible_text(_blocks(rows), "\n\n")


def _blocks(rows: GroupRows) -> Iterator[VisibleText]:
    group = rows.group
    yield table_text(StateTable.GROUPS, [group])
    remarks = []
    if group.last_rebalance_reason:
        at = time_text(group.last_rebalance_at_ms)
        remarks.append(f"Last rebalance: {at or 'unknown time'}, {group.last_rebalance_reason}")
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
        if of_table := rows.of(table):
            yield _indented(table_text(table, of_table, with_group=False))


def _indented(text: VisibleText) -> VisibleText:
    return visible_text(f"  {line}" for line in text.splitlines())


def table_text(table: StateTable, rows: Sequence[AnyRow], *, with_group: bool = True) -> VisibleText:
    """Return one table with its heading, without empty columns."""
    cells = {
        heading: [cell(row) for row in rows]
        for heading, cell in _COLUMNS[table].items()
        if with_group or heading != _GROUP
    }
    shown = {
        heading: values
        for heading, values in cells.items()
        if not rows or any(value is not None for value in values)
    }
    columns = [Column(heading, 0) for heading in shown]
    return render_table(columns, list(zip(*shown.values(), strict=True)))


def _time(field: str) -> Callable[[Any], str | None]:
    """Return a formatter of a row's field, a time in ms."""
    return lambda row: time_text(getattr(row, field))


def _assignment(field: str) -> Callable[[Any], str | None]:
    """Return a formatter of a row's field, partitions by topic."""
    return lambda row: assignment_text(getattr(row, field))


def _protocol(row: GroupRow) -> str:
    return f"{row.protocol} ({row.group_type})" if row.group_type in ("consumer", "share") else row.protocol


def _role(row: StoredMemberRow) -> str:
    return "leader" if row.is_leader else "classic member" if row.is_classic else str(row.role)


def _subscription(row: StoredMemberRow) -> str | None:
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
        "PROTOCOL": _protocol,
        "STATE": attrgetter("state"),
        "SINCE": _time("state_since_ms"),
        "GENERATION": attrgetter("generation"),
        "TARGET-EPOCH": attrgetter("assignment_epoch"),
        "STRATEGY": lambda row: row.protocol_name or row.message_model,
        "#MEMBERS": attrgetter("members"),
        "#OFFSETS": attrgetter("offsets"),
        "#PENDING": lambda row: row.pending or None,
        "#LOCKS": attrgetter("locks"),
        "LAST-EVENT": _time("clock_ms"),
        "NEXT-DEADLINE": _time("next_deadline_ms"),
    },
    StateTable.MEMBERS: {
        _GROUP: attrgetter("group_id"),
        "MEMBER-ID": attrgetter("member_id"),
        "INSTANCE-ID": attrgetter("group_instance_id"),
        "CLIENT-ID": attrgetter("client_id"),
        "HOST": attrgetter("client_host"),
        "ROLE": _role,
        "WAITS-FOR": attrgetter("waits_for"),
        "EXPIRES": _time("deadline_ms"),
        "LAST-HEARTBEAT": _time("last_update_ms"),
        "EPOCH": attrgetter("member_epoch"),
        "STATE": attrgetter("member_state"),
        "ASSIGNMENT": _assignment("assignment"),
        "REVOKING": _assignment("revoking"),
        "TARGET": _assignment("target"),
        "SUBSCRIPTION": _subscription,
    },
    StateTable.OFFSETS: {
        **_TOPIC_PARTITION,
        "OFFSET": attrgetter("offset"),
        "LEADER-EPOCH": attrgetter("leader_epoch"),
        "COMMITTED": _time("committed_at_ms"),
        "EXPIRES": _time("expire_at_ms"),
        "METADATA": lambda row: row.metadata or None,
    },
    StateTable.PENDING: {
        **_TOPIC_PARTITION,
        "PENDING-OFFSET": attrgetter("offset"),
        "TRANSACTIONAL-ID": attrgetter("transactional_id"),
        "PRODUCER-ID": attrgetter("producer_id"),
        "EPOCH": attrgetter("producer_epoch"),
        "POSITION": attrgetter("txn_position"),
        "REQUESTED": _time("requested_at_ms"),
    },
    StateTable.TIMERS: {
        _GROUP: attrgetter("group_id"),
        "TIMER": attrgetter("kind"),
        "DEADLINE": _time("deadline_ms"),
        "MEMBER-ID": attrgetter("member_id"),
    },
    StateTable.LOCKS: {
        _GROUP: attrgetter("group_id"),
        "TOPIC": attrgetter("topic"),
        "BROKER": attrgetter("broker_name"),
        "QUEUE": attrgetter("queue_id"),
        "CLIENT-ID": attrgetter("client_id"),
        "LAST-LOCKED": _time("last_update_ms"),
    },
    StateTable.SHARES: {
        **_TOPIC_PARTITION,
        "STATE": attrgetter("state"),
        "TASK": attrgetter("task"),
        "ASKED": _time("asked_at_ms"),
        "STATE-EPOCH": attrgetter("state_epoch"),
        "START-OFFSET": attrgetter("start_offset"),
        "ERROR": attrgetter("error_code"),
    },
}
"""The columns of each table: their headings, and the cell that each makes of a row."""
