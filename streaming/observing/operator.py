"""The operator that observes groups. Spark calls it with the new records of one shard (groups that share a
keyed state), and with their sightings: polls that showed one of these groups rebalancing.

It has no deadlines and reads no clock: its output depends only on the records so far.
"""

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pandas as pd
from msgspec import Struct
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import decode_observed, encode_observed
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import (
    UNREADABLE,
    DeadLetter,
    Reason,
    encode,
    offset_key,
    request_id,
)
from kafka_why.contract.kafka.history import HistoryEntry, OffsetChange
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC, TopicLayout
from kafka_why.contract.sightings import decode_sighting
from kafka_why.observed.consumer_offsets.decode import GroupRecord, decode
from kafka_why.observed.consumer_offsets.schemas import UnknownRecord
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import Observation, RecordPosition
from kafka_why.observed.records import topic_ids_in
from kafka_why.observed.step import observe, observe_rebalancing
from kafka_why.observed.view import view_of
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import NamesById, Record, TopicReader, names_on
from kafka_why.wire.primitives import ProtocolError
from records.truncation import encode_event, encode_view
from streaming.query.admission import LogMessage, LogRow
from streaming.query.operator import in_log_order
from streaming.query.output import OutputRows
from streaming.query.output_values import committed_offset, dead_letter
from streaming.service.topics import TopicsError

LAST_RECORDS = 200
"""The number of records at the end of a partition that are searched for the newest view."""
_TIMEOUT_MS = 30_000
# Length of the observer's id, a prefix of its namespace.
_ID_CHARS = 8


class _View(Struct, frozen=True):
    """The part of `kafka_why.contract.kafka.snapshot.GroupSnapshot` that names the observer."""

    incarnation: str


_view = msgspec.json.Decoder(_View)


def observer_id(namespace: str) -> str:
    """Return the id of the observer whose checkpoint has this `member_id_namespace`."""
    return namespace[:_ID_CHARS]


def incarnation(record_id: str, observer: str) -> str:
    """Return the incarnation of a group that the observer with the id `observer` first saw in the record
    `record_id`. The incarnation distinguishes the group from an earlier one with the same name.
    """
    return f"{record_id}@{observer}"


def check_topics_are_ours(client_config: ClientConfig, layout: TopicLayout, folder: Path) -> None:
    """Raise TopicsError if another observer wrote the newest views on the topics.

    Raise FolderError if the checkpoint in the folder cannot be read. May raise KafkaError.
    """
    pinned = Checkpoint.at(folder).pinned()
    ours = None if pinned is None else observer_id(pinned.member_id_namespace)
    others = writers(_newest_records(client_config, layout)) - {ours}
    if others:
        folders_owner = "a new folder" if ours is None else f"that of {ours}"
        raise TopicsError(
            f"another observer writes {layout.groups_topic}: its id is {' and '.join(sorted(others))}, and "
            f"{folder} is {folders_owner}. Give that observer's "
            "--data-dir, or another --prefix. If its folder is lost, delete the topics with this prefix"
        )


def writers(records: Iterable[Record]) -> set[str]:
    """Return the ids of the observers that wrote the newest view of each partition.

    Each partition's records are in the order of their offsets.
    """
    newest = {}
    for record in records:
        if record.value is not None:
            view = _view.decode(record.value)
            _, _, newest[record.partition] = view.incarnation.rpartition("@")
    return set(newest.values())


def _newest_records(client_config: ClientConfig, layout: TopicLayout) -> list[Record]:
    """Return the last records of each partition of the groups topic, at most LAST_RECORDS each."""
    with TopicReader(
        client_config, max_record_bytes=layout.response_record_max_bytes, timeout_ms=_TIMEOUT_MS
    ) as reader:
        partitions = reader.partitions_of(layout.groups_topic)
        ends, beginnings = reader.ends(partitions), reader.beginnings(partitions)
        reader.start(at={p: max(beginnings[p], end - LAST_RECORDS) for p, end in ends.items()})
        return [*reader.read_to(ends, timeout_ms=_TIMEOUT_MS)]


class ObservedOutput(OutputRows):
    """The output records of one call of the operator. An observer has the same topics as a coordinator."""

    def __init__(self, layout: TopicLayout) -> None:
        super().__init__()
        self._layout = layout
        # The last change in this call, by group id, and by topic and partition, with the id of its record and
        # the group's incarnation. The offsets topic is compacted, so earlier changes are not written.
        self._offsets: dict[str, dict[tuple[str, int], tuple[OffsetChange, str, str]]] = {}

    def add_entry(self, entry: HistoryEntry) -> None:
        """Add an entry of a group's history."""
        value = encode_event(entry, self._layout.view_max_bytes)
        self.add(self._layout.events_topic, value, entry.group_id.encode())

    def collect_offset(self, group: ObservedGroup, change: OffsetChange, record: str) -> None:
        """Collect a change of an offset for `add_offsets`. `record` is the id of the change's record."""
        last = (change, record, group.incarnation)
        self._offsets.setdefault(group.group_id, {})[change.topic, change.partition] = last

    def add_offsets(self, group_id: str) -> None:
        """Add the group's offsets that changed in this call, all to one partition of the topic."""
        partition = partition_of(group_id, self._layout.request_partitions)
        for (topic, number), (change, record, group_incarnation) in self._offsets.pop(group_id, {}).items():
            committed = committed_offset(group_id, group_incarnation, change, record)
            value = None if committed is None else encode(committed)
            self.add(self._layout.offsets_topic, value, offset_key(group_id, topic, number), partition)

    def add_view(self, group: ObservedGroup, names: Mapping[bytes, str]) -> None:
        """Add the group's latest view."""
        value = encode_view(view_of(group, names), self._layout.view_max_bytes)
        self.add(self._layout.groups_topic, value, group.group_id.encode())

    def add_tombstone(self, group_id: str) -> None:
        """Add the tombstone of a group that no longer exists."""
        self.add(self._layout.groups_topic, None, group_id.encode())

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Add a record that could not be read or applied."""
        self.add(self._layout.dead_letters_topic, encode(letter), letter.key)


SOURCE = KAFKAS_OFFSETS_TOPIC
SIGHTINGS = -1
"""The partition number of rows that are sightings instead of records of `__consumer_offsets`."""


@dataclass(frozen=True, slots=True)
class ObservingOperator:
    """The function for applyInPandasWithState. Spark sends it to Python workers.

    `observer` is the id of this observer, which is part of each group's incarnation.
    """

    client_config: ClientConfig
    layout: TopicLayout
    observer: str

    def __call__(
        self, key: tuple[int], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        call = ObservingCall(
            self.layout, self.observer, names_on(self.client_config), f"shard {key[0]}", state
        )
        yield from call.apply(in_log_order(frames))
        yield from call.finish()


class ObservingCall:
    """A call of the operator. It decodes the shard's groups that have records, applies the records, and
    writes the groups back.
    """

    def __init__(
        self, layout: TopicLayout, observer: str, names: NamesById, shard_name: str, state: SparkGroupState
    ) -> None:
        self._layout = layout
        self._observer = observer
        self._names = names
        self._state = state
        self._output = ObservedOutput(layout)
        # The groups by id: all as the state has them, and those that this call has decoded, None for a
        # missing one.
        self._entries: dict[str, codec.StoredGroup] = {}
        if state.exists:
            version, payload = state.get
            self._entries = codec.read_row(shard_name, int(version), bytes(payload))
        self._decoded: dict[str, ObservedGroup | None] = {}
        self._view_changed: set[str] = set()  # ids of groups whose view changed, or that ended
        self._removed_ms: dict[str, int | None] = {}  # `Observation.removed_ms` of each group

    def apply(self, rows: Iterable[LogRow]) -> Iterator[pd.DataFrame]:
        """Apply the rows, records and sightings, in the order of `by_time`."""
        for row in by_time(rows):
            if row.partition == SIGHTINGS:
                self._apply_sighting(row)
            else:
                self._apply_record(row)
            if self._output.is_full:
                yield from self._output.frame()

    def _apply_record(self, row: LogRow) -> None:
        """Apply a record of `__consumer_offsets`, or dead-letter it if it cannot be decoded."""
        record_id = request_id(SOURCE, row.partition, row.offset)
        try:
            decoded = decode(row.key, row.value or None)
        except UnknownRecord as error:
            self._dead_letter(row, record_id, Reason.UNSUPPORTED_VERSION, str(error))
            return
        except ProtocolError as error:
            self._dead_letter(row, record_id, Reason.INVALID_RECORD, str(error))
            return
        self._observe(row, record_id, decoded)

    def _apply_sighting(self, row: LogRow) -> None:
        """Apply a sighting to its group. Ignore it if the group does not exist."""
        record_id = request_id(self._layout.sightings_topic, 0, row.offset)
        try:
            group_id, sighting = decode_sighting(row.key, row.value, row.at_ms)
        except (*UNREADABLE, ValueError) as error:
            self._dead_letter(row, record_id, Reason.INVALID_RECORD, str(error))
            return
        group = self._decode_group(group_id)
        if group is not None:
            at = self._position(row, record_id)
            self._run_step(row, record_id, group, lambda: observe_rebalancing(group, sighting, at))

    def _observe(self, row: LogRow, record_id: str, decoded: GroupRecord) -> None:
        """Apply a decoded record of `__consumer_offsets` to its group."""
        group_id, content = decoded
        group = self._decode_group(group_id)
        if topic_ids := topic_ids_in(content):
            self._names.find(topic_ids)
        at = self._position(row, record_id)
        names, removed_ms = self._names.known, self._removed_ms.get(group_id)
        self._run_step(
            row, record_id, group, lambda: observe(group, group_id, content, at, names, removed_ms)
        )

    def _position(self, row: LogRow, record_id: str) -> RecordPosition:
        # The step uses the incarnation only if a group begins with this record.
        return RecordPosition(row.at_ms, record_id, incarnation(record_id, self._observer))

    def _run_step(
        self, row: LogRow, record_id: str, group: ObservedGroup | None, step: Callable[[], Observation]
    ) -> None:
        """Run a step of the group, and emit its effects. Dead-letter the record if the step fails."""
        try:
            observation = step()
        except Exception:  # noqa: BLE001 - any fault of this code
            # The error must not stop the other groups. A gap in the history's numbers shows that an entry may
            # be missing.
            if group is not None:
                group.seq += 1
            self._dead_letter(row, record_id, Reason.HANDLER_FAILED, traceback.format_exc())
            return
        self._emit(observation, record_id)

    def _emit(self, observation: Observation, record_id: str) -> None:
        """Add a step's effects to the output, and store the group after the step, or None if it has ended."""
        group = observation.group
        for entry in observation.history:
            self._output.add_entry(entry)
        for change in observation.offsets:
            self._output.collect_offset(group, change, record_id)
        if observation.view_changed or observation.is_over:
            self._view_changed.add(group.group_id)
        self._decoded[group.group_id] = None if observation.is_over else group
        self._removed_ms[group.group_id] = observation.removed_ms

    def _decode_group(self, group_id: str) -> ObservedGroup | None:
        """Return the group, decoded once per call, or None if it does not exist."""
        if group_id not in self._decoded:
            entry = self._entries.get(group_id)
            group = None if entry is None else decode_observed(group_id, entry)
            self._decoded[group_id] = group
            if group is not None:  # this worker may lack topic names that another worker has looked up
                self._names.find(group.topic_ids())
        return self._decoded[group_id]

    def _dead_letter(self, row: LogRow, record_id: str, reason: Reason, text: str) -> None:
        message = LogMessage(row, None, row.value, record_id)
        self._output.add_dead_letter(dead_letter(reason, text, row.key, message, answered=False))

    def finish(self) -> Iterator[pd.DataFrame]:
        """Write the views and offsets that have changed, and the state."""
        for group_id, group in self._decoded.items():
            self._output.add_offsets(group_id)
            if group is not None:
                self._entries[group_id] = encode_observed(group)
                if group_id in self._view_changed:
                    self._output.add_view(group, self._names.known)
            # A group in `_view_changed` ended in this call, and may have begun in it, too.
            elif self._entries.pop(group_id, None) is not None or group_id in self._view_changed:
                self._output.add_tombstone(group_id)
            if self._output.is_full:
                yield from self._output.frame()
        payload = b""
        if self._entries:
            version, payload = codec.write_row(self._entries)
            self._state.update((version, payload))
        elif self._state.exists:
            self._state.remove()
        yield from self._output.frame(len(payload))


def by_time(rows: Iterable[LogRow]) -> Iterator[LogRow]:
    """Yield the rows of records and sightings, merged by their append times.

    In `rows` the sightings come first, then the records in the log's order. A sighting comes before the first
    record with the same or a later time.
    """
    sightings = deque[LogRow]()
    for row in rows:
        if row.partition == SIGHTINGS:
            sightings.append(row)
            continue
        while sightings and sightings[0].at_ms <= row.at_ms:
            yield sightings.popleft()
        yield row
    yield from sightings
