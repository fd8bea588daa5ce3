"""What the operator writes: records for the output topics, gathered into frames for Spark."""

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

# One batch has one sink; `topic` says where a record goes, null where the row is none. `partition` -1: by the
# key.
OUTPUT_SCHEMA = "topic string, partition int, key binary, value binary"
BY_KEY = -1

# A large backlog is answered while it is worked off, a frame at a time.
FRAME_MAX_RECORDS = 8_192
FRAME_MAX_BYTES = 16 * 1024 * 1024

# PySpark puts frames and states together until they have spark.sql.execution.arrow.maxRecordsPerBatch rows,
# 10,000, whatever their size, and fails where that is more than 2 GiB. So a frame of large records, or beside
# a large state, is given empty rows until it counts what it weighs: 80 MiB then are enough.
BYTES_PER_ROW = 8 * 1024


class Output:
    """The records of one call, in the order they were made; `frame` empties it."""

    def __init__(self, layout: TopicLayout, key: bytes) -> None:
        self._layout = layout
        self._key = key
        # By topic and partition, the last one of the call: more than that nobody could read later.
        self._offsets: dict[tuple[str, int], CommittedOffset | None] = {}
        self._topics: list[str | None] = []
        self._partitions: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to hand a frame over."""
        return len(self._values) >= FRAME_MAX_RECORDS or self._bytes >= FRAME_MAX_BYTES

    def frame(self, state_bytes: int = 0) -> Iterator[pd.DataFrame]:
        """What has gathered since the last call, as one frame; none where there is nothing.

        `state_bytes` is the size of the state that leaves Python beside it.
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
        """Everything one step said. `row` is the record behind it, None for a deadline."""
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
        """An answer; one that is too large for the topic becomes an error."""
        value = encode(reply.response)
        if len(value) > self._layout.response_max_bytes:
            value = encode(too_large(reply.response))
            message = f"the answer has more than response.max.bytes ({self._layout.response_max_bytes})"
            self.dead_letter(Reason.RESPONSE_TOO_LARGE, message, row, reply.response.request, answered=True)
        self._add(self._layout.responses_topic, value, b"", reply.reply_partition)

    def offsets(self) -> None:
        """The offsets that were committed or forgotten in this call; all of a group's in one partition."""
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
        """The group is no more."""
        self._add(self._layout.groups_topic, None, self._key)

    def snapshot(self, group: AnyGroup) -> None:
        """The group's latest view."""
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
        """A record for the operator's eyes: why this one was refused, or what failed.

        `row` is the record at hand. Where `request` names another, an earlier one, the row is not shown.
        """
        row_id = request_id(self._layout.requests_topic, row.partition, row.offset) if row else ""
        if request not in ("", row_id):
            row = None
        # No group has a key this long; it is cut, for the key of a record can be as large as its value.
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
