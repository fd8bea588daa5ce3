"""Reads brokers' log files: the events about one group, or a count of the rebalances of every group.

Each file is read once, from beginning to end. Only a group's last MAX_EVENTS events are retained.
"""

import gzip
import io
import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct, structs

from kafka_why.broker_log.events import LogEvent, events_in
from kafka_why.broker_log.group import OF_MEMBERS, entries_of
from kafka_why.broker_log.lines import MARK, MAX_LINE_BYTES, LogLine, parse_line
from kafka_why.broker_log.merge import merge
from kafka_why.contract.kafka.history import BY_EPOCHS, EntryType, HistoryEntry
from kafka_why.why.causes import BY_RULE, kind_of, kind_of_member
from kafka_why.why.history import History, HistoryUnavailable, did_you_mean
from kafka_why.why.model import CauseKind
from kafka_why.why.report import OBSERVED, Report
from kafka_why.why.segments import MISSING, by_incarnation
from kafka_why.wording import Clock, Column, VisibleText, count, render_table

STANDARD_INPUT = "-"
MAX_EVENTS = 200_000
MAX_GROUPS = 100_000
_PROGRESS_LINES = 20_000  # between two calls of `progress`
_GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
_BEGINS = (EntryType.PREPARING_REBALANCE, EntryType.GROUP_EPOCH_BUMPED)


class LoggedGroup(Struct, kw_only=True):
    """A group in the logs."""

    group_id: str
    rebalances: int = 0  # their number
    first_ms: int  # time of the first line about the group
    last_ms: int  # time of the last line about the group
    causes: dict[CauseKind, int] = {}  # number of rebalances by kind of cause


@dataclass(slots=True)
class BrokerLogs:
    """The content of the files, about one group or about all."""

    lines: int = 0  # number of all lines
    skipped: int = 0  # number of a coordinator's lines that cannot be parsed or have no time
    brokers: set[int] = field(default_factory=set)  # ids of the brokers that wrote the lines
    is_zone_assumed: bool = False  # True if a time names no zone
    broken: list[tuple[str, str]] = field(default_factory=list)  # files that end early, with the error
    events: list[LogEvent] = field(default_factory=list)  # of the one group
    dropped: int = 0  # number of the group's events before the last MAX_EVENTS
    groups: dict[str, LoggedGroup] = field(default_factory=dict)  # all groups, or all but the one, by id

    def notes(self, files: Sequence[str], zone: tzinfo | None) -> list[str]:
        """Return notes on what was read, and on what may be missing or inexact."""
        of_brokers = f" of broker {', '.join(map(str, sorted(self.brokers)))}" if self.brokers else ""
        notes = [f"read from {', '.join(map(_file_label, files))}: {self.lines:,} lines{of_brokers}"]
        if self.skipped:
            notes.append(
                f"{count(self.skipped, 'line')} of group coordinators cannot be parsed and were skipped"
            )
        notes += [f"{label} ends early: {why}" for label, why in self.broken]
        if self.dropped:
            notes.append(f"the first {self.dropped:,} lines about the group are left out")
        if self.is_zone_assumed:
            zone_text = (
                f"this machine's, {datetime.now().astimezone().tzname()}" if zone is None else str(zone)
            )
            notes.append(f"times in the log have no time zone: assumed to be {zone_text} (--log-timezone)")
        return notes


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
    progress: Callable[[int, int], None] = lambda *_: None,
) -> BrokerLogs:
    """Return the events about a group in order of time or, if `group_id` is None, the counts of all groups.

    `files` may be gzipped, and `-` is standard input. A time without a zone is in `zone` or, if that is None,
    in this machine's zone. `progress` is called with the bytes read and the size of the file. Raises OSError
    if a file cannot be opened.
    """
    reader = _LogFileReader(group_id, zone, progress)
    for name in dict.fromkeys(files):
        reader.read(name)
    return reader.finish()


def _open_log(name: str) -> io.BufferedReader:
    return open(sys.stdin.fileno(), "rb", closefd=False) if name == STANDARD_INPUT else Path(name).open("rb")


def _lines(stream: io.BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines, each cut at MAX_LINE_BYTES."""
    while line := stream.readline(MAX_LINE_BYTES):
        part = line
        while len(part) == MAX_LINE_BYTES and not part.endswith(b"\n"):
            part = stream.readline(MAX_LINE_BYTES)  # skip the rest of the line
        yield line


class _LogFileReader:
    """A reader of log files. Without `group_id`, it counts the rebalances of all groups."""

    def __init__(
        self, group_id: str | None, zone: tzinfo | None, progress: Callable[[int, int], None]
    ) -> None:
        self._group_id, self._zone, self._progress = group_id, zone, progress
        self._logs = BrokerLogs()
        self._events: deque[LogEvent] = deque(maxlen=MAX_EVENTS)
        # By group id, the last event about a member since the last rebalance began.
        self._last_member_event: dict[str, LogEvent] = {}

    def read(self, name: str) -> None:
        """Read one file."""
        label = _file_label(name)
        with _open_log(name) as stream:
            size = os.fstat(stream.fileno()).st_size
            is_gzip = stream.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
            try:
                lines = _lines(gzip.GzipFile(fileobj=stream) if is_gzip else stream)
                for number, line in enumerate(lines, 1):
                    self._logs.lines += 1
                    if MARK in line:
                        self._add_line(line, f"{label}:{number}")
                    if size and number % _PROGRESS_LINES == 0:
                        self._progress(stream.tell(), size)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                self._logs.broken.append((label, str(error)))

    def _add_line(self, raw: bytes, place: str) -> None:
        """Add the events in a coordinator's line. `place` is its file and line number."""
        line = parse_line(raw, self._to_ms)
        if line is None:
            self._logs.skipped += 1
            return
        self._logs.brokers.add(line.broker)
        events = list(events_in(line.message))
        if events and line.at_ms is None:
            self._logs.skipped += 1
            return
        for event in events:
            self._add(event, line, place)

    def _add(self, event: LogEvent, line: LogLine, place: str) -> None:
        assert line.at_ms is not None
        self._logs.is_zone_assumed |= not line.has_zone
        if self._group_id is None:
            self._count(event, line.at_ms)
        elif event.group_id == self._group_id:
            self._logs.dropped += len(self._events) == MAX_EVENTS  # the deque drops its first event
            self._events.append(structs.replace(event, at_ms=line.at_ms, place=place))
        # Other groups' ids, to suggest one if no line is about the group.
        elif event.group_id not in self._logs.groups and len(self._logs.groups) < MAX_GROUPS:
            self._logs.groups[event.group_id] = LoggedGroup(
                group_id=event.group_id, first_ms=line.at_ms, last_ms=line.at_ms
            )

    def _count(self, event: LogEvent, at_ms: int) -> None:
        """Count the rebalance that begins with an event, or note a member's change as its possible cause."""
        groups = self._logs.groups
        group = groups.get(event.group_id)
        if group is None:
            if len(groups) == MAX_GROUPS:
                self._logs.skipped += 1
                return
            group = LoggedGroup(group_id=event.group_id, first_ms=at_ms, last_ms=at_ms)
            groups[event.group_id] = group
        group.first_ms, group.last_ms = min(group.first_ms, at_ms), max(group.last_ms, at_ms)
        last_member_event = self._last_member_event.get(event.group_id)
        if event.type in OF_MEMBERS:
            # A new member's first subscription is logged like a changed one, which does not hide the join.
            if last_member_event is None or event.type is not EntryType.MEMBER_REJOINED:
                self._last_member_event[event.group_id] = event
        elif event.type in _BEGINS or (
            # A target assignment implies a new epoch, even if the broker has logged no line about the epoch.
            event.type is EntryType.TARGET_ASSIGNMENT_COMPUTED and last_member_event is not None
        ):
            group.rebalances += 1
            kind = _cause_kind(event, self._last_member_event.pop(event.group_id, None))
            group.causes[kind] = group.causes.get(kind, 0) + 1

    def _to_ms(self, at: datetime) -> int:
        return int((at if self._zone is None else at.replace(tzinfo=self._zone)).timestamp() * 1000)

    def finish(self) -> BrokerLogs:
        """Return the content, with events in order of time."""
        unique: dict[tuple[int, str, str | None, str], LogEvent] = {}
        for event in self._events:
            # A line that is in two files is one event.
            unique.setdefault((event.at_ms, event.reason, event.member_id, event.type), event)
        self._logs.events = sorted(unique.values(), key=lambda event: event.at_ms)
        return self._logs


def _cause_kind(event: LogEvent, member_event: LogEvent | None) -> CauseKind:
    """Return the kind of cause of the rebalance that begins with `event`.

    `member_event` is the last event about a member, if any. It is the cause of a new epoch, whose own line
    names no cause.
    """
    if event.type is not EntryType.PREPARING_REBALANCE:
        if member_event is None:
            return CauseKind.UNKNOWN
        return kind_of_member(member_event.type, member_event.rule)
    if not event.causes:
        return BY_RULE.get(event.rule, CauseKind.UNKNOWN)
    return kind_of(event.causes[0].type, event.causes[0].rule) or CauseKind.UNKNOWN


def _file_label(file: str) -> str:
    return "standard input" if file == STANDARD_INPUT else Path(file).name


MAX_CAUSES = 3
# Notes on a history from brokers' logs alone.
_ALONE = "the broker log has reasons, times and generations, but not which member holds which partition"
_NO_ENDS = (
    "the log does not show when members reach a target assignment: each new epoch is shown as a rebalance, "
    "without its end"
)
_COLUMNS = (Column("GROUP", 30), Column("REBALANCES", 10), Column("LAST", 23), Column("CAUSES", 0))


def history_from_logs(logs: BrokerLogs, group_id: str, notes: Sequence[str]) -> History:
    """Return a group's history from the logs alone. `notes` are notes on the files.

    Raises HistoryUnavailable if no line is about a rebalance of the group.
    """
    entries, unnamed = entries_of(logs.events)
    if not entries:
        question = did_you_mean(group_id, logs.groups.keys())
        raise HistoryUnavailable(
            f"no line about a rebalance of group {group_id}: {'; '.join(notes)}{question}"
        )
    all_notes = [_ALONE, *notes]
    if any(life.missing for life in by_incarnation(entries)) and entries[-1].group_type in BY_EPOCHS:
        all_notes.insert(1, _NO_ENDS)
    return History(
        [*entries],
        unread=frozenset(),
        from_start=False,
        records_read=logs.lines,
        notes=all_notes,
        unnamed=unnamed or 0,
    )


def history_with_logs(history: History, logs: BrokerLogs, notes: Sequence[str]) -> History:
    """Add the logs to a group's `history` from records. `notes` are notes on the files.

    The logs are ignored if the history is from this project's coordinator.
    """
    entries = [entry for life in by_incarnation(history.entries) for entry in life.entries]
    observed = [entry for entry in entries if isinstance(entry, HistoryEntry) and entry.observed]
    if len(observed) < len(entries):
        note = "the broker log is ignored: this project's coordinator has the group's complete history"
        return replace(history, notes=[*history.notes, note])
    logged, _ = entries_of(logs.events)
    merged = merge(observed, logged)
    all_notes = [*notes, *(merged.notes if logged else ["the broker log has no line about the group"])]
    return replace(history, entries=[*merged.entries], unread=frozenset(), notes=[*history.notes, *all_notes])


def report_from_logs(report: Report, unnamed: int) -> Report:
    """Return the report without moves and idle times, which brokers' logs alone do not show.

    Also remove the notes on gaps and on observation, in place of which `history_from_logs` has its own.
    `unnamed` is the number of members that the logs do not name.
    """
    rebalances = [structs.replace(rebalance, moves=None, idle=None) for rebalance in report.rebalances]
    notes = [note for note in report.notes if not note.startswith((MISSING, OBSERVED))]
    return structs.replace(report, rebalances=rebalances, notes=notes, unnamed=unnamed)


def groups_since(logs: BrokerLogs, since_ms: int | None) -> list[LoggedGroup]:
    """Return the groups with a line since `since_ms`, those with the most rebalances first."""
    groups = [group for group in logs.groups.values() if since_ms is None or group.last_ms >= since_ms]
    return sorted(groups, key=lambda group: (-group.rebalances, group.group_id))


def groups_text(groups: Sequence[LoggedGroup], clock: Clock) -> VisibleText:
    """Return a table of the groups with their most frequent causes."""
    rows = [
        (group.group_id, group.rebalances, clock.time(group.last_ms), _causes_text(group)) for group in groups
    ]
    return render_table(_COLUMNS, rows)


def _causes_text(group: LoggedGroup) -> str:
    causes = sorted(group.causes.items(), key=lambda cause: -cause[1])
    more = f", {len(causes) - MAX_CAUSES} more" if len(causes) > MAX_CAUSES else ""
    return ", ".join(f"{number} x {kind}" for kind, number in causes[:MAX_CAUSES]) + more
