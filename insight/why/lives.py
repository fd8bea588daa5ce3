"""A group's entries, of either protocol, put in order: a list for each of its lives, without duplicates,
and with the gaps named.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from records.history import HistoryReader, Numbered

E = TypeVar("E", bound=Numbered)


@dataclass(frozen=True, slots=True)
class Life(Generic[E]):
    """The known entries of one incarnation, by `seq`, and the numbers that are missing among them."""

    incarnation: str
    entries: tuple[E, ...]
    missing: tuple[int, ...]

    @property
    def first_seq(self) -> int:
        """1, unless the beginning was deleted by retention."""
        return self.entries[0].seq


def lives(history: Iterable[E]) -> list[Life[E]]:
    """The lives of one group, as they follow each other in its history."""
    reader = HistoryReader(from_start=False)
    entries: dict[str, list[E]] = {}
    group_id = ""
    for event in history:
        group_id = event.group_id
        if reader.is_new(event):
            entries.setdefault(event.incarnation, []).append(event)
    return [
        Life(
            incarnation,
            tuple(sorted(found, key=lambda event: event.seq)),
            tuple(reader.gaps.get((group_id, incarnation), ())),
        )
        for incarnation, found in entries.items()
    ]
