"""Reads a group's history from `__consumer_offsets`, without any setup.

The cluster's own coordinator stores a group's generations, members, assignments and offsets in this topic.
The newest segment of a partition is never compacted, so it has all records. Older segments may have only the
last record of each key. `kafka_why.observed` derives the history from the records, as the command `observe`
does.
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
from kafka_why.observed.consumer_offsets.schemas import kafka_partition, redpanda_partition
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import RecordPosition
from kafka_why.observed.records import AnyRecord, ClassicGeneration, ClassicGroupRemoved, OffsetCommitted
from kafka_why.observed.step import observe_rebalancing
from kafka_why.stored_groups import GroupPart, LogPart, observe_stored
from kafka_why.stored_log import COMPACTED, LogWalk, OpenTransactions, Progress, StoredLog, StoredRecord
from kafka_why.topic_reader import NamesById, names_on
from kafka_why.why.history import History, HistoryUnavailable, no_history_text
from kafka_why.wording import Clock

SLICE_RECORDS = 200_000
"""The number of newest records of a partition to read first. If they do not suffice, _GROWTH times as many
are read.
"""
GENERATIONS = 11
"""The number of generations that show the last ten rebalances of a classic group."""
_GROWTH = 4


class OffsetsUnreadable(HistoryUnavailable):
    """The error when `__consumer_offsets` does not exist or the principal may not read it."""


def read_offsets_topic(
    client_config: ClientConfig, group_id: str, since_ms: int | None, progress: Progress = lambda *_: None
) -> History:
    """Return the history of a group up to now: the last ten rebalances, or those that ended since `since_ms`.

    For a group with epochs the whole log is read, because its records are increments. Raises
    HistoryUnavailable if the log has no record of the group or may not be read, and KafkaError.
    """
    with OffsetsTopic(client_config) as topic:
        records = topic.read_recent(group_id, since_ms, progress)
        if not records.entries:
            raise HistoryUnavailable(topic.no_history_text(group_id))
        return records.history


class OffsetsTopic:
    """A reader of `__consumer_offsets` over one connection, for use by one thread.

    All methods raise KafkaError. If the topic does not exist or the principal may not read it, the `with`
    statement raises OffsetsUnreadable instead.
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
        return kafka_partition(group_id, partitions), redpanda_partition(group_id, partitions)

    def read_group(self, group_id: str) -> ObservedGroup | None:
        """Return a group's current state with its offsets, or None if the log has no record of it.

        The state is complete, because compaction retains the last record of each key.
        """
        for partition in self._partitions_of(group_id):
            begin, end = self._bounds(partition)
            group = self._read(group_id, partition, log_start=begin, first=begin, end=end).group
            if group is not None:
                return group
        return None

    def read_recent(self, group_id: str, since_ms: int | None, progress: Progress) -> "GroupRecords":
        """Return the last records of a group, from Kafka's partition or else from Redpanda's.

        They reach back to `since_ms` or, if that is None, by GENERATIONS. `read_new_records` adds later ones.
        """
        in_kafka, in_redpanda = self._partitions_of(group_id)
        records = self._read_recent(group_id, in_kafka, since_ms, progress)
        if records.entries or records.group is not None:
            return records
        redpanda_records = self._read_recent(group_id, in_redpanda, since_ms, progress)
        return redpanda_records if redpanda_records.entries else records

    def _read_recent(
        self, group_id: str, partition: int, since_ms: int | None, progress: Progress
    ) -> "GroupRecords":
        """Read the group's last records in a partition: first few, then more until they are enough."""
        begin, end = self._bounds(partition)
        first = max(begin, end - SLICE_RECORDS)
        while True:
            records = self._read(group_id, partition, begin, first, end, progress)
            if first == begin or records.is_enough(since_ms):
                return records
            first = begin if records.has_increments else max(begin, end - (end - first) * _GROWTH)

    def _bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset after the last record."""
        return (
            self._stored.offset(partition, OffsetSpec.EARLIEST),
            self._stored.offset(partition, OffsetSpec.LATEST),
        )

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
        records = GroupRecords(group_id, partition, names_on(self._client_config), log_start, first)
        records.read(self._stored, end, progress)
        return records

    def read_new_records(self, records: "GroupRecords") -> None:
        """Add the group's records that were appended since the last read to `records`."""
        records.read(self._stored, self._stored.offset(records.partition, OffsetSpec.LATEST))

    def no_history_text(self, group_id: str) -> str:
        """Return a message with the reason why the group has no history entry."""
        group = self.read_group(group_id)
        if group is not None and group.epochs is not None:
            members = len(group.epochs.subscriptions)
            return (
                f"compaction has removed the changes of group {group_id}, only its current state is left: "
                f"{group.state_now()}, epoch {group.generation}, {counted(members, 'member')}"
            )
        groups = {row.group for row in list_broker_groups(self._client_config)}
        if group_id in groups:
            why = "it never had any, or the last member has left and compaction has removed its records"
            return f"{KAFKAS_OFFSETS_TOPIC} has no record of members of group {group_id}: {why}"
        return no_history_text(group_id, groups)

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
    """The records of one group since the offset `first`, and the history entries that follow from them.

    `log_start` is the first offset of the partition. `entries` may be removed by the caller.
    """

    def __init__(self, group_id: str, partition: int, names: NamesById, log_start: int, first: int) -> None:
        self.group_id, self.partition = group_id, partition
        self.entries: list[HistoryEntry] = []
        self.group: ObservedGroup | None = None  # after the last record; None if it does not exist
        self.has_increments = False  # True if the group has epochs, so that all of its records are needed
        self._key = group_id.encode()
        # Every key of the group has these bytes after the first two.
        self.walk = LogWalk(first, first, pack(">h", len(self._key)) + self._key)
        self._names, self._log_start = names, log_start
        self._generations = 0  # number of records of generations that were read
        self._first_generation_ms: int | None = None  # time of the first of these records
        self._removed_ms: int | None = None  # see `Observation`
        self._transactions = OpenTransactions()

    @property
    def history(self) -> History:
        """The entries as a history. Its note has the time from which no record is missing."""
        walk, name = self.walk, f"{KAFKAS_OFFSETS_TOPIC}-{self.partition}"
        number, is_whole_log = walk.next_offset - walk.first, walk.first == self._log_start
        note = f"read from {name}, which is complete"
        if walk.complete_from_ms is not None and not (
            walk.is_complete and is_whole_log and self._log_start == 0
        ):
            earlier = COMPACTED if is_whole_log else "older records were not read (--since)"
            # If the group is older than its first entry, older records have the cause of that entry.
            first_entry_ms = [
                entry.at_ms for entry in self.entries[:1] if entry.type is not EntryType.GROUP_CREATED
            ]
            since = Clock().time(max([walk.complete_from_ms, *first_entry_ms]))
            note = f"read from {name}, which has every record since {since}; {earlier}"
        return History(
            [*self.entries], unread=frozenset(), from_start=False, records_read=number, notes=[note]
        )

    def is_enough(self, since_ms: int | None) -> bool:
        """Return True if no older records are needed: GENERATIONS, or all since `since_ms` if it is given."""
        if self.has_increments or self._first_generation_ms is None:
            return False
        return self._generations >= GENERATIONS if since_ms is None else self._first_generation_ms <= since_ms

    def read(self, stored: StoredLog, end: int, progress: Progress = lambda *_: None) -> None:
        """Read the log up to offset `end`. Raises KafkaError."""
        self.walk.end = end
        part = LogPart(self.walk.next_offset, end, self._transactions)
        for batch in stored.read(self.partition, self.walk, progress):
            part.take(batch)
        for record in part.groups.get(self._key, GroupPart()).all():
            self._apply(record)

    def _apply(self, record: StoredRecord) -> None:
        observed = observe_stored(
            self.group, self.group_id, self.partition, record, self._names, self._removed_ms
        )
        if observed is None:
            return
        decoded, seen = observed
        self._removed_ms = seen.removed_ms
        self._count(decoded, record.timestamp)
        self.entries += seen.history
        self.group = None if seen.is_over else seen.group

    def apply_poll(self, seen_rebalancing: RebalanceSeen) -> None:
        """Apply a poll that saw the group rebalance."""
        if self.group is not None:
            at = RecordPosition(time_ms=0, record=seen_rebalancing.run, incarnation=seen_rebalancing.run)
            self.entries += observe_rebalancing(self.group, seen_rebalancing, at).history

    def _count(self, decoded: AnyRecord, at_ms: int) -> None:
        """Count a record of a generation, or note that the group has epochs."""
        if isinstance(decoded, ClassicGeneration):
            self._generations += 1
            if self._first_generation_ms is None:
                self._first_generation_ms = at_ms
        elif not isinstance(decoded, OffsetCommitted | ClassicGroupRemoved):
            self.has_increments = True
