"""A group's history from `__consumer_offsets`, where nothing of ours was set up before.

The cluster's own coordinator keeps a group's generations, members, assignments and offsets there. The newest
segment of a partition is never compacted, so it has all of it. Of what is older only the last record of each
key is sure to be there. What follows from the records is decided by `kafka_why.observed`, as for `observe`.
"""

from dataclasses import dataclass, field
from functools import cached_property
from struct import pack, unpack_from
from types import TracebackType
from typing import NamedTuple, Self

from kafka.admin import OffsetSpec
from kafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.wording import counted
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC
from kafka_why.contract.sightings import RebalanceSeen
from kafka_why.groups.list_groups import list_broker_groups
from kafka_why.observed.consumer_offsets.partition import partition_of_offsets, redpandas_partition
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import At
from kafka_why.observed.records import AnyRecord, ClassicGeneration, ClassicGroupRemoved, OffsetCommitted
from kafka_why.observed.step import sight
from kafka_why.stored_groups import observe_stored
from kafka_why.stored_log import COMPACTED, Batch, LogWalk, OpenTransactions, Progress, StoredLog
from kafka_why.topic_ids import NamesById, names_on
from kafka_why.why.clock import Clock
from kafka_why.why.history import History, HistoryUnavailable, why_nothing

SLICE_RECORDS = 200_000
"""The newest records that are read first. If they do not have enough, four times as many are read."""
GENERATIONS = 11
"""The last ten rebalances of a classic group need so many generations: each has the whole group."""
_GROWTH = 4
_OFFSET_KEYS = (0, 1)


class OffsetsUnreadable(HistoryUnavailable):
    """The topic does not exist, or the principal must not read it."""


class OffsetsTopicHistory(NamedTuple):
    """A history, and what to say about its source."""

    history: History
    notes: list[str]


def read_offsets_topic(
    client_config: ClientConfig, group_id: str, since_ms: int | None, progress: Progress = lambda *_: None
) -> OffsetsTopicHistory:
    """Return the history of a group up to now: its last ten rebalances, or those that ended at or after
    `since_ms`. All that the log has is read of a group whose records are increments.

    Raises HistoryUnavailable if the log has no record of the group or must not be read, and KafkaError.
    """
    with OffsetsTopic(client_config) as topic:
        return topic.history(group_id, since_ms, progress)


class OffsetsTopic:
    """Reads `__consumer_offsets` over one connection. For one thread.

    All methods raise KafkaError, and a `with` statement raises HistoryUnavailable if the topic does not exist
    or must not be read.
    """

    def __init__(self, client_config: ClientConfig) -> None:
        self._client_config = client_config
        self._stored = StoredLog(client_config, KAFKAS_OFFSETS_TOPIC)

    @property
    def partitions(self) -> int:
        """The number of the topic's partitions."""
        return self._stored.partitions

    def partition_of(self, group_id: str) -> int:
        """Return the partition that has a group of Kafka's coordinator."""
        return partition_of_offsets(group_id, self.partitions)

    def _partitions_of(self, group_id: str) -> tuple[int, ...]:
        """Return the partitions that may have a group: Kafka's, then Redpanda's."""
        return self.partition_of(group_id), redpandas_partition(group_id, self.partitions)

    def group(self, group_id: str) -> ObservedGroup | None:
        """Return a group as it is now, with its offsets, or None if the log has no record of it. Compaction
        keeps the last record of each key, so no older one is missing.
        """
        for partition in self._partitions_of(group_id):
            part, _ = self._read(group_id, partition, *self._bounds(partition))
            group = part.finish()
            if group is not None:
                return group
        return None

    def history(self, group_id: str, since_ms: int | None, progress: Progress) -> OffsetsTopicHistory:
        """See `read_offsets_topic`."""
        found, part, _ = self.recent(group_id, since_ms, progress)
        if not part.entries:
            raise HistoryUnavailable(self.why_nothing(group_id))
        return found

    def recent(
        self, group_id: str, since_ms: int | None, progress: Progress
    ) -> tuple[OffsetsTopicHistory, "GroupRecords", LogWalk]:
        """Return a history, which may be empty, and what `read_on` continues."""
        kafkas, redpandas = self._partitions_of(group_id)
        found = self._recent(group_id, kafkas, since_ms, progress)
        if found[1].entries or found[1].finish() is not None:
            return found
        others = self._recent(group_id, redpandas, since_ms, progress)
        return others if others[1].entries else found

    def _recent(
        self, group_id: str, partition: int, since_ms: int | None, progress: Progress
    ) -> tuple[OffsetsTopicHistory, "GroupRecords", LogWalk]:
        begin, end = self._bounds(partition)
        first = max(begin, end - SLICE_RECORDS)
        while True:
            part, walk = self._read(group_id, partition, first, end, progress)
            if first == begin or part.is_enough(since_ms):
                break
            first = begin if part.has_increments else max(begin, end - (end - first) * _GROWTH)
        history = History(list(part.entries), frozenset(), from_start=False, records_read=end - first)
        return OffsetsTopicHistory(history, [_coverage(part, walk, begin)]), part, walk

    def read_on(self, part: "GroupRecords", walk: LogWalk) -> ObservedGroup | None:
        """Read what was appended since. Return the group as it is now, or None if there is none."""
        walk.end = self._stored.offset(part.partition, OffsetSpec.LATEST)
        for batch in self._stored.read(part.partition, walk):
            part.take(batch)
        return part.finish()

    def why_nothing(self, group_id: str) -> str:
        """Return why there is no entry of a group."""
        group = self.group(group_id)
        if group is not None and group.epochs is not None:
            members = len(group.epochs.subscriptions)
            return (
                f"compaction has left no change of group {group_id}, only what it is like now: "
                f"{group.state_now()}, epoch {group.generation}, {counted(members, 'member')}"
            )
        groups = {row.group for row in list_broker_groups(self._client_config)}
        if group_id in groups:
            why = "it had none, or compaction has removed what was before the last one went"
            return f"{KAFKAS_OFFSETS_TOPIC} has no record of members of group {group_id}: {why}"
        return why_nothing(group_id, groups)

    def _bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset, and the one after the last."""
        begin, end = (self._stored.offset(partition, at) for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
        return begin, end

    def _read(
        self, group_id: str, partition: int, first: int, end: int, progress: Progress = lambda *_: None
    ) -> tuple["GroupRecords", LogWalk]:
        part = GroupRecords(group_id, partition, names_on(self._client_config))
        walk = LogWalk(first, end, part.key_part)
        for batch in self._stored.read(partition, walk, progress):
            part.take(batch)
        return part, walk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stored.close()
        if isinstance(error, TopicAuthorizationFailedError):
            raise OffsetsUnreadable(
                f"{KAFKAS_OFFSETS_TOPIC} must not be read by this principal. Grant it with: kafka-acls.sh "
                f"--bootstrap-server {self._client_config} --add --allow-principal User:NAME "
                f"--operation Read --topic {KAFKAS_OFFSETS_TOPIC}"
            ) from error
        if isinstance(error, UnknownTopicOrPartitionError):
            raise OffsetsUnreadable(
                f"the cluster has no {KAFKAS_OFFSETS_TOPIC}: no group has joined or committed yet, or the "
                "service hides it"
            ) from error


def _coverage(part: "GroupRecords", walk: LogWalk, begin: int) -> str:
    """Return from when on nothing is missing. Of a group that was there before, that is from its first entry:
    what led to it needs older records.
    """
    name = f"{KAFKAS_OFFSETS_TOPIC}-{part.partition}"
    if walk.whole_from_ms is None or (walk.is_whole and walk.first == begin == 0):
        return f"read from {name}, which has all its records"
    found_ms = [entry.at_ms for entry in part.entries[:1] if entry.type is not EntryType.GROUP_CREATED]
    earlier = COMPACTED if walk.first == begin else "of what is older nothing was read (--since)"
    whole = Clock().time(max([walk.whole_from_ms, *found_ms]))
    return f"read from {name}, which has every record since {whole}; {earlier}"


@dataclass
class GroupRecords:
    """The records of one group as they come, and the entries that follow from them.

    A commit is only kept until the next record of another kind, and of each partition only the last one:
    what follows from that record needs no other, and a group may have millions.
    """

    group_id: str
    partition: int
    names: NamesById
    entries: list[HistoryEntry] = field(default_factory=list)
    has_increments: bool = False
    generations: int = 0
    first_generation_ms: int | None = None
    _group: ObservedGroup | None = None
    _commits: dict[bytes, Batch] = field(default_factory=dict)
    _transactions: OpenTransactions = field(default_factory=OpenTransactions)

    @cached_property
    def key_part(self) -> bytes:
        """The group's id as every key of the group has it, after its first two bytes."""
        text = self.group_id.encode()
        return pack(">h", len(text)) + text

    def is_enough(self, since_ms: int | None) -> bool:
        """Return True if no older record is needed."""
        if self.has_increments or self.first_generation_ms is None:
            return False
        return self.generations >= GENERATIONS if since_ms is None else self.first_generation_ms <= since_ms

    def take(self, batch: Batch) -> None:
        """Take the next batch of the log. Commits of a transaction count when it has ended."""
        if batch.is_marker or batch.is_transactional:
            committed = self._transactions.take(batch)
            if committed:
                self._apply_commits()
            for of_transaction in committed:
                self._apply(of_transaction)
        elif not self._are_commits(batch):
            self._apply_commits()
            self._apply(batch)

    def finish(self) -> ObservedGroup | None:
        """Return the group after the last record, None if there is none."""
        self._apply_commits()
        return self._group

    def sight(self, seen_rebalancing: RebalanceSeen) -> None:
        """Take what was seen of the group beside its log."""
        if self._group is not None:
            name = seen_rebalancing.run
            self.entries += sight(self._group, seen_rebalancing, At(0, name, name)).history

    def _are_commits(self, batch: Batch) -> bool:
        """Keep the batch if the group has nothing but commits in it."""
        if batch.is_compressed:
            return False
        keys, found = list[bytes](), batch.data.find(self.key_part)
        while found >= 0:
            key = _offset_key(batch.data, found, len(self.key_part))
            if key is None:
                return False
            keys.append(key)
            found = batch.data.find(self.key_part, found + len(key))
        for key in keys:
            self._commits.pop(key, None)
            self._commits[key] = batch
        return True

    def _apply_commits(self) -> None:
        batches = {id(batch): batch for batch in self._commits.values()}
        self._commits = {}
        for batch in batches.values():
            self._apply(batch)

    def _apply(self, batch: Batch) -> None:
        for record in batch.records():
            if record.key is None or not record.key[2:].startswith(self.key_part):
                continue
            seen = observe_stored(self._group, self.group_id, self.partition, record, self.names)
            if seen is None:
                continue
            self._count(seen.says, record.timestamp)
            self.entries += seen.observed.history
            self._group = seen.group

    def _count(self, says: AnyRecord, at_ms: int) -> None:
        if isinstance(says, ClassicGeneration):
            self.generations += 1
            if self.first_generation_ms is None:
                self.first_generation_ms = at_ms
        elif not isinstance(says, OffsetCommitted | ClassicGroupRemoved):
            self.has_increments = True


def _offset_key(data: bytes, found: int, length: int) -> bytes | None:
    """Return the key of a committed offset whose group id is at `found`, None if it is another key."""
    (version,) = unpack_from(">h", data, found - 2)
    if version not in _OFFSET_KEYS:
        return None
    (topic_bytes,) = unpack_from(">h", data, found + length)
    return data[found - 2 : found + length + 2 + max(topic_bytes, 0) + 4]
