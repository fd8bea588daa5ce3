"""Reads brokers' log files: the events about one group, or a count of the rebalances of every group.

Each file is read once, from beginning to end. Only a group's last MAX_EVENTS events are retained.
"""

import gzip
import io
import os
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct, structs

from kafka_why.broker_log.events import LogEvent, events_in
from kafka_why.broker_log.group import OF_MEMBERS, entries_of
from kafka_why.broker_log.lines import MARK, MAX_LINE_BYTES, LogLine, parse_line
from kafka_why.broker_log.merge import merge
from kafka_why.contract.kafka.history import BY_EPOCHS, EntryType, HistoryEntry
from kafka_why.why.causes import BY_RULE, kind_of, kind_of_member
from kafka_why.why.history import History, HistoryUnavailable, similar_groups
from kafka_why.why.model import CauseKind
from kafka_why.why.report import OBSERVED, Report
from kafka_why.why.segments import MISSING, by_incarnation
from kafka_why.wording import Clock, Column, VisibleText, count, render_table

if TYPE_CHECKING:  # the module imports Kafka clients, which logs do not need
    from kafka_why.stored_log import Progress

STANDARD_INPUT = "-"
MAX_EVENTS = 200_000
MAX_GROUPS = 100_000
_PROGRESS_LINES = 20_000
_GZIP = b"\x1f\x8b"
# A target assignment implies a new epoch, even if the broker has logged no line about the epoch.
_FOLLOWS = (EntryType.TARGET_ASSIGNMENT_COMPUTED,)
_BEGINS = (EntryType.PREPARING_REBALANCE, EntryType.GROUP_EPOCH_BUMPED)


class LoggedGroup(Struct, kw_only=True):
    """A group in the logs."""

    group_id: str
    rebalances: int  # their number
    first_ms: int
    last_ms: int
    causes: dict[CauseKind, int]  # number of rebalances by kind of cause


@dataclass(slots=True)
class BrokerLogs:
    """The content of the files."""

    lines: int = 0
    skipped: int = 0  # a coordinator's lines that cannot be parsed or have no time
    brokers: set[int] = field(default_factory=set)
    is_zone_assumed: bool = False
    broken: list[tuple[str, str]] = field(default_factory=list)  # files that end early, with the error
    events: list[LogEvent] = field(default_factory=list)
    dropped: int = 0
    groups: dict[str, LoggedGroup] = field(default_factory=dict)

    def notes(self, files: Sequence[str], zone: tzinfo | None) -> list[str]:
        """Return notes on what was read, and on what may be missing or inexact."""
        of = "" if not self.brokers else f" of broker {', '.join(map(str, sorted(self.brokers)))}"
        found = [f"read from {', '.join(map(_file_label, files))}: {self.lines:,} lines{of}"]
        if self.skipped:
            found.append(
                f"{count(self.skipped, 'line')} of group coordinators cannot be parsed and were skipped"
            )
        found += [f"{label} ends early: {why}" for label, why in self.broken]
        if self.dropped:
            found.append(f"the first {self.dropped:,} lines about the group are left out")
        if self.is_zone_assumed:
            whose = f"this machine's, {datetime.now().astimezone().tzname()}" if zone is None else str(zone)
            found.append(f"times in the log have no time zone: assumed to be {whose} (--log-timezone)")
        return found


def parse_zone(text: str) -> tzinfo:
    """Parse `Europe/Berlin`, `UTC` or `+02:00`. Raises ValueError."""
    if text[:1] in ("+", "-"):
        offset = datetime.fromisoformat(f"2000-01-01T00:00{text}").utcoffset()
        return timezone(offset or timedelta())
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"{text!r} is not a time zone") from error


def read_broker_logs(
    files: Sequence[str],
    group_id: str | None,
    zone: tzinfo | None,
    progress: "Progress" = lambda *_: None,
) -> BrokerLogs:
    """Return the events about a group in order of time, or the counts of all groups for None.

    `files` may be gzipped, and `-` is standard input. Times without a zone are in `zone`, or for None in this
    machine's. `progress` is called with numbers of bytes. Raises OSError if a file cannot be opened.
    """
    reader = _LogFileReader(group_id, zone, progress)
    for name in dict.fromkeys(files):
        reader.read(name)
    return reader.finish()


@contextmanager
def _opened(name: str) -> Iterator[io.BufferedReader]:
    if name == STANDARD_INPUT:
        with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
            yield stream
    else:
        with Path(name).open("rb") as stream:
            yield stream


def _lines(stream: io.BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines, each cut at MAX_LINE_BYTES."""
    while line := stream.readline(MAX_LINE_BYTES):
        rest = line
        while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)
        yield line


class _LogFileReader:
    """A reader of log files. Without `group_id`, it counts the rebalances of all groups."""

    def __init__(self, group_id: str | None, zone: tzinfo | None, progress: "Progress") -> None:
        self._group_id, self._zone, self._progress = group_id, zone, progress
        self._found = BrokerLogs()
        self._events: deque[LogEvent] = deque(maxlen=MAX_EVENTS)
        self._last_change: dict[str, LogEvent] = {}

    def read(self, name: str) -> None:
        """Read one file."""
        label = _file_label(name)
        with _opened(name) as stream:
            size = os.fstat(stream.fileno()).st_size
            is_packed = stream.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
            try:
                for number, line in enumerate(
                    _lines(gzip.GzipFile(fileobj=stream) if is_packed else stream), 1
                ):
                    self._found.lines += 1
                    if MARK in line:
                        self._add_line(line, f"{label}:{number}")
                    if size and number % _PROGRESS_LINES == 0:
                        self._progress(stream.tell(), size)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                self._found.broken.append((label, str(error)))

    def _add_line(self, raw: bytes, place: str) -> None:
        line = parse_line(raw, self._to_ms)
        if line is None:
            self._found.skipped += 1
            return
        self._found.brokers.add(line.broker)
        events = list(events_in(line.message))
        if events and line.at_ms is None:
            self._found.skipped += 1
            return
        for event in events:
            self._add(event, line, place)

    def _add(self, event: LogEvent, line: LogLine, place: str) -> None:
        assert line.at_ms is not None
        self._found.is_zone_assumed |= not line.has_zone
        if self._group_id is None:
            self._count(event, line.at_ms)
        elif event.group_id == self._group_id:
            self._found.dropped += len(self._events) == MAX_EVENTS
            self._events.append(structs.replace(event, at_ms=line.at_ms, place=place))
        elif event.group_id not in self._found.groups and len(self._found.groups) < MAX_GROUPS:
            self._found.groups[event.group_id] = _new_group(event.group_id, line.at_ms)

    def _count(self, event: LogEvent, at_ms: int) -> None:
        groups = self._found.groups
        group = groups.get(event.group_id)
        if group is None:
            if len(groups) == MAX_GROUPS:
                self._found.skipped += 1
                return
            group = groups[event.group_id] = _new_group(event.group_id, at_ms)
        group.first_ms, group.last_ms = min(group.first_ms, at_ms), max(group.last_ms, at_ms)
        before = self._last_change.get(event.group_id)
        if event.type in OF_MEMBERS:
            # A new member's first subscription is logged like a changed one.
            if before is None or event.type is not EntryType.MEMBER_REJOINED:
                self._last_change[event.group_id] = event
        elif event.type in _BEGINS or (event.type in _FOLLOWS and before is not None):
            group.rebalances += 1
            kind = _kind(event, self._last_change.pop(event.group_id, None))
            group.causes[kind] = group.causes.get(kind, 0) + 1

    def _to_ms(self, at: datetime) -> int:
        return int((at if self._zone is None else at.replace(tzinfo=self._zone)).timestamp() * 1000)

    def finish(self) -> BrokerLogs:
        """Return the content, with events in order of time."""
        unique: dict[tuple[int, str, str | None, str], LogEvent] = {}
        for event in self._events:
            # A line that is in two files is one event.
            unique.setdefault((event.at_ms, event.reason, event.member_id, event.type), event)
        self._found.events = sorted(unique.values(), key=lambda event: event.at_ms)
        return self._found


def _new_group(group_id: str, at_ms: int) -> LoggedGroup:
    return LoggedGroup(group_id=group_id, rebalances=0, first_ms=at_ms, last_ms=at_ms, causes={})


def _kind(event: LogEvent, before: LogEvent | None) -> CauseKind:
    """Return the kind of cause of the rebalance that begins with `event`.

    `before` is the last event about a member, the cause of a new epoch.
    """
    if event.type is not EntryType.PREPARING_REBALANCE:
        return CauseKind.UNKNOWN if before is None else kind_of_member(before.type, before.rule)
    if not event.causes:
        return BY_RULE.get(event.rule, CauseKind.UNKNOWN)
    return kind_of(event.causes[0].type, event.causes[0].rule) or CauseKind.UNKNOWN


def _file_label(file: str) -> str:
    return "standard input" if file == STANDARD_INPUT else Path(file).name


MAX_CAUSES = 3
_ALONE = "the broker log has reasons, times and generations, but not which member holds which partition"
_NO_ENDS = (
    "the log does not show when members reach a target assignment: each new epoch is shown as a rebalance, "
    "without its end"
)
_COLUMNS = (Column("GROUP", 30), Column("REBALANCES", 10), Column("LAST", 23), Column("CAUSES", 0))


def history_from_logs(logs: BrokerLogs, group_id: str, notes: Sequence[str]) -> History:
    """Return a group's history from the logs alone. `notes` are on the files.

    Raises HistoryUnavailable if no line is about a rebalance of the group.
    """
    entries, unnamed = entries_of(logs.events)
    if not entries:
        near = similar_groups(group_id, logs.groups.keys())
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        raise HistoryUnavailable(f"no line about a rebalance of group {group_id}: {'; '.join(notes)}{meant}")
    all_notes = [_ALONE, *notes]
    if any(gap.missing for gap in by_incarnation(entries)) and entries[-1].group_type in BY_EPOCHS:
        all_notes.insert(1, _NO_ENDS)
    return History(
        [*entries],
        frozenset(),
        from_start=False,
        records_read=logs.lines,
        notes=all_notes,
        unnamed=unnamed or 0,
    )


def history_with_logs(history: History, logs: BrokerLogs, notes: Sequence[str]) -> History:
    """Add the logs to a group's `history` from records. `notes` are on the files."""
    recorded = [entry for life in by_incarnation(history.entries) for entry in life.entries]
    observed = [entry for entry in recorded if isinstance(entry, HistoryEntry) and entry.observed]
    if len(observed) < len(recorded):
        note = "the broker log is ignored: this project's coordinator has the group's complete history"
        return replace(history, notes=[*history.notes, note])
    logged, _ = entries_of(logs.events)
    merged = merge(observed, logged)
    all_notes = [*notes, *(merged.notes if logged else ["the broker log has no line about the group"])]
    return replace(history, entries=[*merged.entries], unread=frozenset(), notes=[*history.notes, *all_notes])


def report_from_logs(report: Report, unnamed: int) -> Report:
    """Return the report without what does not follow from logs alone: moves, idle times, some notes."""
    found = [structs.replace(rebalance, moves=None, idle=None) for rebalance in report.rebalances]
    notes = [note for note in report.notes if not note.startswith((MISSING, OBSERVED))]
    return structs.replace(report, rebalances=found, notes=notes, unnamed=unnamed)


def groups_since(logs: BrokerLogs, since_ms: int | None) -> list[LoggedGroup]:
    """Return the groups with a line since `since_ms`, in the order of their rebalances."""
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
