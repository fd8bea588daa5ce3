"""The operator's output: records for the output topics, collected in frames for Spark."""

from collections.abc import Iterator
from uuid import UUID

import pandas as pd

from records.codec import (
    DEAD_LETTER_MAX_BYTES,
    MESSAGE_MAX_CHARS,
    CommittedOffset,
    DeadLetter,
    Reason,
    encode,
    offset_key,
    request_id,
)
from records.layout import TopicLayout
from records.partitioner import partition_of
from records.truncation import encode_event, encode_view, too_large
from state.dispatch import AnyEffects, AnyGroup
from state.kafka import snapshot
from state.kafka.effects import OffsetChange, Reply
from state.kafka.group import Group
from state.messages import RECORD_VERSION
from state.rocketmq import effects as rocketmq
from state.rocketmq import snapshot as rocketmq_snapshot
from state.rocketmq.group import Group as RocketMqGroup
from streaming.query.log_order import LogRow

# One batch has one sink. `topic` is the record's topic, null if the row is not a record. `partition` -1: the
# sink chooses it by the key.
OUTPUT_SCHEMA = "topic string, partition int, key binary, value binary"
BY_KEY = -1

# The responses to a large backlog leave frame by frame while the operator works.
FRAME_MAX_RECORDS = 8_192
FRAME_MAX_BYTES = 16 * 1024 * 1024

# PySpark joins frames and states until they have spark.sql.execution.arrow.maxRecordsPerBatch (10,000) rows,
# whatever their bytes, and fails above 2 GiB. So a frame of large records, or one beside a large state, is
# padded with empty rows until its row count matches its bytes. 80 MiB are then enough.
BYTES_PER_ROW = 8 * 1024


class Output:
    """The records of one call in the order of their creation. `frame` empties it."""

    def __init__(self, layout: TopicLayout, key: bytes) -> None:
        self._layout = layout
        self._key = key
        # The call's last offset by topic and partition. The compacted topic keeps no earlier one.
        self._offsets: dict[tuple[str, int], CommittedOffset | None] = {}
        self._topics: list[str | None] = []
        self._partitions: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the collected records are large enough for a frame."""
        return len(self._values) >= FRAME_MAX_RECORDS or self._bytes >= FRAME_MAX_BYTES

    def frame(self, state_bytes: int = 0) -> Iterator[pd.DataFrame]:
        """Yield the records collected since the last call as one frame, none if there are no records.

        `state_bytes` is the size of the state that leaves Python beside the frame.
        """
        empty_rows = (self._bytes + state_bytes) // BYTES_PER_ROW - len(self._values)
        if empty_rows > 0:
            self._topics += [None] * empty_rows
            self._partitions += [BY_KEY] * empty_rows
            self._keys += [None] * empty_rows
            self._values += [None] * empty_rows
        if not self._values:
            return
        yield pd.DataFrame(
            {"topic": self._topics, "partition": self._partitions, "key": self._keys, "value": self._values}
        )
        self._topics, self._partitions, self._keys, self._values = [], [], [], []
        self._bytes = 0

    def effects(self, effects: AnyEffects, row: LogRow | None) -> None:
        """Add the effects of one step. `row` is its record, None if a deadline caused the step."""
        for reply in effects.replies:
            self.reply(reply, row)
        for event in effects.history:
            self._add(
                self._layout.events_topic, encode_event(event, self._layout.response_max_bytes), self._key
            )
        if isinstance(effects, rocketmq.Effects):
            for push in effects.pushes:
                self._add(self._layout.responses_topic, encode(push.message), b"", push.reply_partition)
            return
        for change in effects.offsets:
            record = None
            if change.offset is not None:
                assert effects.group is not None and row is not None, "offsets come with a request"
                record = self._committed(effects.group, change, row)
            self._offsets[change.topic, change.partition] = record

    def reply(self, reply: Reply | rocketmq.Reply, row: LogRow | None = None) -> None:
        """Add a response. A response that is too large for the topic becomes an error."""
        value = encode(reply.response)
        if len(value) > self._layout.response_max_bytes:
            value = encode(too_large(reply.response))
            message = f"the answer has more than response.max.bytes ({self._layout.response_max_bytes})"
            self.dead_letter(Reason.RESPONSE_TOO_LARGE, message, row, reply.response.request, answered=True)
        self._add(self._layout.responses_topic, value, b"", reply.reply_partition)

    def offsets(self) -> None:
        """Add the offsets committed or deleted in this call. All offsets of a group are in one partition."""
        group_id = self._key.decode(errors="replace")
        groups_partition = partition_of(group_id, self._layout.request_partitions)
        for (topic, partition), record in self._offsets.items():
            value = None if record is None else encode(record)
            key = offset_key(group_id, topic, partition)
            self._add(self._layout.offsets_topic, value, key, groups_partition)
        self._offsets.clear()

    def _committed(self, group: Group, change: OffsetChange, row: LogRow) -> CommittedOffset:
        assert change.offset is not None
        topic_id = change.offset.topic_id
        return CommittedOffset(
            group_id=group.group_id,
            incarnation=group.incarnation,
            topic=change.topic,
            partition=change.partition,
            offset=change.offset.offset,
            leader_epoch=change.offset.leader_epoch,
            metadata=change.offset.metadata,
            committed_at_ms=change.offset.committed_at_ms,
            expire_at_ms=change.offset.expire_at_ms,
            request=request_id(self._layout.requests_topic, row.partition, row.offset),
            topic_id=None if topic_id is None else UUID(bytes=topic_id),
        )

    def group_tombstone(self) -> None:
        """Add the tombstone of a group that no longer exists."""
        self._add(self._layout.groups_topic, None, self._key)

    def snapshot(self, group: AnyGroup) -> None:
        """Add the group's latest view."""
        view = (
            rocketmq_snapshot.snapshot(group)
            if isinstance(group, RocketMqGroup)
            else snapshot.snapshot(group)
        )
        value = encode_view(view, self._layout.response_max_bytes)
        self._add(self._layout.groups_topic, value, self._key)

    def dead_letter(
        self, reason: Reason, message: str, row: LogRow | None, request: str = "", *, answered: bool
    ) -> None:
        """Add a dead letter with the reason why a record was refused, or why it failed.

        `row` is the current record. It is not shown if `request` is that of another, earlier record.
        """
        row_id = request_id(self._layout.requests_topic, row.partition, row.offset) if row else ""
        if request not in ("", row_id):
            row = None
        # No valid group id has a key this long. The key is cut because it can be as large as a record's
        # value.
        key = self._key[:DEAD_LETTER_MAX_BYTES]
        letter = DeadLetter(
            version=RECORD_VERSION,
            reason=reason,
            message=message[:MESSAGE_MAX_CHARS],
            request=request or row_id,
            at_ms=row.at_ms if row else 0,
            answered=answered,
            key=key,
            value=row.value[:DEAD_LETTER_MAX_BYTES] if row else b"",
            value_bytes=len(row.value) if row else 0,
        )
        self._add(self._layout.dead_letters_topic, encode(letter), key)

    def _add(self, topic: str, value: bytes | None, key: bytes, partition: int = BY_KEY) -> None:
        self._topics.append(topic)
        self._partitions.append(partition)
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(value or b"")
