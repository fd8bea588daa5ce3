"""All groups as the page knows them: their views, committed offsets, and the entries of the last hour.

One thread writes and others read at the same time. The lock is held only for one record or one copy.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kafka_why.contract.history_reader import (
    AnyHistoryEntry,
    AnyView,
    CoordinatorStarted,
    decode_any_entry,
    decode_any_snapshot,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.lag.definitions import UNKNOWN, LogBounds, Ownership, Partition, PartitionLag, ownership
from kafka_why.lag.lag_book import LagBook

WINDOW_MS = 3_600_000
"""The last hour, whose entries are kept."""
MAX_ENTRIES = 20_000
"""Maximum number of entries kept for one group. The oldest are dropped first."""
MAX_STARTS = 20
"""Maximum number of coordinators' starts that are kept: the newest."""


@dataclass(slots=True)
class _Group:
    view: AnyView | None = None
    ownership: Ownership | None = None
    entries: deque[AnyHistoryEntry] = field(default_factory=deque)
    names: set[tuple[str, int]] = field(default_factory=set)
    version: int = 0
    entries_version: int = 0

    @property
    def is_empty(self) -> bool:
        return self.view is None and not self.entries

    def add(self, entry: AnyHistoryEntry) -> bool:
        """Keep an entry. Return False for a duplicate, which a reconnected reader may deliver."""
        name = entry.incarnation, entry.seq
        if name in self.names:
            return False
        self.names.add(name)
        self.entries.append(entry)
        self.entries_version += 1
        if len(self.entries) > MAX_ENTRIES:
            self.forget_first()
        return True

    def forget_before(self, at_ms: int) -> bool:
        """Forget the entries before a time. Return True if there were any."""
        number = len(self.entries)
        while self.entries and self.entries[0].at_ms < at_ms:
            self.forget_first()
        return len(self.entries) < number

    def forget_first(self) -> None:
        gone = self.entries.popleft()
        self.names.discard((gone.incarnation, gone.seq))
        self.entries_version += 1


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A copy of the data of one group."""

    group_id: str
    view: AnyView | None  # None if the group has ended
    lags: Mapping[Partition, PartitionLag]
    entries: tuple[AnyHistoryEntry, ...]
    version: int  # grows when the view, committed offsets or entries change
    entries_version: int = 0  # grows when entries change
    ownership: Ownership = UNKNOWN


class Fleet:
    """The data of all groups. Thread-safe.

    `apply` takes a record of the layout's topics, and `take` a group that another source describes.
    """

    def __init__(self, layout: TopicLayout | None = None) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._lags = LagBook()
        self.version = 0
        """Grows with each change of any group."""
        self.last_entry_ms: int | None = None
        """The time of the latest entry."""
        self.is_complete = False
        """True once the topics have been read to their ends."""
        self._starts: dict[tuple[int, int], CoordinatorStarted] = {}

    def apply(self, topic: str, key: bytes | None, value: bytes | None, now_ms: int) -> None:
        """Apply one record of a topic. Raises one of UNREADABLE."""
        layout = self._layout
        assert layout is not None, "only a fleet with a layout applies records"
        with self._lock:
            if topic == layout.groups_topic:
                self._apply_view((key or b"").decode(), value)
            elif topic == layout.offsets_topic:
                group_id = self._lags.apply_commit(key or b"", value)
                self._touch(self._groups.setdefault(group_id, _Group()))
            elif topic == layout.events_topic:
                self._apply_entry(value or b"", now_ms)

    def take(
        self,
        group_id: str,
        view: AnyView | None,
        entries: Iterable[AnyHistoryEntry],
        commits: Mapping[Partition, tuple[int, int]],
        now_ms: int,
        *,
        anew: bool,
    ) -> None:
        """Store a group's present view, and add its new entries, or replace all entries if `anew`.

        `commits` has committed offsets with their times.
        """
        with self._lock:
            group = self._groups.setdefault(group_id, _Group())
            if anew:
                group.forget_before(now_ms + WINDOW_MS)
            for entry in entries:
                self.last_entry_ms = max(entry.at_ms, self.last_entry_ms or 0)
                if entry.at_ms >= now_ms - WINDOW_MS:
                    group.add(entry)
            if view is not group.view:
                group.view, group.ownership = view, None
            self._lags.set_commits(group_id, commits)
            self._touch(group)

    def show(self, group_id: str, view: AnyView) -> None:
        """Replace the view of a known group."""
        with self._lock:
            group = self._groups.get(group_id)
            if group is not None:
                group.view = view
                self._touch(group)

    def add_bounds(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        """Add the bounds of the topics' logs."""
        with self._lock:
            self._lags.add_bounds(bounds, at_ms)

    def wanted_times(self) -> dict[Partition, int]:
        """Return the offsets whose record times are needed (`LagBook.wanted_times`)."""
        with self._lock:
            return self._lags.wanted_times()

    def add_times(self, wanted: Mapping[Partition, int], lags_ms: Mapping[Partition, int]) -> None:
        with self._lock:
            self._lags.add_times(wanted, lags_ms)

    def complete(self) -> None:
        """Mark the topics as read to their ends. Until then, deleted groups may be listed."""
        with self._lock:
            if not self.is_complete:
                self.is_complete = True
                self._touch(None)

    def total_entries(self) -> int:
        """Return the number of entries of all groups."""
        with self._lock:
            return sum(len(group.entries) for group in self._groups.values())

    def trim(self, now_ms: int) -> None:
        """Forget the entries that are older than the window."""
        with self._lock:
            for group_id, group in list(self._groups.items()):
                if group.forget_before(now_ms - WINDOW_MS):
                    self._touch(group)
                if group.is_empty and not self._lags.has_offsets(group_id):
                    del self._groups[group_id]

    def topics(self) -> set[str]:
        """Return the topics with a committed offset."""
        with self._lock:
            return self._lags.topics()

    def starts(self, now_ms: int) -> list[CoordinatorStarted]:
        """Return the starts of coordinators in the last hour, at most MAX_STARTS."""
        with self._lock:
            return [one for one in self._starts.values() if one.at_ms >= now_ms - WINDOW_MS]

    def group_ids(self) -> list[str]:
        """Return the ids of all groups, including those that ended within the window."""
        with self._lock:
            return list(self._groups)

    def group_version(self, group_id: str) -> int | None:
        """Return the version of a group, or None if it is unknown."""
        group = self._groups.get(group_id)
        return None if group is None else group.version

    def entries_version(self, group_id: str) -> int:
        """Return the version of a group's entries, or 0 if it is unknown."""
        group = self._groups.get(group_id)
        return 0 if group is None else group.entries_version

    def entry_count(self, group_id: str) -> int:
        """Return the number of a group's entries."""
        group = self._groups.get(group_id)
        return 0 if group is None else len(group.entries)

    def view(self, group_id: str) -> AnyView | None:
        """Return the view of a group, or None."""
        group = self._groups.get(group_id)
        return None if group is None else group.view

    def touch(self, group_id: str) -> None:
        """Increase the version of a group, of which more can be shown now."""
        with self._lock:
            group = self._groups.get(group_id)
            if group is not None:
                self._touch(group)

    def facts(self, group_id: str) -> GroupFacts | None:
        """Return a copy of a group's data, or None if it is unknown."""
        with self._lock:
            group = self._groups.get(group_id)
            if group is None:
                return None
            owned = _ownership(group)
            lags = self._lags.lags(group_id, owned.settled_ms)
            entries = tuple(group.entries)
            return GroupFacts(
                group_id, group.view, lags, entries, group.version, group.entries_version, owned
            )

    def all_facts(self) -> Iterable[GroupFacts]:
        """Yield a copy of the data of each group."""
        for group_id in self.group_ids():
            facts = self.facts(group_id)
            if facts is not None:
                yield facts

    def _apply_view(self, group_id: str, value: bytes | None) -> None:
        group = self._groups.setdefault(group_id, _Group())
        group.view = None if value is None else decode_any_snapshot(value)
        group.ownership = None
        self._touch(group)

    def _apply_entry(self, value: bytes, now_ms: int) -> None:
        entry = decode_any_entry(value)
        if entry is None:
            return
        self.last_entry_ms = max(entry.at_ms, self.last_entry_ms or 0)
        if entry.at_ms < now_ms - WINDOW_MS:
            return
        if isinstance(entry, CoordinatorStarted):
            self._apply_start(entry)
            return
        group = self._groups.setdefault(entry.group_id, _Group())
        if group.add(entry):
            self._touch(group)

    def _apply_start(self, entry: CoordinatorStarted) -> None:
        self._starts[entry.at_ms, entry.from_batch] = entry
        if len(self._starts) > MAX_STARTS:
            del self._starts[min(self._starts)]
        self._touch(None)

    def _touch(self, group: _Group | None) -> None:
        if group is not None:
            group.version += 1
        self.version += 1


def _ownership(group: _Group) -> Ownership:
    """Return the owners of a group's partitions, computed once for each view."""
    if group.ownership is None:
        group.ownership = ownership(group.view) if isinstance(group.view, GroupSnapshot) else UNKNOWN
    return group.ownership
