"""The histories of groups that somebody looks at: read from the topic once, then continued by the fleet."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.page.fleet import MAX_ENTRIES, WINDOW_MS, Fleet
from kafka_why.why.history import History, HistoryUnavailable

MAX_GROUPS = 32
"""Histories that are kept, those that were looked at last."""
MAX_KEPT_ENTRIES = 120_000
"""Of all histories that are kept, some 1.8 kB each. The last one is kept also if it has more."""
_FRESH_MS = WINDOW_MS // 2

Reader: TypeAlias = Callable[[str, int], History]
"""Reads a group's history from the topic, as far as a report since a time needs it: see
`kafka_why.why.history.read_history`.
"""


@dataclass(frozen=True, slots=True)
class Read:
    """A history that was read from the topic at `at_ms`, and continued until the fleet's `entries_version`.
    It has what a report since `since_ms` needs.
    """

    history: History
    since_ms: int
    at_ms: int
    entries_version: int = 0


class Histories:
    """Returns histories, to several threads. What was read is continued with what the fleet has since, unless
    the fleet names entries otherwise than the reader (`continues` is False).
    """

    def __init__(self, reader: Reader, fleet: Fleet, *, continues: bool = True) -> None:
        self._reader = reader
        self._continues = continues
        self._fleet = fleet
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Read] = OrderedDict()

    def read(self, group_id: str, since_ms: int, now_ms: int) -> Read:
        """Return the entries that a report since a time needs. Some may be duplicates. There are none of a
        group whose whole history is older than the topic's retention.

        Raises HistoryUnavailable if the group is unknown, and KafkaError.
        """
        if not self._continues:
            version = self._fleet.entries_version(group_id)
            return Read(self._from_topic(group_id, since_ms), since_ms, now_ms, version)
        with self._lock:
            known = self._known.get(group_id)
        if known is not None and known.since_ms <= since_ms and now_ms - known.at_ms <= _FRESH_MS:
            continued = self._continued(group_id, known)
            if continued is not None:
                return self._keep(group_id, continued)
        read = Read(self._from_topic(group_id, since_ms), since_ms, now_ms)
        return self._keep(group_id, self._continued(group_id, read) or read)

    def _from_topic(self, group_id: str, since_ms: int) -> History:
        try:
            return self._reader(group_id, since_ms)
        except HistoryUnavailable:
            facts = self._fleet.facts(group_id)
            if facts is None or (facts.view is None and not facts.entries):
                raise
            return History([], frozenset(), from_start=False, records_read=0)

    def _continued(self, group_id: str, read: Read) -> Read | None:
        """Add what has come since; None if the fleet no longer has all of it."""
        facts = self._fleet.facts(group_id)
        if facts is None:
            return read
        later = _later(read.history.entries, facts.entries)
        if later is None:
            return None
        entries = [*read.history.entries, *later]
        return replace(
            read, history=replace(read.history, entries=entries), entries_version=facts.entries_version
        )

    def _keep(self, group_id: str, read: Read) -> Read:
        with self._lock:
            self._known[group_id] = read
            self._known.move_to_end(group_id)
            while len(self._known) > 1 and (
                len(self._known) > MAX_GROUPS
                or sum(len(one.history.entries) for one in self._known.values()) > MAX_KEPT_ENTRIES
            ):
                self._known.popitem(last=False)
        return read


def _later(
    known: Sequence[AnyHistoryEntry], of_fleet: Sequence[AnyHistoryEntry]
) -> Sequence[AnyHistoryEntry] | None:
    """Return the fleet's entries that are not known, None if some between may have been forgotten."""
    names = {(entry.incarnation, entry.seq) for entry in known[-MAX_ENTRIES:]}
    later = [entry for entry in of_fleet if (entry.incarnation, entry.seq) not in names]
    return None if len(later) == len(of_fleet) >= MAX_ENTRIES else later
