"""Reads a group's history, up to now, from the events topic or from a folder of an observer."""

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
from kafka_why.groups.list_groups import list_groups
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import Record, TopicReader
from kafka_why.why.client_telemetry import NO_TELEMETRY, Telemetry, read_telemetry
from kafka_why.why.segments import generation_before

_LIST_TIMEOUT_MS = 30_000
_MAX_NEAR_NAMES = 5

log = structlog.get_logger()


class HistoryUnavailable(RuntimeError):
    """The error when a group has no history. The message has the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class History:
    """The entries of a group. Some may be duplicates."""

    entries: list[AnyHistoryEntry]
    # (incarnation, seq) of entries that were not read because nothing depends on them.
    unread: frozenset[tuple[str, int]]
    from_start: bool  # the first entry is the first retained one
    records_read: int = 0  # all records, including other groups'
    telemetry: Telemetry = NO_TELEMETRY  # metrics of the members' clients
    notes: Sequence[str] = ()  # about the source
    unnamed: int | None = None  # number of members that no line names, if brokers' logs are the only source


class LiveSource(Protocol):
    """A source of new entries. `interval_s` is the pause between two calls of `more`."""

    interval_s: float

    def more(self) -> list[AnyHistoryEntry]:
        """Return the entries since the last call, perhaps with some earlier ones. Raises KafkaError."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def read_history(
    client_config: ClientConfig, layout: TopicLayout, group_id: str, since_ms: int | None = None
) -> History:
    """Return the entries of a group up to the end of the log at the time of the call.

    With `since_ms`, return only the entries needed for a report on the rebalances that ended at or after that
    time. Raises HistoryUnavailable if the group is unknown or has no retained entry, and KafkaError if no
    broker responds.
    """
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        topic = _GroupLog(reader, layout, group_id)
        if since_ms is None:
            part = History([*topic.entries(topic.begin, topic.end)], frozenset(), from_start=True)
        else:
            part = entries_since(topic, since_ms)
        records_read = reader.records_read
        telemetry = read_telemetry(reader, layout, group_id, part.entries)
    if not part.entries:
        groups = {group.group_id for group in list_groups(client_config, layout, _LIST_TIMEOUT_MS)}
        raise HistoryUnavailable(why_nothing(group_id, groups))
    return replace(part, records_read=records_read, telemetry=telemetry)


def latest_view(client_config: ClientConfig, layout: TopicLayout, group_id: str) -> GroupSnapshot | None:
    """Return the latest view of a group, or None. Raises KafkaError."""
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        return _GroupLog(reader, layout, group_id).view()


def why_nothing(group_id: str, groups: Collection[str]) -> str:
    """Return a message that a group has no history. `groups` are the existing groups."""
    if group_id in groups:
        return f"group {group_id} exists, but its whole history is older than the events topic's retention"
    near = similar_groups(group_id, groups)
    meant = f"; did you mean {', '.join(near)}?" if near else ""
    return f"group {group_id} is unknown: it does not exist and is not in the retained history{meant}"


def similar_groups(group_id: str, groups: Collection[str]) -> list[str]:
    """Return existing group ids that resemble or contain `group_id`, the most similar first."""
    close = difflib.get_close_matches(group_id, sorted(groups), n=_MAX_NEAR_NAMES)
    containing = [name for name in sorted(groups) if group_id.lower() in name.lower()]
    return list(dict.fromkeys([*close, *containing]))[:_MAX_NEAR_NAMES]


class _GroupLog:
    def __init__(self, reader: TopicReader, layout: TopicLayout, group_id: str) -> None:
        number = partition_of(group_id, layout.request_partitions)
        self._reader = reader
        self._group_id = group_id
        self._events = TopicPartition(layout.events_topic, number)
        self._groups = TopicPartition(layout.groups_topic, number)
        self.begin = reader.beginnings([self._events])[self._events]
        self.end = reader.ends([self._events])[self._events]

    def offset_at(self, at_ms: int) -> int:
        offset = self._reader.offsets_at([self._events], at_ms)[self._events]
        return self.end if offset is None else offset

    def entries(self, first: int, end: int) -> Iterator[AnyHistoryEntry]:
        self._reader.start(at={self._events: first})
        for record in self._group_records_to({self._events: end}):
            if record.value is not None:
                yield from entry_in(record.value, self._group_id)

    def view(self) -> GroupSnapshot | None:
        ends = self._reader.ends([self._groups])
        self._reader.start(beginning=[self._groups])
        table = GroupTable(decode_snapshot)
        for record in self._group_records_to(ends):
            try:
                table.apply(record.key, record.value)
            except UNREADABLE as error:
                log.warning("a record of the groups topic cannot be read", key=record.key, error=str(error))
        return next(iter(table.groups), None)

    def _group_records_to(self, ends: dict[TopicPartition, int]) -> Iterator[Record]:
        key = self._group_id.encode()
        return (record for record in self._reader.read_to(ends) if record.key == key)


def entry_in(value: bytes, group_id: str) -> Iterator[AnyHistoryEntry]:
    """Yield the entry in a record's `value`, or nothing if it is unreadable or not about a group."""
    try:
        entry = decode_any_entry(value)
    except UNREADABLE as error:
        log.warning("a history entry cannot be read", group_id=group_id, error=str(error))
        return
    if entry is not None and not isinstance(entry, CoordinatorStarted):
        yield entry


_EVENTS = "events"
# Files may be merged, and so deleted, after they were listed and before they are read.
_TRIES = 5
_Filters = list[tuple[str, str, str]] | None


def read_folder(folder: Path, group_id: str) -> History:
    """Return all entries of a group in the folder.

    Raises HistoryUnavailable if there are none, and OSError if the files cannot be read.
    """
    if not (folder / _EVENTS).is_dir():
        raise HistoryUnavailable(
            f"{folder} has no folder {_EVENTS}: it is not the output of an observer, or it is empty"
        )
    rows = _read(folder, ["batch", "value"], [("group_id", "==", group_id)])
    in_order = sorted(rows, key=lambda row: row["batch"])
    entries = [entry for row in in_order for entry in entry_in(row["value"].encode(), group_id)]
    if not entries:
        known = {row["group_id"] for row in _read(folder, ["group_id"], None)}
        raise HistoryUnavailable(why_nothing(group_id, known))
    return History(entries, frozenset(), from_start=True, records_read=len(rows))


def _read(folder: Path, columns: list[str], filters: _Filters) -> list[dict[str, Any]]:
    for _ in range(_TRIES - 1):
        with suppress(FileNotFoundError):
            return _rows(folder, columns, filters)
    return _rows(folder, columns, filters)


def _rows(folder: Path, columns: list[str], filters: _Filters) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq  # takes a quarter of a second, so only this source imports it
    except ImportError as error:
        raise HistoryUnavailable(
            f"{folder} has Parquet files, which pyarrow reads: pip install 'kafka-why[parquet]'"
        ) from error

    found: list[dict[str, Any]] = pq.read_table(
        folder / _EVENTS, columns=columns, filters=filters
    ).to_pylist()
    return found


# A record's timestamp is from its writer's clock, and at or after its entry's time, which is from a broker's
# clock. The margin is twice the allowed skew (`streaming.service.clock.ticker.MAX_SKEW_MS`).
STAMP_MARGIN_MS = 10_000
_ASSIGNMENTS = 2
_ENDS = (EntryType.STABLE, EntryType.EMPTY)


class GroupLog(Protocol):
    """The entries of one group on its partition of the events topic. Offsets are from `begin` to `end`."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...

    def offset_at(self, at_ms: int) -> int:
        """Return the offset of the first record at or after `at_ms`, or `end`."""
        ...

    def entries(self, first: int, end: int) -> Iterable[AnyHistoryEntry]:
        """Yield the group's entries from offset `first` to before `end`, lazily."""
        ...

    def view(self) -> GroupSnapshot | None:
        """Return the view of a Kafka group, or None."""
        ...


def entries_since(log: GroupLog, since_ms: int) -> History:
    """Return the entries needed for a report of the rebalances that ended at or after `since_ms`.

    A rebalance's moves follow from the last two assignments before it. Each entry has the time when the
    previous rebalance began, so these assignments are found by time. The records between an assignment and
    the next rebalance are read only if a static member returned under another member id.

    All entries are read if the group is a RocketMQ group or has epochs, or had no earlier rebalance.
    """
    low = log.offset_at(since_ms - STAMP_MARGIN_MS)
    found = list(log.entries(low, log.end))
    unread: set[tuple[str, int]] = set()
    view = None if found else log.view()
    complete_from_ms = since_ms  # all entries since this time have been found
    while low > log.begin and not _has_assignments_before(found, since_ms):
        follows = _following_entry(found, view)
        opening_ms = next(
            (entry.at_ms for entry in found if entry.type is EntryType.PREPARING_REBALANCE), None
        )
        if opening_ms is not None and opening_ms < complete_from_ms:
            # The events that led to this rebalance may be just before it.
            complete_from_ms = opening_ms
            at = min(low, log.offset_at(opening_ms - STAMP_MARGIN_MS))
            page, _ = _entries_before(log.entries(at, low), follows)
        else:
            at, complete_from_ms = _further_back(log, low, _last_rebalance_at_ms(found, view))
            page, left_out = _entries_before(log.entries(at, low), follows, _member_ids(found, view))
            unread |= left_out
        found = [*page, *found]
        low = at
    return History(found, frozenset(unread), low <= log.begin)


def _further_back(log: GroupLog, low: int, rebalance_ms: int | None) -> tuple[int, int]:
    """Return the offset to read from next, and the time since which all entries are then found."""
    # The beginning of the rebalance, if that is known and before `low`, else of the log.
    at = low if rebalance_ms is None else log.offset_at(rebalance_ms - STAMP_MARGIN_MS)
    return (log.begin, 0) if rebalance_ms is None or at >= low else (at, rebalance_ms)


def _has_assignments_before(found: list[AnyHistoryEntry], since_ms: int) -> bool:
    if not found or not isinstance(found[-1], HistoryEntry):
        return False
    if not isinstance(found[0], HistoryEntry) or found[0].seq == 1:
        return True
    if any(isinstance(entry, HistoryEntry) and entry.group_type in BY_EPOCHS for entry in found):
        return False  # each entry has one member's partitions, and the entry needed may be the oldest
    ended = [e for e in found if isinstance(e, HistoryEntry) and e.type in _ENDS and e.at_ms < since_ms]
    return len({(e.incarnation, e.seq) for e in ended}) >= _ASSIGNMENTS


def _last_rebalance_at_ms(found: list[AnyHistoryEntry], view: GroupSnapshot | None) -> int | None:
    if not found:
        return None if view is None else view.last_rebalance_at_ms
    return found[0].last_rebalance_at_ms if isinstance(found[0], HistoryEntry) else None


class _FollowingEntry(NamedTuple):
    """The entry after the entries to search, with the group's state and generation before it."""

    incarnation: str
    seq: int
    state: str
    generation: int


def _following_entry(found: list[AnyHistoryEntry], view: GroupSnapshot | None) -> _FollowingEntry | None:
    if not found:
        return (
            None
            if view is None
            else _FollowingEntry(view.incarnation, view.seq + 1, view.state, view.generation)
        )
    first = found[0]
    if isinstance(first, HistoryEntry):
        return _FollowingEntry(first.incarnation, first.seq, first.from_state, generation_before(first))
    return _FollowingEntry(first.incarnation, first.seq, "", 0)


def _member_ids(found: list[AnyHistoryEntry], view: GroupSnapshot | None) -> frozenset[str] | None:
    """Return a set that includes all members before `found`, or None if unknown."""
    if not found:
        return None if view is None else frozenset(member.member_id for member in view.members)
    for place, entry in enumerate(found):
        if not isinstance(entry, HistoryEntry):
            return None
        if entry.type is EntryType.TAKEN_OVER and entry.members is not None:
            return frozenset(entry.members)
        if entry.type is EntryType.PREPARING_REBALANCE and entry.waiting_for is not None:
            before = [e for e in found[: place + 1] if isinstance(e, HistoryEntry)]
            led_to = [e.member_id for e in before if e.cause == entry.cause and e.member_id]
            return frozenset([*entry.waiting_for, *led_to])
    return None


def _entries_before(
    entries: Iterable[AnyHistoryEntry],
    follows: _FollowingEntry | None,
    member_ids: frozenset[str] | None = None,
) -> tuple[list[AnyHistoryEntry], set[tuple[str, int]]]:
    """Return the entries before `follows`, and the (incarnation, seq) of entries that need not be read.

    These are the entries between the last rebalance and `follows`, if it assigned partitions only to
    `member_ids`.
    """
    page: list[AnyHistoryEntry] = []
    for entry in entries:
        page.append(entry)
        if follows is None:
            continue
        if (entry.incarnation, entry.seq + 1) == follows[:2]:
            break
        if member_ids is not None and isinstance(entry, HistoryEntry) and _is_last_end(entry, follows):
            holders = _holders(entry)
            if holders is not None and holders <= member_ids:
                return page, {(entry.incarnation, seq) for seq in range(entry.seq + 1, follows.seq)}
    return page, set()


def _is_last_end(entry: HistoryEntry, follows: _FollowingEntry) -> bool:
    """Return True if `entry` ends the last rebalance before `follows`."""
    is_earlier = entry.incarnation == follows.incarnation and entry.seq < follows.seq
    # Each rebalance forms a generation.
    is_as_found = (entry.to_state, entry.generation) == (follows.state, follows.generation)
    return entry.type in _ENDS and is_earlier and is_as_found


def _holders(end: HistoryEntry) -> set[str] | None:
    """Return the members with an assignment at the end of a rebalance, or None if unknown."""
    if end.type is EntryType.EMPTY:
        return set()
    return None if end.assignments is None else set(end.assignments)
