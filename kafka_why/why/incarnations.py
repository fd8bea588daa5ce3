"""A group's entries, of either protocol, in order: a list for each of its lives, without duplicates and with
missing entries named.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kafka_why.contract.any_group import AnyHistoryEntry
from kafka_why.contract.history_reader import HistoryReader

E = TypeVar("E", bound=AnyHistoryEntry)


@dataclass(frozen=True, slots=True)
class IncarnationHistory(Generic[E]):
    """The known entries of one incarnation, by `seq`, and the missing numbers between them.

    `unread` are numbers of entries that were not read because nothing depends on them; they are not missing.
    `begins_after` is the number before the first entry that there can be: 0, unless this is a part of a life.
    """

    incarnation: str
    entries: tuple[E, ...]
    missing: tuple[int, ...]
    unread: frozenset[int] = frozenset()
    begins_after: int = 0

    @property
    def first_seq(self) -> int:
        """Return the first known number: 1, unless retention deleted the beginning."""
        return self.entries[0].seq


def by_incarnation(
    history: Iterable[E], unread: Collection[tuple[str, int]] = ()
) -> list[IncarnationHistory[E]]:
    """Return the lives of one group in the order of its history.

    `unread` are the names, (incarnation, seq), of entries that were not read because nothing depends on them.
    """
    reader = HistoryReader(from_start=False)
    entries: dict[str, list[E]] = {}
    group_id = ""
    for event in history:
        group_id = event.group_id
        if reader.is_new(event):
            entries.setdefault(event.incarnation, []).append(event)
    left_out: dict[str, set[int]] = {}
    for incarnation, seq in unread:
        left_out.setdefault(incarnation, set()).add(seq)
    return [
        IncarnationHistory(
            incarnation,
            tuple(sorted(found, key=lambda event: event.seq)),
            tuple(
                seq
                for seq in reader.gaps.get((group_id, incarnation), ())
                if seq not in left_out.get(incarnation, ())
            ),
            frozenset(left_out.get(incarnation, ())),
        )
        for incarnation, found in entries.items()
    ]
