"""What a history does not have, and what is out of order with its group."""

from collections.abc import Sequence

from clients.partition_text import number_list
from insight.why.lives import E, Life
from state.kafka.history import EntryType


def notes(group_lives: Sequence[Life[E]], *, from_start: bool = True) -> list[str]:
    """A sentence each; these kinds of entries go by the same names with both protocols.

    `from_start`: the lives begin with the first entry that is kept.
    """
    found = []
    if len(group_lives) > 1:
        found.append(f"the group ended and was made anew: {len(group_lives)} lives are told of")
    for life in group_lives:
        if life.first_seq > 1 and (from_start or life is not group_lives[0]):
            found.append(
                f"the history begins at entry {life.first_seq}: earlier ones are older than the retention"
            )
        if life.missing:
            found.append(f"entries are missing: {number_list(life.missing)} of life {life.incarnation}")
        late = sum(event.type == EntryType.APPLIED_LATE for event in life.entries)
        if late:
            found.append(f"{late} requests stood in the log behind a deadline that had fired")
    marks = [e for e in group_lives[-1].entries if e.type in (EntryType.QUARANTINED, EntryType.RELEASED)]
    if marks and marks[-1].type == EntryType.QUARANTINED:
        found.append(f"the group is quarantined, its deadlines do not run: {marks[-1].reason}")
    return found
