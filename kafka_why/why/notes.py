"""Remarks about gaps in a group's history, and about faults of the group."""

from collections.abc import Sequence

from kafka_why.contract.any_group import AnyHistoryEntry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.partition_text import number_list
from kafka_why.why.incarnations import E, IncarnationHistory

MISSING = "entries are missing"


def notes(group_lives: Sequence[IncarnationHistory[E]], *, from_start: bool = True) -> list[str]:
    """Return a sentence for each remark; these kinds of entries have the same names in both protocols.

    `from_start`: the lives begin with the first retained entry.
    """
    found = []
    if len(group_lives) > 1:
        found.append(f"the group ended and was created again: this report covers {len(group_lives)} lives")
    for life in group_lives:
        if life.first_seq > 1 and (from_start or life is not group_lives[0]):
            found.append(f"the history begins at entry {life.first_seq}: {_why_later(life.entries[0])}")
        if life.missing:
            found.append(f"{MISSING}: {number_list(life.missing)} of life {life.incarnation}")
        late = sum(event.type == EntryType.APPLIED_LATE for event in life.entries)
        if late:
            found.append(f"{late} requests were applied late, after a deadline that had already fired")
    refused = [e for e in group_lives[-1].entries if e.type == EntryType.JOIN_REFUSED]
    if refused:
        found.append(f"JoinGroups were refused, {len(refused)} times; the last time: {refused[-1].reason}")
    marks = [e for e in group_lives[-1].entries if e.type in (EntryType.QUARANTINED, EntryType.RELEASED)]
    if marks and marks[-1].type == EntryType.QUARANTINED:
        found.append(f"the group is quarantined, its deadlines do not fire: {marks[-1].reason}")
    return found


def _why_later(first: AnyHistoryEntry) -> str:
    is_found = isinstance(first, HistoryEntry) and first.observed
    return "the group was there before it was observed" if is_found else "retention deleted the earlier ones"
