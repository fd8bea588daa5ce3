"""Reads a group's history, up to now, from the events topic of a coordinator or an observer, or from the
output folder of an observer.

A group's view is the latest snapshot of its state, on the groups topic.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import structlog
from kafka import TopicPartition

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.history_reader import (
    AnyHistoryEntry,
    CoordinatorStarted,
    GroupTable,
    decode_any_entry,
    decode_snapshot,
)
from kafka_why.contract.kafka.history import BY_EPOCHS, EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.groups.list_groups import apply_view, list_groups
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import ClientError, Record, TopicReader
from kafka_why.why.client_telemetry import NO_TELEMETRY, Telemetry, read_telemetry
from kafka_why.why.segments import generation_before

_LIST_TIMEOUT_MS = 30_000
_MAX_SUGGESTED = 5  # group ids

log = structlog.get_logger()


class HistoryUnavailable(ClientError):
    """The error when a group has no history. The message has the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class History:
    """The entries of a group. Some may be duplicates."""

    entries: list[AnyHistoryEntry]  # in the log's order
    # (incarnation, seq) of entries that were not read because nothing depends on them.
    unread: frozenset[tuple[str, int]]
    from_start: bool  # True if no older entry of the group is retained
    records_read: int = 0  # number of all records, including other groups'
    telemetry: Telemetry = NO_TELEMETRY  # metrics of the members' clients
    notes: Sequence[str] = ()  # about the source
    # If brokers' logs are the only source, the number of current members that no line names; else None.
    unnamed: int | None = None


class LiveSource(Protocol):
    """A source of a group's new entries."""

    interval_s: float  # pause between two calls of `more`

    def more(self) -> list[AnyHistoryEntry]:
        """Return the entries since the last call, perhaps with some earlier ones. Raises KafkaError."""

    def close(self) -> None:
        """Close the connections."""


def read_history(
    client_config: ClientConfig, layout: TopicLayout, group_id: str, since_ms: int | None = None
) -> History:
    """Return the entries of a group up to the end of the log at the time of the call.

    With `since_ms`, return only the entries needed for a report on the rebalances that ended at or after that
    time. Raises HistoryUnavailable if the group is unknown or has no retained entry, and KafkaError if no
    broker responds.
    """
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        group_log = _TopicGroupLog(reader, layout, group_id)
        if since_ms is None:
            entries = [*group_log.entries(group_log.begin, group_log.end)]
            history = History(entries, unread=frozenset(), from_start=True)
        else:
            history = entries_since(group_log, since_ms)
        records_read = reader.records_read
        telemetry = read_telemetry(reader, layout, group_id, history.entries)
    if not history.entries:
        groups = {group.group_id for group in list_groups(client_config, layout, _LIST_TIMEOUT_MS)}
        raise HistoryUnavailable(no_history_text(group_id, groups))
    return replace(history, records_read=records_read, telemetry=telemetry)


def latest_view(client_config: ClientConfig, layout: TopicLayout, group_id: str) -> GroupSnapshot | None:
    """Return the latest view of a Kafka group, or None if it does not exist. Raises KafkaError."""
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        return _TopicGroupLog(reader, layout, group_id).view()


def no_history_text(group_id: str, groups: Collection[str]) -> str:
    """Return a message with the reason why a group has no history. `groups` are the ids of known groups."""
    if group_id in groups:
        return f"group {group_id} exists, but its whole history is older than the events topic's retention"
    question = did_you_mean(group_id, groups)
    return f"group {group_id} is unknown: it does not exist and is not in the retained history{question}"


def did_you_mean(group_id: str, groups: Collection[str]) -> str:
    """Return a question with the ids that resemble or contain `group_id`, the most similar first, or ""."""
    similar = difflib.get_close_matches(group_id, sorted(groups), n=_MAX_SUGGESTED)
    containing = [name for name in sorted(groups) if group_id.lower() in name.lower()]
    suggested = list(dict.fromkeys([*similar, *containing]))[:_MAX_SUGGESTED]
    return f"; did you mean {', '.join(suggested)}?" if suggested else ""


class _TopicGroupLog:
    """A `GroupLog` that reads the events and groups topics with `reader`.

    `end` is the end of the log when the object was created.
    """

    def __init__(self, reader: TopicReader, layout: TopicLayout, group_id: str) -> None:
        number = partition_of(group_id, layout.request_partitions)
        self._reader = reader
        self._group_id = group_id
        # The group's partitions of the events and groups topics.
        self._events = TopicPartition(layout.events_topic, number)
        self._groups = TopicPartition(layout.groups_topic, number)
        self.begin = reader.beginnings([self._events])[self._events]
        self.end = reader.ends([self._events])[self._events]

    def offset_at(self, at_ms: int) -> int:
        offset = self._reader.offsets_at([self._events], at_ms)[self._events]
        return self.end if offset is None else offset

    def entries(self, first: int, end: int) -> Iterator[AnyHistoryEntry]:
        self._reader.start(at={self._events: first})
        for record in self._group_records_until({self._events: end}):
            if record.value is not None:
                yield from entry_in(record.value, self._group_id)

    def view(self) -> GroupSnapshot | None:
        ends = self._reader.ends([self._groups])
        self._reader.start(beginning=[self._groups])
        table = GroupTable(decode_snapshot)
        for record in self._group_records_until(ends):
            apply_view(table, record)
        return next(iter(table.groups), None)

    def _group_records_until(self, ends: dict[TopicPartition, int]) -> Iterator[Record]:
        """Return the group's records from the reader's position to before the offsets `ends`."""
        key = self._group_id.encode()
        return (record for record in self._reader.read_to(ends) if record.key == key)


def entry_in(value: bytes, group_id: str) -> Iterator[AnyHistoryEntry]:
    """Yield the entry in a record's `value`. Yield nothing if it is unreadable or not about a group.

    `group_id` is the record's key, for the log.
    """
    try:
        entry = decode_any_entry(value)
    except UNREADABLE as error:
        log.warning("a history entry cannot be read", group_id=group_id, error=str(error))
        return
    if entry is not None and not isinstance(entry, CoordinatorStarted):
        yield entry


_EVENTS = "events"  # subfolder with the history, in Parquet files
# Files may be merged, and so deleted, after they were listed and before they are read.
_READ_ATTEMPTS = 5
_Filters = list[tuple[str, str, str]] | None  # of PyArrow: (column, operator, value)


def read_folder(folder: Path, group_id: str) -> History:
    """Return all entries of a group in an observer's output folder.

    Raises HistoryUnavailable if there are none, and OSError if the files cannot be read.
    """
    # An observer creates the folder some time before its first file.
    if next((folder / _EVENTS).rglob("*.parquet"), None) is None:
        raise HistoryUnavailable(
            f"{folder} has no files in {_EVENTS}: it is not the output of an observer, or it is empty"
        )
    rows = _read_with_retries(folder, ["batch", "value"], filters=[("group_id", "==", group_id)])
    in_order = sorted(rows, key=lambda row: row["batch"])
    entries = [entry for row in in_order for entry in entry_in(row["value"].encode(), group_id)]
    if not entries:
        groups = {row["group_id"] for row in _read_with_retries(folder, ["group_id"], filters=None)}
        raise HistoryUnavailable(no_history_text(group_id, groups))
    return History(entries, unread=frozenset(), from_start=True, records_read=len(rows))


def _read_with_retries(folder: Path, columns: list[str], filters: _Filters) -> list[dict[str, Any]]:
    """Return the rows of all files of the history. Read all of them again if a file was deleted meanwhile."""
    for _ in range(_READ_ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            return _read_rows(folder, columns, filters)
    return _read_rows(folder, columns, filters)


def _read_rows(folder: Path, columns: list[str], filters: _Filters) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq  # takes a quarter of a second, so only this source imports it
    except ImportError as error:
        raise HistoryUnavailable(
            f"{folder} has Parquet files, which the package pyarrow reads: pip install pyarrow"
        ) from error

    table = pq.read_table(folder / _EVENTS, columns=columns, filters=filters)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


# Offsets are looked up by records' timestamps. A record is written after its entry's time. But its timestamp
# is from the writer's clock and the entry's time from a broker's, so the timestamp may be the earlier one.
# The margin is twice the allowed skew (`streaming.service.clock.ticker.MAX_SKEW_MS`).
STAMP_MARGIN_MS = 10_000
# The number of assignments from which a rebalance's moves follow (`kafka_why.why.moves`).
_ASSIGNMENTS_NEEDED = 2
_REBALANCE_ENDS = (EntryType.STABLE, EntryType.EMPTY)


class GroupLog(Protocol):
    """The entries of one group on its partition of the events topic. Offsets are from `begin` to `end`."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...

    def offset_at(self, at_ms: int) -> int:
        """Return the offset of the first record at or after `at_ms`, or `end`."""

    def entries(self, first: int, end: int) -> Iterable[AnyHistoryEntry]:
        """Yield the group's entries from offset `first` to before `end`, lazily."""

    def view(self) -> GroupSnapshot | None:
        """Return the group's view, or None if it does not exist or is a RocketMQ group."""


def entries_since(log: GroupLog, since_ms: int) -> History:
    """Return the entries needed for a report of the rebalances that ended at or after `since_ms`.

    A rebalance's moves follow from the last two assignments before it. Each entry has the time when the
    previous rebalance began, so the loop goes back from rebalance to rebalance by these times. The records
    between an assignment and the next rebalance are read only if a static member may have returned under
    another member id.

    All entries are read if the group is a RocketMQ group or has epochs, or had no earlier rebalance.
    """
    first_offset = log.offset_at(since_ms - STAMP_MARGIN_MS)  # read so far, up to the end of the log
    entries = list(log.entries(first_offset, log.end))
    unread: set[tuple[str, int]] = set()
    view = None if entries else log.view()
    complete_from_ms = since_ms  # all entries since this time have been read
    while first_offset > log.begin and not _has_assignments_before(entries, since_ms):
        following = _following_entry(entries, view)
        opening_ms = next((e.at_ms for e in entries if e.type is EntryType.PREPARING_REBALANCE), None)
        if opening_ms is not None and opening_ms < complete_from_ms:
            # The events that led to the earliest rebalance may be just before it.
            complete_from_ms = opening_ms
            start = min(first_offset, log.offset_at(opening_ms - STAMP_MARGIN_MS))
            earlier, _ = _entries_before(log.entries(start, first_offset), following)
        else:
            start, complete_from_ms = _further_back(log, first_offset, _last_rebalance_at_ms(entries, view))
            members = _member_ids(entries, view)
            earlier, skipped = _entries_before(log.entries(start, first_offset), following, members)
            unread |= skipped
        entries = [*earlier, *entries]
        first_offset = start
    return History(entries, frozenset(unread), from_start=first_offset <= log.begin)


def _further_back(log: GroupLog, first_offset: int, rebalance_ms: int | None) -> tuple[int, int]:
    """Return the next offset to read from, and the time since which no entry is then missing.

    `rebalance_ms` is the time when the previous rebalance began, or None if unknown. Return its offset and
    this time if the offset is before `first_offset`, from which on the log is read already. Otherwise return
    the beginning of the log.
    """
    if rebalance_ms is not None:
        start = log.offset_at(rebalance_ms - STAMP_MARGIN_MS)
        if start < first_offset:
            return start, rebalance_ms
    return log.begin, 0


def _has_assignments_before(entries: list[AnyHistoryEntry], since_ms: int) -> bool:
    """Return True if `entries` have the last two assignments before `since_ms`, or all that exist."""
    if not entries or not isinstance(entries[-1], HistoryEntry):
        return False  # for a RocketMQ group, all entries are needed
    if not isinstance(entries[0], HistoryEntry) or entries[0].seq == 1:
        return True  # `entries` reach back to the Kafka group's creation
    if any(isinstance(entry, HistoryEntry) and entry.group_type in BY_EPOCHS for entry in entries):
        return False  # each entry has one member's partitions, and the entry needed may be the oldest
    assignments = {
        (entry.incarnation, entry.seq)  # an entry may be in the log twice
        for entry in entries
        if isinstance(entry, HistoryEntry) and entry.type in _REBALANCE_ENDS and entry.at_ms < since_ms
    }
    return len(assignments) >= _ASSIGNMENTS_NEEDED


def _last_rebalance_at_ms(entries: list[AnyHistoryEntry], view: GroupSnapshot | None) -> int | None:
    """Return when the last rebalance before `entries` began, or None if unknown or if there was none."""
    if not entries:
        return None if view is None else view.last_rebalance_at_ms
    return entries[0].last_rebalance_at_ms if isinstance(entries[0], HistoryEntry) else None


class _FollowingEntry(NamedTuple):
    """The entry that directly follows the entries still to be read."""

    incarnation: str
    seq: int
    state: str  # of the group before this entry
    generation: int  # of the group before this entry


def _following_entry(entries: list[AnyHistoryEntry], view: GroupSnapshot | None) -> _FollowingEntry | None:
    """Return the entry that directly follows the entries still to be read, or None if unknown.

    It is the first of `entries`, because the log is read backward from its end. Without `entries`, it is the
    next entry that the group will get, after the last one that its view includes.
    """
    if not entries:
        if view is None:
            return None
        return _FollowingEntry(view.incarnation, view.seq + 1, view.state, view.generation)
    first = entries[0]
    if isinstance(first, HistoryEntry):
        return _FollowingEntry(first.incarnation, first.seq, first.from_state, generation_before(first))
    return _FollowingEntry(first.incarnation, first.seq, state="", generation=0)  # a RocketMQ group


def _member_ids(entries: list[AnyHistoryEntry], view: GroupSnapshot | None) -> frozenset[str] | None:
    """Return a set that includes all members before `entries`, or None if unknown."""
    if not entries:
        return None if view is None else frozenset(member.member_id for member in view.members)
    for index, entry in enumerate(entries):
        if not isinstance(entry, HistoryEntry):
            return None
        if entry.type is EntryType.TAKEN_OVER and entry.members is not None:
            return frozenset(entry.members)
        if entry.type is EntryType.PREPARING_REBALANCE and entry.waiting_for is not None:
            # A member whose removal caused the rebalance is not awaited, but was a member before.
            up_to_entry = [e for e in entries[: index + 1] if isinstance(e, HistoryEntry)]
            causing = [e.member_id for e in up_to_entry if e.cause == entry.cause and e.member_id]
            return frozenset([*entry.waiting_for, *causing])
    return None


def _entries_before(
    entries: Iterable[AnyHistoryEntry],
    following: _FollowingEntry | None,
    member_ids: frozenset[str] | None = None,
) -> tuple[list[AnyHistoryEntry], set[tuple[str, int]]]:
    """Return the entries before `following`, and the (incarnation, seq) of those that need not be read.

    The entries between the end of the last rebalance and `following` need not be read if this rebalance
    assigned partitions only to `member_ids`, the members at `following`: then no static member has returned
    under another member id.
    """
    page: list[AnyHistoryEntry] = []
    for entry in entries:
        page.append(entry)
        if following is None:
            continue
        if entry.incarnation == following.incarnation and entry.seq + 1 == following.seq:
            break  # no entry before `following` is left to read
        if (
            member_ids is not None
            and isinstance(entry, HistoryEntry)
            and _ends_rebalance_before(entry, following)
        ):
            assigned = _members_with_assignment(entry)
            if assigned is not None and assigned <= member_ids:
                return page, {(entry.incarnation, seq) for seq in range(entry.seq + 1, following.seq)}
    return page, set()


def _ends_rebalance_before(entry: HistoryEntry, following: _FollowingEntry) -> bool:
    """Return True if `entry` ends the last rebalance before `following`."""
    is_earlier = entry.incarnation == following.incarnation and entry.seq < following.seq
    # Each rebalance forms a new generation, so no rebalance came between if the generation is the same.
    is_unchanged = (entry.to_state, entry.generation) == (following.state, following.generation)
    return entry.type in _REBALANCE_ENDS and is_earlier and is_unchanged


def _members_with_assignment(end: HistoryEntry) -> set[str] | None:
    """Return the members to which a rebalance assigned partitions, or None if unknown. `end` is its end."""
    if end.type is EntryType.EMPTY:
        return set()
    return None if end.assignments is None else set(end.assignments)
