"""The records of one call of the observing operator, on the topics that a coordinator has, too."""

from collections.abc import Mapping
from uuid import UUID

from kafka_why.contract.codec import CommittedOffset, DeadLetter, encode, offset_key
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.offsets import OffsetChange
from kafka_why.contract.layout import TopicLayout
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.view import view_of
from kafka_why.partitioner import partition_of
from records.truncation import encode_event, encode_view
from streaming.query.output import OutputRows


class ObservedOutput(OutputRows):
    """Collects what follows from the records of a shard's groups."""

    def __init__(self, layout: TopicLayout) -> None:
        super().__init__()
        self._layout = layout
        # The call's last change by group, topic and partition, with its record and the group's incarnation.
        # The compacted topic keeps no earlier one.
        self._offsets: dict[str, dict[tuple[str, int], tuple[OffsetChange, str, str]]] = {}

    def entry(self, entry: HistoryEntry) -> None:
        """Add an entry of a group's history."""
        value = encode_event(entry, self._layout.view_max_bytes)
        self.add(self._layout.events_topic, value, entry.group_id.encode())

    def offset(self, group: ObservedGroup, change: OffsetChange, record: str) -> None:
        """Keep the offset of a partition until the end of the call. `record` is the id of the record."""
        last = (change, record, group.incarnation)
        self._offsets.setdefault(group.group_id, {})[change.topic, change.partition] = last

    def offsets(self, group_id: str) -> None:
        """Add the offsets of a group. All are in one partition."""
        partition = partition_of(group_id, self._layout.request_partitions)
        for (topic, number), last in self._offsets.pop(group_id, {}).items():
            value = None if last[0].offset is None else encode(_committed(group_id, *last))
            self.add(self._layout.offsets_topic, value, offset_key(group_id, topic, number), partition)

    def view(self, group: ObservedGroup, names: Mapping[bytes, str]) -> None:
        """Add the group's latest view."""
        value = encode_view(view_of(group, names), self._layout.view_max_bytes)
        self.add(self._layout.groups_topic, value, group.group_id.encode())

    def tombstone(self, group_id: str) -> None:
        """Add the tombstone of a group that does not exist any more."""
        self.add(self._layout.groups_topic, None, group_id.encode())

    def dead_letter(self, letter: DeadLetter) -> None:
        """Add a record that could not be read or applied."""
        self.add(self._layout.dead_letters_topic, encode(letter), letter.key)


def _committed(group_id: str, change: OffsetChange, record: str, incarnation: str) -> CommittedOffset:
    offset = change.offset
    assert offset is not None
    return CommittedOffset(
        group_id=group_id,
        incarnation=incarnation,
        topic=change.topic,
        partition=change.partition,
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        committed_at_ms=offset.committed_at_ms,
        expire_at_ms=offset.expire_at_ms,
        request=record,
        topic_id=None if offset.topic_id is None else UUID(bytes=offset.topic_id),
    )
