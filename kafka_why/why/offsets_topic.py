"""Reads a group's history from `__consumer_offsets`, without any setup.

The cluster's own coordinator stores a group's generations, members, assignments and offsets in this topic.
The newest segment of a partition is never compacted, so it has all records. Older segments may have only the
last record of each key. `kafka_why.observed` derives the history from the records, as for `observe`.
"""

from struct import pack
from types import TracebackType
from typing import Self

from kafka.admin import OffsetSpec
from kafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import counted
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC
from kafka_why.contract.sightings import RebalanceSeen
from kafka_why.groups.list_groups import list_broker_groups
from kafka_why.observed.consumer_offsets.schemas import partition_of_offsets, redpandas_partition
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import RecordPosition
from kafka_why.observed.records import AnyRecord, ClassicGeneration, ClassicGroupRemoved, OffsetCommitted
from kafka_why.observed.step import observe_rebalancing
from kafka_why.stored_groups import GroupPart, LogPart, observe_stored
from kafka_why.stored_log import COMPACTED, LogWalk, OpenTransactions, Progress, StoredLog, StoredRecord
from kafka_why.topic_reader import NamesById, names_on
from kafka_why.why.history import History, HistoryUnavailable, why_nothing
from kafka_why.wording import Clock

SLICE_RECORDS = 200_000
"""The number of newest records to read first. If they do not suffice, four times as many are read."""
GENERATIONS = 11
"""The number of generations that show the last ten rebalances of a classic group."""
_GROWTH = 4


class OffsetsUnreadable(HistoryUnavailable):
    """The error when the topic does not exist or the principal may not read it."""


def read_offsets_topic(
    client_config: ClientConfig, group_id: str, since_ms: int | None, progress: Progress = lambda *_: None
) -> History:
    """Return the history of a group up to now: the last ten rebalances, or those that ended since `since_ms`.

    For a group with epochs the whole log is read, because its records are increments. Raises
    HistoryUnavailable if the log has no record of the group or may not be read, and KafkaError.
    """
    with OffsetsTopic(client_config) as topic:
        part = topic.recent(group_id, since_ms, progress)
        if not part.entries:
            raise HistoryUnavailable(topic.why_nothing(group_id))
        return part.history


class OffsetsTopic:
    """A reader of `__consumer_offsets` over one connection, for use by one thread.

    All methods raise KafkaError. At the end of the `with` statement, it becomes OffsetsUnreadable if the
    topic does not exist or the principal may not read it.
    """

    def __init__(self, client_config: ClientConfig) -> None:
        self._client_config = client_config
        self._stored = StoredLog(client_config, KAFKAS_OFFSETS_TOPIC)

    @property
    def partitions(self) -> int:
        """The number of the topic's partitions."""
        return self._stored.partitions

    def _partitions_of(self, group_id: str) -> tuple[int, ...]:
        """Return the group's partition in Kafka, and its partition in Redpanda."""
        partitions = self.partitions
        return partition_of_offsets(group_id, partitions), redpandas_partition(group_id, partitions)

    def group(self, group_id: str) -> ObservedGroup | None:
        """Return a group's current state with its offsets, or None if the log has no record of it.

        The state is complete, because compaction retains the last record of each key.
        """
        for partition in self._partitions_of(group_id):
            begin, end = self._bounds(partition)
            group = self._read(group_id, partition, begin, begin, end).group
            if group is not None:
                return group
        return None

    def recent(self, group_id: str, since_ms: int | None, progress: Progress) -> "GroupRecords":
        """Return the last records of a group. `read_new_records` adds new ones."""
        kafkas, redpandas = self._partitions_of(group_id)
        found = self._recent(group_id, kafkas, since_ms, progress)
        if found.entries or found.group is not None:
            return found
        others = self._recent(group_id, redpandas, since_ms, progress)
        return others if others.entries else found

    def _recent(
        self, group_id: str, partition: int, since_ms: int | None, progress: Progress
    ) -> "GroupRecords":
        begin, end = self._bounds(partition)
        first = max(begin, end - SLICE_RECORDS)
        while True:
            part = self._read(group_id, partition, begin, first, end, progress)
            if first == begin or part.is_enough(since_ms):
                return part
            first = begin if part.has_increments else max(begin, end - (end - first) * _GROWTH)

    def _bounds(self, partition: int) -> tuple[int, int]:
        begin, end = (self._stored.offset(partition, at) for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
        return begin, end

    def _read(
        self,
        group_id: str,
        partition: int,
        log_start: int,
        first: int,
        end: int,
        progress: Progress = lambda *_: None,
    ) -> "GroupRecords":
        """Read a group's records from offset `first` up to `end`."""
        part = GroupRecords(group_id, partition, names_on(self._client_config), log_start, first)
        part.read(self._stored, end, progress)
        return part

    def read_new_records(self, part: "GroupRecords") -> None:
        """Read the records that were appended since the last read."""
        part.read(self._stored, self._stored.offset(part.partition, OffsetSpec.LATEST))

    def why_nothing(self, group_id: str) -> str:
        """Return a message why a group has no entry."""
        group = self.group(group_id)
        if group is not None and group.epochs is not None:
            members = len(group.epochs.subscriptions)
            return (
                f"compaction has removed the changes of group {group_id}, only its current state is left: "
                f"{group.state_now()}, epoch {group.generation}, {counted(members, 'member')}"
            )
        groups = {row.group for row in list_broker_groups(self._client_config)}
        if group_id in groups:
            why = "it never had any, or compaction has removed the records from before the last one left"
            return f"{KAFKAS_OFFSETS_TOPIC} has no record of members of group {group_id}: {why}"
        return why_nothing(group_id, groups)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stored.close()
        if isinstance(error, TopicAuthorizationFailedError):
            raise OffsetsUnreadable(
                f"this principal may not read {KAFKAS_OFFSETS_TOPIC}. Grant the right with: kafka-acls.sh "
                f"--bootstrap-server {self._client_config} --add --allow-principal User:NAME "
                f"--operation Read --topic {KAFKAS_OFFSETS_TOPIC}"
            ) from error
        if isinstance(error, UnknownTopicOrPartitionError):
            raise OffsetsUnreadable(
                f"the cluster has no {KAFKAS_OFFSETS_TOPIC}: no group has joined or committed yet, or the "
                "service hides it"
            ) from error


class GroupRecords:
    """The records of one group since the offset `first`, and the history `entries` that follow from them.

    `group` is the group after the last record, or None if it does not exist. `log_start` is the log start
    offset.
    """

    def __init__(self, group_id: str, partition: int, names: NamesById, log_start: int, first: int) -> None:
        self.group_id, self.partition = group_id, partition
        self.entries: list[HistoryEntry] = []
        self.group: ObservedGroup | None = None
        self.has_increments = False
        self._key = group_id.encode()
        # Every key of the group has these bytes after the first two.
        self.walk = LogWalk(first, first, pack(">h", len(self._key)) + self._key)
        self._names, self._log_start = names, log_start
        self._generations = 0
        self._first_generation_ms: int | None = None
        self._removed_ms: int | None = None
        self._transactions = OpenTransactions()

    @property
    def history(self) -> History:
        """The entries as a history, with a note since when no record is missing."""
        number, walk = self.walk.next_offset - self.walk.first, self.walk
        name, is_all = f"{KAFKAS_OFFSETS_TOPIC}-{self.partition}", walk.first == self._log_start
        note = f"read from {name}, which is complete"
        if walk.whole_from_ms is not None and not (walk.is_whole and is_all and self._log_start == 0):
            earlier = COMPACTED if is_all else "older records were not read (--since)"
            # If the group is older than its first entry, older records have the cause of that entry.
            found_ms = [
                entry.at_ms for entry in self.entries[:1] if entry.type is not EntryType.GROUP_CREATED
            ]
            whole = Clock().time(max([walk.whole_from_ms, *found_ms]))
            note = f"read from {name}, which has every record since {whole}; {earlier}"
        return History([*self.entries], frozenset(), from_start=False, records_read=number, notes=[note])

    def is_enough(self, since_ms: int | None) -> bool:
        """Return True if no older records are needed."""
        if self.has_increments or self._first_generation_ms is None:
            return False
        return self._generations >= GENERATIONS if since_ms is None else self._first_generation_ms <= since_ms

    def read(self, stored: StoredLog, end: int, progress: Progress = lambda *_: None) -> None:
        """Read the log up to offset `end`. Raises KafkaError."""
        self.walk.end = end
        part = LogPart(self.walk.next_offset, end, self._transactions)
        for batch in stored.read(self.partition, self.walk, progress):
            part.take(batch)
        of_group = part.groups.get(self._key, GroupPart())
        for record in of_group.all():
            self._apply(record)

    def _apply(self, record: StoredRecord) -> None:
        found = observe_stored(
            self.group, self.group_id, self.partition, record, self._names, self._removed_ms
        )
        if found is None:
            return
        decoded, seen = found
        self._removed_ms = seen.removed_ms
        self._count(decoded, record.timestamp)
        self.entries += seen.history
        self.group = None if seen.is_over else seen.group

    def apply_poll(self, seen_rebalancing: RebalanceSeen) -> None:
        """Apply a poll that saw the group rebalance."""
        if self.group is not None:
            name = seen_rebalancing.run
            self.entries += observe_rebalancing(
                self.group, seen_rebalancing, RecordPosition(0, name, name)
            ).history

    def _count(self, decoded: AnyRecord, at_ms: int) -> None:
        if isinstance(decoded, ClassicGeneration):
            self._generations += 1
            if self._first_generation_ms is None:
                self._first_generation_ms = at_ms
        elif not isinstance(decoded, OffsetCommitted | ClassicGroupRemoved):
            self.has_increments = True
