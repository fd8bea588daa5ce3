"""Reconstructs all groups of a cluster from the records of `__consumer_offsets`, which may be read
backwards.

The newest records are read first and older ones later. When an older record of a group is added, the group is
computed again from its oldest record in memory. The window is the span of time whose history is wanted. Of
the records before it, only the last one of each key is kept, as in compaction. These records give the group's
state at the beginning of the window.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from kafka.errors import CorruptRecordError

from kafka_why.contract.codec import request_id
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC
from kafka_why.observed.consumer_offsets.decode import decode
from kafka_why.observed.consumer_offsets.schemas import UnknownRecord
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import Observation, RecordPosition
from kafka_why.observed.records import AnyRecord, topic_ids_in
from kafka_why.observed.step import observe
from kafka_why.observed.view import view_of
from kafka_why.stored_log import Batch, OpenTransactions, StoredRecord
from kafka_why.topic_reader import NamesById
from kafka_why.wire.primitives import ProtocolError

MAX_GROUPS = 20_000
"""The maximum number of groups that are kept. Further groups are ignored."""
_OFFSET_TYPES = (0, 1)  # the types of the keys of committed offsets
_GROUP_ID_START = 4  # a key begins with its type and the length of the group id, two bytes each
_RECORD_BYTES = 200  # the memory that a record takes besides its bytes

log = structlog.get_logger()


def observe_stored(
    group: ObservedGroup | None,
    group_id: str,
    partition: int,
    record: StoredRecord,
    names: NamesById,
    removed_ms: int | None,
) -> tuple[AnyRecord, Observation] | None:
    """Apply the next record of a group. Return its content and the observation, the record's effects.

    Return None if the record belongs to another group or cannot be read, which is logged. `group` is None
    before the group's first record. `removed_ms` is the `removed_ms` of the group's previous observation.
    """
    try:
        record_group_id, content = decode(record.key or b"", record.value)
    except (UnknownRecord, ProtocolError) as error:
        log.warning("a record cannot be read", partition=partition, offset=record.offset, error=str(error))
        return None
    if record_group_id != group_id:
        return None
    if ids := topic_ids_in(content):
        names.find(ids)
    record_id = request_id(KAFKAS_OFFSETS_TOPIC, partition, record.offset)
    at = RecordPosition(record.timestamp, record=record_id, incarnation=record_id)
    return content, observe(group, group_id, content, at, names.known, removed_ms)


@dataclass(slots=True)
class GroupPart:
    """A group's records in a part of the log, without commits that have no effect on the history.

    Of the commits between two other records, only the last one of each partition has an effect.
    """

    records: list[StoredRecord] = field(default_factory=list)  # in the log's order
    commits: dict[bytes, StoredRecord] = field(default_factory=dict)  # after `records`, by key

    def add(self, record: StoredRecord) -> None:
        """Add a record that is not a commit."""
        self.records += sorted(self.commits.values())
        self.records.append(record)
        self.commits = {}

    def all(self) -> list[StoredRecord]:
        """Return the records in the log's order."""
        return [*self.records, *sorted(self.commits.values())]


class LogPart:
    """The records of a partition from the offset `first` to before `end`, by group.

    `transactions` has the transactions that are open at `first`.
    """

    def __init__(self, first: int, end: int, transactions: OpenTransactions) -> None:
        self.groups: dict[bytes, GroupPart] = {}  # by group id
        self.first_ms: int | None = None  # the greatest timestamp in the first batch; None without a batch
        self._first, self._end, self._transactions = first, end, transactions

    def take(self, batch: Batch) -> None:
        """Apply the next batch. Commits in a transaction count when it has ended. Raises KafkaError."""
        if self.first_ms is None:
            self.first_ms = batch.max_timestamp
        if batch.is_control_batch or batch.is_transactional:
            for committed in self._transactions.take(batch):
                self._add(committed)
        else:
            self._add(batch)

    def _add(self, batch: Batch) -> None:
        """Add the records of a batch to their groups."""
        try:
            records = batch.records()
        except CorruptRecordError as error:
            log.warning("a batch cannot be read", error=str(error))
            return
        # A batch at an edge of this part has records outside of it. A transaction's batch may be before the
        # part: it counts as a whole, because the transaction's marker is in the part.
        is_at_edge = records and not self._first <= records[0].offset <= records[-1].offset < self._end
        if is_at_edge and not batch.is_transactional:
            records = [record for record in records if self._first <= record.offset < self._end]
        # The beginning of a key: its type, the length of the group id, and the group id.
        key_start, part = b"", None
        for record in records:
            key = record[2]
            if key is None or len(key) < _GROUP_ID_START:
                continue
            # The next record is mostly of the same group, because its partitions are committed together.
            if part is None or not key.startswith(key_start):
                id_length = key[2] << 8 | key[3]
                key_start = key[: _GROUP_ID_START + id_length]
                part = self.groups.get(key_start[_GROUP_ID_START:])
                if part is None:
                    part = self.groups[key_start[_GROUP_ID_START:]] = GroupPart()
            if key[1] in _OFFSET_TYPES:
                part.commits[key] = record
            else:
                part.add(record)


class GroupUpdate(NamedTuple):
    """The changes of a group, from records or from polls of the brokers."""

    group_id: str
    view: GroupSnapshot | None  # None if the group has ended
    entries: list[HistoryEntry]
    offsets: dict[tuple[str, int], tuple[int, int]]  # as from `committed_offsets`
    replaces_entries: bool  # True if `entries` replace all earlier ones, instead of following them
    partition: int = -1
    # Offsets of the records in `partition` that led to the entries; empty for polls.
    entry_offsets: Sequence[int] = ()


@dataclass(slots=True)
class _StoredGroup:
    """A group and, until `forget_records`, its records."""

    group_id: str
    partition: int
    # Records before the window by key, the newest first.
    older: dict[bytes, StoredRecord] = field(default_factory=dict)
    records: list[StoredRecord] = field(default_factory=list)  # since the beginning of the window
    group: ObservedGroup | None = None  # after the last record; None if it has ended
    view: GroupSnapshot | None = None
    removed_ms: int | None = None  # of the last `Observation`


class StoredGroups:
    """All groups, computed from their records. For use by one thread."""

    def __init__(self, names: NamesById) -> None:
        self.kept_bytes = 0  # approximate size of the kept records; 0 after `forget_records`
        self.left_out = False  # True if there are more than MAX_GROUPS groups
        self._names = names
        self._groups: dict[bytes, _StoredGroup] = {}  # by group id
        self._keeps_records = True

    def view(self, group_id: str) -> GroupSnapshot | None:
        """Return a group's view, or None if it is unknown or has ended."""
        stored = self._groups.get(group_id.encode())
        return None if stored is None else stored.view

    def append(self, partition: int, part: LogPart) -> Iterator[GroupUpdate]:
        """Add records that are newer than all earlier ones. Yield the changed groups."""
        for stored, group_part in self._groups_in(partition, part):
            records = group_part.all()
            if self._keeps_records:
                stored.records += records
                self._count_bytes(records)
            yield self._observe(stored, records, replaces_entries=False)
            if stored.group is None and not self._keeps_records:
                self._groups.pop(stored.group_id.encode(), None)

    def prepend(self, partition: int, part: LogPart, window_ms: int) -> Iterator[GroupUpdate]:
        """Add records that are older than all earlier ones. Yield the changed groups.

        `window_ms` is the beginning of the window.
        """
        for stored, group_part in self._groups_in(partition, part):
            in_window = list[StoredRecord]()  # the newest first
            older_before = len(stored.older)
            for record in reversed(group_part.all()):
                if record.timestamp >= window_ms:
                    in_window.append(record)
                elif (key := record.key or b"") not in stored.older:
                    stored.older[key] = record
                    self._count_bytes([record])
            if in_window or len(stored.older) > older_before:
                stored.records[:0] = reversed(in_window)
                self._count_bytes(in_window)
                stored.group = stored.view = None
                records = [*reversed(stored.older.values()), *stored.records]
                yield self._observe(stored, records, replaces_entries=True)

    def forget_records(self) -> None:
        """Free the records, because no older ones follow."""
        self._keeps_records, self.kept_bytes = False, 0
        for key, stored in list(self._groups.items()):
            stored.older, stored.records = {}, []
            if stored.group is None:
                del self._groups[key]

    def _groups_in(self, partition: int, part: LogPart) -> Iterator[tuple[_StoredGroup, GroupPart]]:
        """Yield each group in `part` with its records, up to MAX_GROUPS groups."""
        for key, group_part in part.groups.items():
            stored = self._groups.get(key)
            if stored is None and len(self._groups) >= MAX_GROUPS:
                self.left_out = True
                continue
            if stored is None:
                stored = self._groups[key] = _StoredGroup(key.decode(errors="replace"), partition)
            yield stored, group_part

    def _count_bytes(self, records: Iterable[StoredRecord]) -> None:
        self.kept_bytes += sum(_RECORD_BYTES + len(r.key or b"") + len(r.value or b"") for r in records)

    def _observe(
        self, stored: _StoredGroup, records: Iterable[StoredRecord], *, replaces_entries: bool
    ) -> GroupUpdate:
        """Apply records to a group. If they replace the earlier entries, the group begins with them."""
        entries, entry_offsets, view_changed = list[HistoryEntry](), list[int](), replaces_entries
        for record in records:
            try:
                observed = observe_stored(
                    stored.group, stored.group_id, stored.partition, record, self._names, stored.removed_ms
                )
            except Exception:  # any fault of this code must not stop the other groups
                log.exception("a record cannot be applied", partition=stored.partition, offset=record.offset)
                continue
            if observed is not None:
                _, seen = observed
                entries += seen.history
                entry_offsets += [record.offset] * len(seen.history)
                view_changed |= seen.view_changed or stored.group is None or seen.is_over
                stored.group, stored.removed_ms = None if seen.is_over else seen.group, seen.removed_ms
        if view_changed:
            stored.view = None if stored.group is None else view_of(stored.group, self._names.known)
        return GroupUpdate(
            stored.group_id,
            stored.view,
            entries,
            committed_offsets(stored.group),
            replaces_entries,
            stored.partition,
            entry_offsets,
        )


def committed_offsets(group: ObservedGroup | None) -> dict[tuple[str, int], tuple[int, int]]:
    """Return each committed offset with the time of its commit in ms, by topic and partition."""
    topics = {} if group is None else group.offsets
    return {
        (topic, number): (offset.offset, offset.committed_at_ms)
        for topic, offsets in topics.items()
        for number, offset in offsets.items()
    }
