"""A group's history from brokers' logs, alone or with the records of the group."""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from kafka_why.broker_log.group import entries_of
from kafka_why.broker_log.merge import merge
from kafka_why.contract.kafka.history import BY_EPOCHS, HistoryEntry
from kafka_why.escaping import VisibleText
from kafka_why.groups.tables import Column, render_table
from kafka_why.why.broker_logs import BrokerLogs, LoggedGroup
from kafka_why.why.history import History, HistoryUnavailable, near_names
from kafka_why.why.incarnations import MISSING, by_incarnation
from kafka_why.why.report import OBSERVED, Report
from kafka_why.why.wording import Clock

MAX_CAUSES = 3
_ALONE = "the broker log has reasons, times and generations, but not who holds which partition"
_NO_ENDS = (
    "the log does not show when members reach a target assignment: each new epoch is shown as a rebalance, "
    "without its end"
)
_COLUMNS = (Column("GROUP", 30), Column("REBALANCES", 10), Column("LAST", 23), Column("CAUSES", 0))


def alone(logs: BrokerLogs, group_id: str, notes: Sequence[str]) -> History:
    """Return what the logs say of a group. `notes` are those of the files.

    Raises HistoryUnavailable if they say nothing of it.
    """
    entries, unnamed = entries_of(logs.events)
    if not entries:
        near = near_names(group_id, logs.groups.keys())
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        raise HistoryUnavailable(f"no line about a rebalance of group {group_id}: {'; '.join(notes)}{meant}")
    said = [_ALONE, *notes]
    if any(gap.missing for gap in by_incarnation(entries)) and entries[-1].group_type in BY_EPOCHS:
        said.insert(1, _NO_ENDS)
    return History(
        [*entries], frozenset(), from_start=False, records_read=logs.lines, notes=said, unnamed=unnamed or 0
    )


def with_records(history: History, logs: BrokerLogs, notes: Sequence[str]) -> History:
    """Return what the records of a group and the logs say together. `notes` are those of the files."""
    recorded = [entry for life in by_incarnation(history.entries) for entry in life.entries]
    kafkas = [entry for entry in recorded if isinstance(entry, HistoryEntry) and entry.observed]
    if len(kafkas) < len(recorded):
        ours = (
            "the broker log is left out: the group has a coordinator of this project, whose history has all"
        )
        return replace(history, notes=[*history.notes, ours])
    logged, _ = entries_of(logs.events)
    merged = merge(kafkas, logged)
    said = [*notes, *(merged.notes if logged else ["the broker log has no line about the group"])]
    return replace(history, entries=[*merged.entries], unread=frozenset(), notes=[*history.notes, *said])


def of_logs(report: Report, unnamed: int) -> Report:
    """Return the report on a history from logs alone, in which assignments and some lines are missing."""
    found = [structs.replace(rebalance, moves=None, idle=None) for rebalance in report.rebalances]
    notes = [note for note in report.notes if not note.startswith((MISSING, OBSERVED))]
    return structs.replace(report, rebalances=found, notes=notes, unnamed=unnamed)


def listed_groups(logs: BrokerLogs, since_ms: int | None) -> list[LoggedGroup]:
    """Return the groups with a line since then, those with the most rebalances first."""
    found = [group for group in logs.groups.values() if since_ms is None or group.last_ms >= since_ms]
    return sorted(found, key=lambda group: (-group.rebalances, group.group_id))


def groups_text(groups: Sequence[LoggedGroup], clock: Clock) -> VisibleText:
    """Return a table of the groups with their most frequent causes."""
    rows = [(group.group_id, group.rebalances, clock.time(group.last_ms), _causes(group)) for group in groups]
    return render_table(_COLUMNS, rows)


def _causes(group: LoggedGroup) -> str:
    causes = sorted(group.causes.items(), key=lambda cause: -cause[1])
    more = f", {len(causes) - MAX_CAUSES} more" if len(causes) > MAX_CAUSES else ""
    return ", ".join(f"{number} x {kind}" for kind, number in causes[:MAX_CAUSES]) + more
