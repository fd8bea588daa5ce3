"""The verdict on a recording, and its text: the outcome, what was compared, and the first differences in
full.
"""

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from msgspec import Struct

from checkpoints.checkpoint import OUTAGES_KEPT
from kafka_why.wording import INDENT, Lines, VisibleText, columns, count, visible_text
from operations.replay.recording import RecordingHeader
from operations.replay.topic_contents import RecordKind, ReplayStart


class DifferenceKind(StrEnum):
    """The kinds of differences between the topics and the replay."""

    MISSING = "missing: the replay produces it, but it is not on the topics"
    UNEXPECTED = "unexpected: it is on the topics, but the replay does not produce it"
    CHANGED = "changed: its bytes differ from those that the replay produces"
    TWICE = "twice: the topics have two copies with different bytes"
    MISPLACED = "misplaced: the replay writes it to another partition"
    OUT_OF_ORDER = "out of order: a later record of its group precedes it"
    UNREADABLE = "unreadable: it is not a record of a coordinator"


class ReplayDifference(Struct, frozen=True, kw_only=True):
    """A difference between the topics and the replay. Absent values are None."""

    what: RecordKind
    how: DifferenceKind
    group_id: str
    name: str  # identifies the record
    entry: str | None = None  # request or deadline that produces the record
    expected: str | None = None  # record of the replay
    found: str | None = None  # record on the topics
    place: str | None = None  # <partition>-<offset> of `found`


class ComparedCounts(Struct, kw_only=True):
    """The numbers of a group's compared records, by type."""

    entries: int = 0  # steps of the replay
    answers: int = 0
    early: int = 0  # answers that replicas wrote before the query
    history: int = 0
    letters: int = 0
    views: int = 0
    gone: int = 0  # expected records that retention may have deleted
    open: int = 0  # expected records that the last committed batch did not have to write yet


class ReplayVerdict(Struct, kw_only=True):
    """The verdict on all groups of a recording."""

    groups: dict[str, ComparedCounts]
    # By group, the position from which it can be judged, if that is not the beginning of its log.
    starts: dict[str, ReplayStart]
    differences: list[ReplayDifference]  # the first ones
    count: int  # number of all differences
    by_kind: dict[str, int]  # numbers of differences, by record and kind, such as "answer missing"
    duplicates: int  # second copies with the same bytes
    late: int  # requests applied after a later deadline (see `Replay`)
    unjudged: int  # unexpected records before the position from which their group can be judged
    skipped: int = 0  # early answers to requests that were skipped later

    @property
    def is_identical(self) -> bool:
        return not self.count

    def total(self, name: str) -> int:
        """Return the sum of the count `name` over all groups."""
        return sum(getattr(counts, name) for counts in self.groups.values())


# The maximum number of groups whose starts a text names.
MAX_STARTS = 10


def verdict_text(verdict: ReplayVerdict, header: RecordingHeader) -> VisibleText:
    """Format a verdict. The first line says whether the topics are identical to the replay."""
    notes = [*_header_notes(header), *_extent_notes(verdict), *_start_notes(verdict)]
    lines = [
        _headline(verdict),
        *columns(_compared_lines(verdict)),
        *columns(("Note", note) for note in notes),
    ]
    for number, difference in enumerate(verdict.differences, 1):
        details = columns(_details(difference))
        lines += ["", f"#{number}  {difference.what} {difference.how}", *(INDENT + line for line in details)]
    hidden = verdict.count - len(verdict.differences)
    if hidden:
        lines += ["", f"({hidden} more differences are not shown)"]
    return visible_text(lines)


def _headline(verdict: ReplayVerdict) -> str:
    """Return the first line: the outcome, and how much was compared."""
    groups = f" of {len(verdict.groups)} groups" if len(verdict.groups) != 1 else ""
    entry_count = verdict.total("history")
    entries = f"{entry_count} history {'entry' if entry_count == 1 else 'entries'}"
    compared = f"{count(verdict.total('answers'), 'answer')}, {entries}{groups}"
    if verdict.is_identical and not verdict.groups and verdict.unjudged:
        return "nothing could be judged: the beginning of the log of each group is gone"
    if verdict.is_identical:
        return f"identical: {compared}"
    kinds = ", ".join(f"{number} x {kind}" for kind, number in sorted(verdict.by_kind.items()))
    return f"{count(verdict.count, 'difference')}: {kinds} (compared: {compared})"


def _compared_lines(verdict: ReplayVerdict) -> Lines:
    """Yield a label and a text for each kind of compared records."""
    yield "Steps", f"{verdict.total('entries')}: requests, deadlines and takeovers"
    yield "Also", f"{count(verdict.total('views'), 'view')}, {count(verdict.total('letters'), 'dead letter')}"
    if early := verdict.total("early"):
        yield "Early", f"{count(early, 'answer')} of replicas, compared with the log's, too"
    if verdict.duplicates:
        yield "Repeated", f"{count(verdict.duplicates, 'record')}, each with the same bytes"


def _header_notes(header: RecordingHeader) -> Iterator[str]:
    """Yield the notes on limits of the recording itself."""
    if len(header.outages) >= OUTAGES_KEPT:
        yield f"only the last {OUTAGES_KEPT} outages are known"
    other_versions = {epoch.code_version for epoch in header.epochs} - {header.code_version}
    if other_versions:
        yield f"version {header.code_version} replays what {', '.join(sorted(other_versions))} did"


def _extent_notes(verdict: ReplayVerdict) -> Iterator[str]:
    """Yield the notes on records that were not compared, and on requests that were applied late."""
    gone, waiting = verdict.total("gone"), verdict.total("open")
    notes = (
        (
            verdict.late,
            f"{count(verdict.late, 'request')} applied late, as the history says: a deadline of a later time "
            "had fired before, so the brokers' clocks were stepped or a clock record was wrong",
        ),
        (gone, f"{count(gone, 'expected record')} older than what the topics still have: not compared"),
        (waiting, f"{count(waiting, 'expected record')} that no committed batch had to write yet"),
        (
            verdict.skipped,
            f"{count(verdict.skipped, 'early answer')} to requests that were skipped later, by --skip-record",
        ),
        (
            verdict.unjudged,
            f"{count(verdict.unjudged, 'record')} from before the place from which the log can be judged",
        ),
    )
    return (note for occurrences, note in notes if occurrences)


def _start_notes(verdict: ReplayVerdict) -> Iterator[str]:
    """Yield a note for each group that cannot be judged from its beginning. Beyond MAX_STARTS, count them."""
    cut_starts = [(group_id, start) for group_id, start in verdict.starts.items() if start.is_cut]
    for group_id, start in cut_starts[:MAX_STARTS]:
        yield start_text(group_id, start)
    if len(cut_starts) > MAX_STARTS:
        yield f"the beginning of the log of {len(cut_starts) - MAX_STARTS} more groups is gone, too"


def start_text(group_id: str, start: ReplayStart) -> str:
    """Return a sentence on where the replay of a group begins if the beginning of its log is gone."""
    if start.request is None:
        return (
            f"group {group_id} cannot be judged: the beginning of its log is gone, and it was not created "
            "anew since. Give a state to begin with (--from-state)"
        )
    return (
        f"group {group_id} is judged from {start.request} on, which created it, because the log's beginning "
        "is gone"
    )


def _details(difference: ReplayDifference) -> Lines:
    """Return a difference's labels and texts, without absent ones."""
    expected, found = difference.expected, difference.found
    differing = () if expected is None or found is None else changes(expected, found)
    details = [
        ("group", difference.group_id or "-"),
        ("name", difference.name),
        ("by", difference.entry),
        ("at", difference.place),
        *(("differs", text) for text in differing),
        ("expected", expected),
        ("found", found),
    ]
    return ((label, text) for label, text in details if text is not None)


def changes(expected: str, found: str) -> Iterator[str]:
    """Yield the differences of two JSON objects, such as `reason: expected "a", found "b"`.

    Other texts have no differences here.
    """
    try:
        expected_fields, found_fields = json.loads(expected), json.loads(found)
    except ValueError:
        return
    if isinstance(expected_fields, dict) and isinstance(found_fields, dict):
        for name in dict.fromkeys([*expected_fields, *found_fields]):
            if expected_fields.get(name, _ABSENT) != found_fields.get(name, _ABSENT):
                yield (
                    f"{name}: expected {_field_text(expected_fields, name)}, "
                    f"found {_field_text(found_fields, name)}"
                )


_ABSENT = object()


def _field_text(fields: dict[str, Any], name: str) -> str:
    return json.dumps(fields[name]) if name in fields else "nothing"
