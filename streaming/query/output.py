"""The output of the coordinator's operator: records for the output topics."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kafka_why.contract.codec import (
    AnyRequest,
    CommittedOffset,
    DeadLetter,
    PendingTransaction,
    Reason,
    encode,
    is_packed,
    offset_key,
    pack,
    transaction_key,
)
from kafka_why.contract.kafka.history import OffsetChange
from kafka_why.contract.layout import TopicLayout
from kafka_why.partitioner import partition_of
from records.truncation import encode_event, encode_view
from state.dispatch import AnyEffects, AnyGroup, view_of
from state.kafka.context import Reply
from state.kafka.group import Group
from state.rocketmq import context as rocketmq
from streaming.query.admission import LogMessage
from streaming.query.output_values import (
    ANSWERS_MAX_BYTES,
    committed_offset,
    dead_letter,
    pending_transaction,
    response_value,
    transaction_record,
)

# `topic` is the record's topic, null if the row is not a record. `partition` -1: the sink chooses it by the
# key.
OUTPUT_SCHEMA = "topic string, partition int, key binary, value binary"
BY_KEY = -1

# The responses to a large backlog are sent frame by frame while the operator works.
FRAME_MAX_RECORDS = 8_192
FRAME_MAX_BYTES = 16 * 1024 * 1024

# PySpark joins frames and states until they have spark.sql.execution.arrow.maxRecordsPerBatch (10,000) rows,
# whatever their bytes, and fails above 2 GiB. So a frame of large records, or with a large state, is padded
# with empty rows until its row count matches its bytes. 80 MiB are then enough.
BYTES_PER_ROW = 8 * 1024

# As an index, and with the type of the cells, a frame is built 20 times as fast as from names alone.
_COLUMNS = pd.Index([column.split()[0] for column in OUTPUT_SCHEMA.split(", ")])


class OutputRows:
    """The collected records of one call, in the order of their creation. `frame` empties it."""

    def __init__(self) -> None:
        # One list of rows, because a frame of one array of objects is built five times as fast as one of four
        # lists.
        self._rows: list[tuple[str | None, int, bytes | None, bytes | None]] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Return True if the collected records are large enough for a frame."""
        return len(self._rows) >= FRAME_MAX_RECORDS or self._bytes >= FRAME_MAX_BYTES

    def add(self, topic: str, value: bytes | None, key: bytes, partition: int = BY_KEY) -> None:
        """Add a record, a tombstone if its value is None."""
        self._rows.append((topic, partition, key, value))
        self._bytes += len(value or b"")

    def frame(self, state_bytes: int = 0) -> Iterator[pd.DataFrame]:
        """Yield the records since the last call as one frame, if any.

        `state_bytes` is the size of the state that leaves Python with the frame.
        """
        empty_rows = (self._bytes + state_bytes) // BYTES_PER_ROW - len(self._rows)
        if empty_rows > 0:
            self._rows += [(None, BY_KEY, None, None)] * empty_rows
        if not self._rows:
            return
        cells: np.ndarray[Any, Any] = np.empty((len(self._rows), len(_COLUMNS)), dtype=object)
        cells[:] = self._rows
        yield pd.DataFrame(cells, columns=_COLUMNS, dtype=object, copy=False)
        self._rows = []
        self._bytes = 0


class Output(OutputRows):
    """The records of one call of the coordinator's operator."""

    def __init__(self, layout: TopicLayout) -> None:
        super().__init__()
        self._layout = layout
        # The last record in this call, by group, compacted topic and key. Earlier records are not written.
        self._compacted: dict[str, dict[tuple[str, bytes], CommittedOffset | PendingTransaction | None]] = {}
        self._packs: dict[int, _Pack] = {}

    def frame(self, state_bytes: int = 0) -> Iterator[pd.DataFrame]:
        for reply_partition in list(self._packs):
            self._close_pack(reply_partition)
        yield from super().frame(state_bytes)

    def effects(self, effects: AnyEffects, key: bytes, message: LogMessage | None) -> None:
        """Add the effects of one step of the group with this key.

        `message` is the request that is applied, or None if the step follows the last request.
        """
        for reply in effects.replies:
            self.reply(reply, message)
        for event in effects.history:
            self.add(self._layout.events_topic, encode_event(event, self._layout.view_max_bytes), key)
        if isinstance(effects, rocketmq.Effects):
            for push in effects.pushes:
                self._add_response(encode(push.message), push.reply_partition)
            return
        if not effects.offsets and not effects.transactions:
            return
        group_id = key.decode()
        records = self._compacted.setdefault(group_id, {})
        incarnation = effects.group.incarnation if isinstance(effects.group, Group) else ""
        request = "" if message is None else message.id
        for change in effects.offsets:
            assert change.offset is None or (incarnation and request), "a commit is a request to a group"
            at = self._layout.offsets_topic, offset_key(group_id, change.topic, change.partition)
            records[at] = committed_offset(group_id, incarnation, change, request)
        for transaction in effects.transactions:
            at = (
                self._layout.transactions_topic,
                transaction_key(group_id, transaction.producer_id, transaction.request),
            )
            records[at] = transaction_record(effects, transaction)

    def reply(self, reply: Reply | rocketmq.Reply, message: LogMessage | None = None) -> None:
        """Add a response. A response that is too large for the topic becomes an error.

        The responses to packed requests are packed. `message` is the message that is being applied.
        """
        request = reply.response.request
        value, too_large = response_value(reply, self._layout.response_max_bytes)
        if too_large is not None:
            at_hand = message if message is not None and message.id == request else None
            key = b"" if at_hand is None else at_hand.row.key
            reason = Reason.RESPONSE_TOO_LARGE
            self.dead_letter(dead_letter(reason, too_large, key, at_hand, request, answered=True))
        if not is_packed(request):
            self._add_response(value, reply.reply_partition)
            return
        waiting = self._packs.get(reply.reply_partition)
        if waiting is not None and waiting.size_bytes + len(value) > ANSWERS_MAX_BYTES:
            self._close_pack(reply.reply_partition)  # with a large response it could exceed the topic's limit
            waiting = None
        if waiting is None:
            waiting = self._packs[reply.reply_partition] = _Pack([], 0)
        waiting.answers.append(value)
        waiting.size_bytes += len(value)
        if waiting.size_bytes >= ANSWERS_MAX_BYTES:
            self._close_pack(reply.reply_partition)

    def waits_for_views(self, request: AnyRequest, request_id: str) -> None:
        """Do nothing, because the batch writes the views before Spark commits it."""

    def _add_response(self, value: bytes, reply_partition: int) -> None:
        # The open pack goes first, to keep the order.
        if reply_partition in self._packs:
            self._close_pack(reply_partition)
        self.add(self._layout.responses_topic, value, b"", reply_partition)

    def _close_pack(self, reply_partition: int) -> None:
        answers = self._packs.pop(reply_partition).answers
        self.add(self._layout.responses_topic, pack(answers), b"", reply_partition)

    def add_compacted(self, group_id: str) -> None:
        """Add the records of the group's offsets and pending transactions that have changed in this call.

        All records of a group are in one partition.
        """
        partition = partition_of(group_id, self._layout.request_partitions)
        for (topic, key), record in self._compacted.pop(group_id, {}).items():
            self.add(topic, None if record is None else encode(record), key, partition)

    def all_transactions(self, group: Group) -> None:
        """Add all pending transactions of a group whose records are not on the topic."""
        groups_partition = partition_of(group.group_id, self._layout.request_partitions)
        for entry in group.pending:
            key = transaction_key(group.group_id, entry.producer_id, entry.request)
            value = encode(pending_transaction(group, entry))
            self.add(self._layout.transactions_topic, value, key, groups_partition)

    def all_offsets(self, group: Group) -> None:
        """Add all offsets of a group whose records are not on the topic. Their requests are unknown."""
        groups_partition = partition_of(group.group_id, self._layout.request_partitions)
        for topic, partitions in group.offsets.items():
            for partition, offset in partitions.items():
                change = OffsetChange(topic, partition, offset)
                record = committed_offset(group.group_id, group.incarnation, change, "")
                key = offset_key(group.group_id, topic, partition)
                self.add(self._layout.offsets_topic, encode(record), key, groups_partition)

    def group_tombstone(self, key: bytes) -> None:
        """Add the tombstone of a group that no longer exists."""
        self.add(self._layout.groups_topic, None, key)

    def snapshot(self, group: AnyGroup) -> None:
        """Add the group's latest view."""
        value = encode_view(view_of(group), self._layout.view_max_bytes)
        self.add(self._layout.groups_topic, value, group.group_id.encode())

    def dead_letter(self, letter: DeadLetter) -> None:
        """Add a dead letter."""
        self.add(self._layout.dead_letters_topic, encode(letter), letter.key)


@dataclass(slots=True)
class _Pack:
    """The responses that wait for the end of their pack, and the sum of their bytes."""

    answers: list[bytes]
    size_bytes: int
