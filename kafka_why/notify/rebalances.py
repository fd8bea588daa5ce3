"""Finds the rebalances that have ended, by `kafka_why.why`, in the entries of the events topic."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kafka_why.contract.history_reader import INCARNATIONS_REMEMBERED, HistoryReader
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.why.model import Rebalance
from kafka_why.why.report import analyze
from kafka_why.why.wording import Names

KEPT_REBALANCES = 3
"""The number of a group's last rebalances whose entries are kept, because the moves of the next one depend on
earlier assignments.
"""
KEPT_ENTRIES = 500
"""The minimum number of a group's entries that are kept, because the assignment in force may be old."""
MAX_GROUP_ENTRIES = 20_000
"""The maximum number of entries kept for one group. A rebalance with more loses its beginning."""
MAX_ENTRIES = 120_000
"""The maximum number of entries kept for all groups, at some 1.8 kB each. The groups that rebalanced longest
ago are forgotten first.
"""

_Name: TypeAlias = tuple[str, int | None, int | None]


class Ended(NamedTuple):
    """A rebalance that has ended, with the names of the group's members."""

    group_id: str
    rebalance: Rebalance
    names: Names


@dataclass(slots=True)
class _Group:
    """The kept entries of a group. `sent` are the rebalances that `ended` need not return, or None until the
    first entry that may end another one.
    """

    entries: deque[HistoryEntry] = field(default_factory=deque)
    sent: set[_Name] | None = None


class Rebalances:
    """The recent entries of all groups, from which `ended` finds the rebalances that have ended. Entries of a
    group must come in order; a repeated one has no effect. For one thread.
    """

    def __init__(self) -> None:
        self._reader = HistoryReader(from_start=False, remembers=INCARNATIONS_REMEMBERED)
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._changed: dict[str, None] = {}
        self._entries = 0

    def add(self, entry: HistoryEntry, *, is_sent: bool) -> None:
        """Add an entry. `is_sent`: a rebalance that it ends is not returned; the entry is only context."""
        if not self._reader.is_new(entry):
            return
        group = self._groups.setdefault(entry.group_id, _Group())
        self._groups.move_to_end(entry.group_id)
        if not is_sent:
            if group.sent is None:
                group.sent = set(map(_name, _ended(group.entries)))
            self._changed[entry.group_id] = None
        group.entries.append(entry)
        self._entries += 1
        if len(group.entries) > MAX_GROUP_ENTRIES:
            group.entries.popleft()
            self._entries -= 1

    def ended(self) -> list[Ended]:
        """Return the rebalances that ended since the last call, in order within each group."""
        found = []
        for group_id in self._changed:
            found += self._ended_of(group_id, self._groups[group_id])
        self._changed.clear()
        while self._entries > MAX_ENTRIES and len(self._groups) > 1:
            _, forgotten = self._groups.popitem(last=False)
            self._entries -= len(forgotten.entries)
        return found

    def _ended_of(self, group_id: str, group: _Group) -> list[Ended]:
        assert group.sent is not None, "only changed groups are read"
        analysis = analyze(group.entries, from_start=False)
        ended = [r for r in analysis.rebalances if r.ended_ms is not None]
        new = [r for r in ended if _name(r) not in group.sent]
        group.sent = set(map(_name, ended))
        self._forget(group, analysis.rebalances)
        return [Ended(group_id, r, analysis.names) for r in new]

    def _forget(self, group: _Group, found: list[Rebalance]) -> None:
        """Forget the entries before the last rebalances, unless there are few."""
        if len(found) < KEPT_REBALANCES:
            return
        kept_ms = found[-KEPT_REBALANCES].began_ms
        while len(group.entries) > KEPT_ENTRIES and group.entries[0].at_ms < kept_ms:
            group.entries.popleft()
            self._entries -= 1


def _ended(entries: Iterable[HistoryEntry]) -> list[Rebalance]:
    known = list(entries)
    return [r for r in analyze(known).rebalances if r.ended_ms is not None] if known else []


def _name(r: Rebalance) -> _Name:
    """Return a key of a rebalance that stays the same when its first entries are forgotten."""
    return r.incarnation, r.ended_ms, r.generation_to
