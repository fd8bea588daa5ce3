"""A group's history from the events topic, as of now."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from kafka import TopicPartition

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.any_group import AnyHistoryEntry
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.history_reader import (
    CoordinatorStarted,
    GroupTable,
    decode_any_entry,
    decode_snapshot,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.groups.list_groups import list_groups
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import Record, TopicReader
from kafka_why.why.client_telemetry import NOTHING_SAID, Telemetry
from kafka_why.why.recent_history import RecentHistory, entries_since
from kafka_why.why.telemetry import read_telemetry

_LIST_TIMEOUT_MS = 30_000
_MAX_NEAR_NAMES = 5

log = structlog.get_logger()


class HistoryUnavailable(RuntimeError):
    """There is no history of the group; the message says why, and what to try."""


@dataclass(frozen=True, slots=True)
class History:
    """A group's entries; some may be duplicates.

    `unread` and `from_start` are those of `kafka_why.why.recent_history.RecentHistory`. `records_read` counts
    all records that were read to find the entries, including other groups' records. `telemetry` is what the
    members' clients said as of the call. `notes` say what there is to say of the source. `unnamed` is the
    number of members that no line names if brokers' logs are the only source, else None.
    """

    entries: list[AnyHistoryEntry]
    unread: frozenset[tuple[str, int]]
    from_start: bool
    records_read: int
    telemetry: Telemetry = NOTHING_SAID
    notes: Sequence[str] = ()
    unnamed: int | None = None


class LiveSource(Protocol):
    """A source of new entries. `interval_s` is the pause between two calls of `more`."""

    interval_s: float

    def more(self) -> list[AnyHistoryEntry]:
        """Return the entries since the last call, some perhaps again. Raises KafkaError."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def read_history(
    client_config: ClientConfig, layout: TopicLayout, group_id: str, since_ms: int | None = None
) -> History:
    """Return the entries of a group up to the last one at the time of the call.

    These are all retained entries or, with `since_ms`, those that a report of rebalances that ended at or
    after that time needs. Raises HistoryUnavailable if the group is unknown or no entry of it is retained,
    and KafkaError if no broker responds.
    """
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        topic = _GroupLog(reader, layout, group_id)
        if since_ms is None:
            part = RecentHistory(list(topic.entries(topic.begin, topic.end)), frozenset(), from_start=True)
        else:
            part = entries_since(topic, since_ms)
        records_read = reader.records_read
        telemetry = read_telemetry(reader, layout, group_id, part.entries)
    if not part.entries:
        groups = {group.group_id for group in list_groups(client_config, layout, _LIST_TIMEOUT_MS)}
        raise HistoryUnavailable(why_nothing(group_id, groups))
    return History(*part, records_read, telemetry)


def latest_view(client_config: ClientConfig, layout: TopicLayout, group_id: str) -> GroupSnapshot | None:
    """Return the latest view of a group, None if there is none. Raises KafkaError if no broker responds."""
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        return _GroupLog(reader, layout, group_id).view()


def why_nothing(group_id: str, groups: Collection[str]) -> str:
    """Return the message for a group without history; `groups` are the existing groups."""
    if group_id in groups:
        return f"group {group_id} exists, but its whole history is older than the events topic's retention"
    near = near_names(group_id, groups)
    meant = f"; did you mean {', '.join(near)}?" if near else ""
    return f"group {group_id} is unknown: it does not exist and is not in the retained history{meant}"


def near_names(group_id: str, groups: Collection[str]) -> list[str]:
    """Return existing group ids similar to `group_id`, the most similar first."""
    close = difflib.get_close_matches(group_id, sorted(groups), n=_MAX_NEAR_NAMES)
    holding = [name for name in sorted(groups) if group_id.lower() in name.lower()]
    return list(dict.fromkeys([*close, *holding]))[:_MAX_NEAR_NAMES]


class _GroupLog:
    """A group's `kafka_why.why.recent_history.GroupLog`, read from the brokers."""

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
        for record in self._of_group({self._events: end}):
            if record.value is not None:
                yield from entry_in(record.value, self._group_id)

    def view(self) -> GroupSnapshot | None:
        ends = self._reader.ends([self._groups])
        self._reader.start(beginning=[self._groups])
        table = GroupTable(decode_snapshot)
        for record in self._of_group(ends):
            try:
                table.apply(record.key, record.value)
            except UNREADABLE as error:
                log.warning("a record of the groups topic cannot be read", key=record.key, error=str(error))
        return next(iter(table.groups), None)

    def _of_group(self, ends: dict[TopicPartition, int]) -> Iterator[Record]:
        key = self._group_id.encode()
        return (record for record in self._reader.read_to(ends) if record.key == key)


def entry_in(value: bytes, group_id: str) -> Iterator[AnyHistoryEntry]:
    """Yield the entry that a record has, none if it cannot be read or is about no group."""
    try:
        entry = decode_any_entry(value)
    except UNREADABLE as error:
        log.warning("a history entry cannot be read", group_id=group_id, error=str(error))
        return
    if entry is not None and not isinstance(entry, CoordinatorStarted):
        yield entry


# A group's history from the folder of an observer that writes files (docs/observe.md).


_EVENTS = "events"
# Files that were listed can be merged before they are read.
_TRIES = 5
_Filters = list[tuple[str, str, str]] | None


def read_folder(folder: Path, group_id: str) -> History:
    """Return all entries of a group in the folder.

    Raises HistoryUnavailable if there are none, and OSError if the files cannot be read.
    """
    if not (folder / _EVENTS).is_dir():
        raise HistoryUnavailable(
            f"{folder} has no {_EVENTS}: it is not the output of an observer, or is empty"
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
        import pyarrow.parquet as pq  # a quarter of a second, which other sources need not wait
    except ImportError as error:
        raise HistoryUnavailable(
            f"{folder} has Parquet files, which pyarrow reads: pip install 'kafka-why[parquet]'"
        ) from error

    found: list[dict[str, Any]] = pq.read_table(
        folder / _EVENTS, columns=columns, filters=filters
    ).to_pylist()
    return found
