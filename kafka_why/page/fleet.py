"""The page's data of all groups: their views, committed offsets, and the history entries of the last hour.

A view is the latest snapshot of a group's state. A version is a number that grows with each change, so that
open pages reload only for something new.

One thread writes and others read at the same time. The lock is held only for one record or one copy.
"""

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
from kafka_why.lag.definitions import UNKNOWN, Ownership, Partition, PartitionLag, ownership
from kafka_why.lag.lag_book import LagBook

WINDOW_MS = 3_600_000
"""The last hour, whose entries are kept."""
MAX_ENTRIES = 20_000
"""Maximum number of entries kept for one group. The oldest are dropped first."""
MAX_STARTS = 20
"""Maximum number of coordinators' starts that are kept: the newest."""


@dataclass(slots=True)
class _Group:
    """The data of one group, with its entries of the last hour."""

    view: AnyView | None = None  # None if the group has ended
    ownership: Ownership | None = None  # of `view`; None until it is computed
    entries: deque[AnyHistoryEntry] = field(default_factory=deque)
    entry_ids: set[tuple[str, int]] = field(default_factory=set)  # an id is the incarnation and the seq
    version: int = 0
    entries_version: int = 0

    @property
    def is_empty(self) -> bool:
        return self.view is None and not self.entries

    def add(self, entry: AnyHistoryEntry) -> bool:
        """Add an entry. Return False for a duplicate, which a reconnected reader may deliver."""
        entry_id = entry.incarnation, entry.seq
        if entry_id in self.entry_ids:
            return False
        self.entry_ids.add(entry_id)
        self.entries.append(entry)
        self.entries_version += 1
        if len(self.entries) > MAX_ENTRIES:
            self.forget_first()
        return True

    def forget_before(self, at_ms: int) -> bool:
        """Forget the entries before a time. Return True if there were any."""
        entries_before = len(self.entries)
        while self.entries and self.entries[0].at_ms < at_ms:
            self.forget_first()
        return len(self.entries) < entries_before

    def forget_first(self) -> None:
        """Forget the oldest entry."""
        oldest = self.entries.popleft()
        self.entry_ids.discard((oldest.incarnation, oldest.seq))
        self.entries_version += 1


_NO_GROUP = _Group()  # the default for unknown groups; never changed


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A copy of the data of one group, which does not change."""

    group_id: str
    view: AnyView | None  # None if the group has ended
    lags: Mapping[Partition, PartitionLag]
    entries: tuple[AnyHistoryEntry, ...]
    version: int  # grows when the view, committed offsets or entries change
    entries_version: int = 0  # grows when entries change
    ownership: Ownership = UNKNOWN


class Fleet:
    """The data of all groups. Thread-safe.

    `apply` adds records of the topics in `layout`. `update_group` adds data from any other source.
    """

    def __init__(self, layout: TopicLayout | None = None) -> None:
        self._layout = layout
        self.lags = LagBook()
        """The offsets of the groups."""
        self._lock = self.lags.lock
        self._groups: dict[str, _Group] = {}
        self.version = 0
        """Grows with each change of any group."""
        self.last_entry_ms: int | None = None
        """The time of the latest entry."""
        self.is_complete = False
        """True once the topics have been read to their ends."""
        # By time and first batch, because a reconnected reader may deliver a start again.
        self._starts: dict[tuple[int, int], CoordinatorStarted] = {}

    def apply(self, topic: str, key: bytes | None, value: bytes | None, now_ms: int) -> None:
        """Apply one record of a topic. Raises one of UNREADABLE."""
        layout = self._layout
        assert layout is not None, "only a fleet with a layout applies records"
        with self._lock:
            if topic == layout.groups_topic:
                self._apply_view((key or b"").decode(), value)
            elif topic == layout.offsets_topic:
                group_id = self.lags.apply_commit(key or b"", value)
                self._count_change(self._groups.setdefault(group_id, _Group()))
            elif topic == layout.events_topic:
                self._apply_entry(value or b"", now_ms)

    def update_group(
        self,
        group_id: str,
        view: AnyView | None,
        entries: Iterable[AnyHistoryEntry],
        commits: Mapping[Partition, tuple[int, int]],
        now_ms: int,
        *,
        replaces_entries: bool,
    ) -> None:
        """Store a group's present view, and add `entries`.

        If `replaces_entries`, they replace all earlier entries. `commits` has the committed offset and the
        time of the commit, by partition.
        """
        with self._lock:
            group = self._groups.setdefault(group_id, _Group())
            if replaces_entries:
                group.forget_before(now_ms + WINDOW_MS)  # all, even if the brokers' clocks are ahead
            for entry in entries:
                self.last_entry_ms = max(entry.at_ms, self.last_entry_ms or 0)
                if entry.at_ms >= now_ms - WINDOW_MS:
                    group.add(entry)
            if view is not group.view:
                group.view, group.ownership = view, None
            self.lags.set_commits(group_id, commits)
            self._count_change(group)

    def set_view(self, group_id: str, view: AnyView) -> None:
        """Replace the view of a known group."""
        with self._lock:
            group = self._groups.get(group_id)
            if group is not None:
                group.view, group.ownership = view, None
                self._count_change(group)

    def mark_complete(self) -> None:
        """Mark the topics as read to their ends. Before that, the fleet may have groups that were deleted."""
        with self._lock:
            if not self.is_complete:
                self.is_complete = True
                self._count_change(None)

    def total_entries(self) -> int:
        """Return the number of entries of all groups."""
        with self._lock:
            return sum(len(group.entries) for group in self._groups.values())

    def trim(self, now_ms: int) -> None:
        """Forget the entries older than WINDOW_MS, and the ended groups without any entry or offset."""
        with self._lock:
            for group_id, group in list(self._groups.items()):
                if group.forget_before(now_ms - WINDOW_MS):
                    self._count_change(group)
                if group.is_empty and not self.lags.has_offsets(group_id):
                    del self._groups[group_id]

    def recent_starts(self, now_ms: int) -> list[CoordinatorStarted]:
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
        return self._groups.get(group_id, _NO_GROUP).entries_version

    def entry_count(self, group_id: str) -> int:
        """Return the number of a group's entries."""
        return len(self._groups.get(group_id, _NO_GROUP).entries)

    def view(self, group_id: str) -> AnyView | None:
        """Return the view of a group, or None if it is unknown or has ended."""
        return self._groups.get(group_id, _NO_GROUP).view

    def reload_pages(self, group_id: str) -> None:
        """Let open pages of a group reload, because they can show more now. This increases its version."""
        with self._lock:
            group = self._groups.get(group_id)
            if group is not None:
                self._count_change(group)

    def facts(self, group_id: str) -> GroupFacts | None:
        """Return a copy of a group's data, or None if it is unknown."""
        with self._lock:
            group = self._groups.get(group_id)
            if group is None:
                return None
            owned = _ownership(group)
            lags = self.lags.lags(group_id, owned.settled_ms)
            entries = tuple(group.entries)
            return GroupFacts(
                group_id,
                group.view,
                lags,
                entries,
                version=group.version,
                entries_version=group.entries_version,
                ownership=owned,
            )

    def all_facts(self) -> Iterable[GroupFacts]:
        """Return an iterator over copies of the groups' data. Each group is copied when it is reached."""
        return filter(None, map(self.facts, self.group_ids()))

    def _apply_view(self, group_id: str, value: bytes | None) -> None:
        group = self._groups.setdefault(group_id, _Group())
        group.view = None if value is None else decode_any_snapshot(value)
        group.ownership = None
        self._count_change(group)

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
            self._count_change(group)

    def _apply_start(self, entry: CoordinatorStarted) -> None:
        self._starts[entry.at_ms, entry.from_batch] = entry
        if len(self._starts) > MAX_STARTS:
            del self._starts[min(self._starts)]
        self._count_change(None)

    def _count_change(self, group: _Group | None) -> None:
        """Increase the fleet's version and, unless the change concerns no single group, that of `group`."""
        if group is not None:
            group.version += 1
        self.version += 1


def _ownership(group: _Group) -> Ownership:
    """Return the owners of a group's partitions, which are computed once for each view."""
    if group.ownership is None:
        group.ownership = ownership(group.view) if isinstance(group.view, GroupSnapshot) else UNKNOWN
    return group.ownership
