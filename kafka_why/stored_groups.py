"""Reconstructs all groups of a cluster from the records of `__consumer_offsets`, which may be read
backwards.

The newest records are read first and older ones later. When an older record of a group is added, the group is
computed again from its first known record. Of the records before the window, only the last one of each key is
kept, as in compaction; these give the group's state at the beginning of the window.
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
from kafka_why.observed.epochs import topic_ids_in
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import Observation, RecordPosition
from kafka_why.observed.records import AnyRecord
from kafka_why.observed.step import observe
from kafka_why.observed.view import view_of
from kafka_why.stored_log import Batch, OpenTransactions, StoredRecord
from kafka_why.topic_reader import NamesById
from kafka_why.wire.primitives import ProtocolError

MAX_GROUPS = 20_000
"""The maximum number of groups that are kept: those that were read first."""
_OFFSET_TYPES = (0, 1)
_GROUP_AT = 4  # a key begins with its type, and the length of the group's id
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
    """Apply the next record of a group. Return its content and the observation.

    Return None if the record belongs to another group or cannot be read, which is logged.
    """
    try:
        of_group, content = decode(record.key or b"", record.value)
    except (UnknownRecord, ProtocolError) as error:
        log.warning("a record cannot be read", partition=partition, offset=record.offset, error=str(error))
        return None
    if of_group != group_id:
        return None
    if ids := topic_ids_in(content):
        names.find(ids)
    name = request_id(KAFKAS_OFFSETS_TOPIC, partition, record.offset)
    return content, observe(
        group, group_id, content, RecordPosition(record.timestamp, name, name), names.known, removed_ms
    )


@dataclass(slots=True)
class GroupPart:
    """A group's records in a part of the log, without commits that other commits have replaced.

    Between two records that are no commits, only the last commit of each partition has an effect on the
    history.
    """

    records: list[StoredRecord] = field(default_factory=list)
    commits: dict[bytes, StoredRecord] = field(default_factory=dict)

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

    `transactions` are those that are open at `first`.
    """

    def __init__(self, first: int, end: int, transactions: OpenTransactions) -> None:
        self.groups: dict[bytes, GroupPart] = {}
        self.first_ms: int | None = None
        self._first, self._end, self._transactions = first, end, transactions

    def take(self, batch: Batch) -> None:
        """Apply the next batch. Commits in a transaction count when it has ended. Raises KafkaError."""
        if self.first_ms is None:
            self.first_ms = batch.timestamp_ms
        if batch.is_marker or batch.is_transactional:
            for committed in self._transactions.take(batch):
                self._add(committed)
        else:
            self._add(batch)

    def _add(self, batch: Batch) -> None:
        try:
            records = batch.records()
        except CorruptRecordError as error:
            log.warning("a batch cannot be read", error=str(error))
            return
        is_at_edge = records and not self._first <= records[0].offset <= records[-1].offset < self._end
        if is_at_edge and not batch.is_transactional:
            records = [record for record in records if self._first <= record.offset < self._end]
        # The group id follows the type in a key.
        prefix, part = b"", None
        for record in records:
            key = record[2]
            if key is None or len(key) < _GROUP_AT:
                continue
            # Mostly the partitions of one group are committed together.
            if part is None or not key.startswith(prefix):
                prefix = key[: _GROUP_AT + (key[2] << 8 | key[3])]
                part = self.groups.get(prefix[_GROUP_AT:])
                if part is None:
                    part = self.groups[prefix[_GROUP_AT:]] = GroupPart()
            if key[1] in _OFFSET_TYPES:
                part.commits[key] = record
            else:
                part.add(record)


class GroupNews(NamedTuple):
    """The changes of a group."""

    group_id: str
    view: GroupSnapshot | None  # None if the group has ended
    entries: list[HistoryEntry]
    offsets: dict[tuple[str, int], tuple[int, int]]  # committed offsets
    anew: bool  # `entries` replace all earlier ones, instead of following them
    partition: int = -1
    # Offsets of the records in `partition` that led to the entries; empty for polls.
    entry_offsets: Sequence[int] = ()


@dataclass(slots=True)
class _Known:
    """A group."""

    group_id: str
    partition: int
    # Records before the window by key, the newest first.
    older: dict[bytes, StoredRecord] = field(default_factory=dict)
    records: list[StoredRecord] = field(default_factory=list)
    group: ObservedGroup | None = None
    view: GroupSnapshot | None = None
    removed_ms: int | None = None


class StoredGroups:
    """All groups, computed from their records. For use by one thread.

    `kept_bytes` is the approximate size of the kept records, until `forget_records`. `left_out` is True if
    there are more than MAX_GROUPS groups.
    """

    def __init__(self, names: NamesById) -> None:
        self.kept_bytes = 0
        self.left_out = False
        self._names = names
        self._known: dict[bytes, _Known] = {}
        self._keeps_records = True

    def view(self, group_id: str) -> GroupSnapshot | None:
        """Return a group's view, or None if it is unknown or has ended."""
        known = self._known.get(group_id.encode())
        return None if known is None else known.view

    def append(self, partition: int, part: LogPart) -> Iterator[GroupNews]:
        """Add records that are newer than all earlier ones. Yield the changed groups."""
        for known, of_group in self._of(partition, part):
            records = of_group.all()
            if self._keeps_records:
                known.records += records
                self._charge(records)
            yield self._observe(known, records, anew=False)
            if known.group is None and not self._keeps_records:
                self._known.pop(known.group_id.encode(), None)

    def prepend(self, partition: int, part: LogPart, window_ms: int) -> Iterator[GroupNews]:
        """Add records that are older than all earlier ones. Yield the changed groups."""
        for known, of_group in self._of(partition, part):
            within = list[StoredRecord]()
            older = len(known.older)
            for record in reversed(of_group.all()):
                if record.timestamp >= window_ms:
                    within.append(record)
                elif (key := record.key or b"") not in known.older:
                    known.older[key] = record
                    self._charge([record])
            if within or len(known.older) > older:
                known.records[:0] = reversed(within)
                self._charge(within)
                known.group = known.view = None
                records = [*reversed(known.older.values()), *known.records]
                yield self._observe(known, records, anew=True)

    def forget_records(self) -> None:
        """Free the records, because no older ones follow."""
        self._keeps_records, self.kept_bytes = False, 0
        for key, known in list(self._known.items()):
            known.older, known.records = {}, []
            if known.group is None:
                del self._known[key]

    def _of(self, partition: int, part: LogPart) -> Iterator[tuple[_Known, GroupPart]]:
        """Yield each group in `part` with its records, up to MAX_GROUPS groups."""
        for key, of_group in part.groups.items():
            known = self._known.get(key)
            if known is None and len(self._known) >= MAX_GROUPS:
                self.left_out = True
                continue
            if known is None:
                known = self._known[key] = _Known(key.decode(errors="replace"), partition)
            yield known, of_group

    def _charge(self, records: Iterable[StoredRecord]) -> None:
        self.kept_bytes += sum(_RECORD_BYTES + len(r.key or b"") + len(r.value or b"") for r in records)

    def _observe(self, known: _Known, records: Iterable[StoredRecord], *, anew: bool) -> GroupNews:
        entries, entry_offsets, has_news = list[HistoryEntry](), list[int](), anew
        for record in records:
            try:
                found = observe_stored(
                    known.group, known.group_id, known.partition, record, self._names, known.removed_ms
                )
            except Exception:  # any fault of this code must not stop the other groups
                log.exception("a record cannot be applied", partition=known.partition, offset=record.offset)
                continue
            if found is not None:
                _, seen = found
                entries += seen.history
                entry_offsets += [record.offset] * len(seen.history)
                has_news |= seen.has_news or known.group is None or seen.is_over
                known.group, known.removed_ms = None if seen.is_over else seen.group, seen.removed_ms
        if has_news:
            known.view = None if known.group is None else view_of(known.group, self._names.known)
        return GroupNews(
            known.group_id,
            known.view,
            entries,
            committed_offsets(known.group),
            anew,
            known.partition,
            entry_offsets,
        )


def committed_offsets(group: ObservedGroup | None) -> dict[tuple[str, int], tuple[int, int]]:
    """Return each committed offset with the time of its commit, by topic and partition."""
    topics = {} if group is None else group.offsets
    return {
        (topic, number): (offset.offset, offset.committed_at_ms)
        for topic, offsets in topics.items()
        for number, offset in offsets.items()
    }
