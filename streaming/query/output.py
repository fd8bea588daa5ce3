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
from state.dispatch import AnyEffects, AnyGroup, kind_of
from state.kafka.context import Reply
from state.kafka.group import Group
from state.rocketmq import context as rocketmq
from streaming.query.admission import LogMessage
from streaming.query.output_values import (
    ANSWERS_MAX_BYTES,
    committed_offset,
    pending_transaction,
    response_value,
    transaction_record,
)

# The columns of a record. `topic` is null in a row that only pads its frame. `partition` is BY_KEY if the
# sink shall choose the partition by the key.
OUTPUT_SCHEMA = "topic string, partition int, key binary, value binary"
BY_KEY = -1

# The responses to a large backlog are sent frame by frame while the operator works.
FRAME_MAX_RECORDS = 8_192
FRAME_MAX_BYTES = 16 * 1024 * 1024

# PySpark joins frames and states until they have spark.sql.execution.arrow.maxRecordsPerBatch (10,000) rows,
# whatever their bytes, and fails above 2 GiB. So a frame of large records, or with a large state, is padded
# with empty rows until its row count matches its bytes. Then 10,000 rows have some 80 MiB.
BYTES_PER_ROW = 8 * 1024

# With an index as columns and a given dtype, a frame is built 20 times as fast as with a list of names.
_COLUMNS = pd.Index([column.split()[0] for column in OUTPUT_SCHEMA.split(", ")])


class OutputRows:
    """The output records of one call of an operator, in the order of their creation, until `frame` takes
    them.
    """

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
        """Add a record, or a tombstone if `value` is None."""
        self._rows.append((topic, partition, key, value))
        self._bytes += len(value or b"")

    def frame(self, state_bytes: int = 0) -> Iterator[pd.DataFrame]:
        """Yield the records since the last call as one frame, if any.

        `state_bytes` is the size of the state that leaves Python with the frame. The frame gets empty rows
        until its records and the state have at most BYTES_PER_ROW bytes per row.
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
    """The records of one call of the coordinator's operator. It is a `streaming.query.handling.Sink`.

    A pack is one record with several responses for one reply partition.
    """

    def __init__(self, layout: TopicLayout) -> None:
        super().__init__()
        self._layout = layout
        # The last record in this call, or None for a tombstone: by group id, and by compacted topic and key.
        # Earlier records are not written.
        self._compacted: dict[str, dict[tuple[str, bytes], CommittedOffset | PendingTransaction | None]] = {}
        self._open_packs: dict[int, _Pack] = {}  # by reply partition

    def frame(self, state_bytes: int = 0) -> Iterator[pd.DataFrame]:
        for reply_partition in list(self._open_packs):
            self._close_pack(reply_partition)
        yield from super().frame(state_bytes)

    def add_effects(self, effects: AnyEffects, key: bytes, message: LogMessage | None) -> None:
        """Add the effects of one step of the group with this key."""
        for reply in effects.replies:
            self.add_reply(reply, message)
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
            topic_and_key = self._layout.offsets_topic, offset_key(group_id, change.topic, change.partition)
            records[topic_and_key] = committed_offset(group_id, incarnation, change, request)
        for transaction in effects.transactions:
            topic_and_key = (
                self._layout.transactions_topic,
                transaction_key(group_id, transaction.producer_id, transaction.request),
            )
            records[topic_and_key] = transaction_record(effects, transaction)

    def add_reply(self, reply: Reply | rocketmq.Reply, message: LogMessage | None = None) -> None:
        """Add a response. A response that is too large for the topic becomes an error response, with a dead
        letter.

        The responses to packed requests are packed.
        """
        request = reply.response.request
        value, letter = response_value(reply, self._layout.response_max_bytes, message)
        if letter is not None:
            self.add_dead_letter(letter)
        if not is_packed(request):
            self._add_response(value, reply.reply_partition)
            return
        open_pack = self._open_packs.get(reply.reply_partition)
        if open_pack is not None and open_pack.size_bytes + len(value) > ANSWERS_MAX_BYTES:
            self._close_pack(reply.reply_partition)  # with a large response it could exceed the topic's limit
            open_pack = None
        if open_pack is None:
            open_pack = self._open_packs[reply.reply_partition] = _Pack([], 0)
        open_pack.answers.append(value)
        open_pack.size_bytes += len(value)
        if open_pack.size_bytes >= ANSWERS_MAX_BYTES:
            self._close_pack(reply.reply_partition)

    def leave_response_to_query(self, request: AnyRequest, request_id: str) -> None:
        """Do nothing. This is the query's own output, and its batch writes the views before its end."""

    def _add_response(self, value: bytes, reply_partition: int) -> None:
        # The responses in the open pack were created before this one, so the pack is written first.
        if reply_partition in self._open_packs:
            self._close_pack(reply_partition)
        self.add(self._layout.responses_topic, value, b"", reply_partition)

    def _close_pack(self, reply_partition: int) -> None:
        answers = self._open_packs.pop(reply_partition).answers
        self.add(self._layout.responses_topic, pack(answers), b"", reply_partition)

    def add_compacted(self, group_id: str) -> None:
        """Add the records of the group's offsets and pending transactions that have changed in this call.

        All records of a group are in one partition.
        """
        partition = partition_of(group_id, self._layout.request_partitions)
        for (topic, key), record in self._compacted.pop(group_id, {}).items():
            self.add(topic, None if record is None else encode(record), key, partition)

    def add_all_transactions(self, group: Group) -> None:
        """Add all pending transactions of an imported group whose records are not on the topic yet."""
        groups_partition = partition_of(group.group_id, self._layout.request_partitions)
        for entry in group.pending:
            key = transaction_key(group.group_id, entry.producer_id, entry.request)
            value = encode(pending_transaction(group, entry))
            self.add(self._layout.transactions_topic, value, key, groups_partition)

    def add_all_offsets(self, group: Group) -> None:
        """Add all offsets of an imported group whose records are not on the topic yet."""
        groups_partition = partition_of(group.group_id, self._layout.request_partitions)
        for topic, partitions in group.offsets.items():
            for partition, offset in partitions.items():
                change = OffsetChange(topic, partition, offset)
                # The state does not have the ids of the requests that committed the offsets.
                record = committed_offset(group.group_id, group.incarnation, change, request="")
                key = offset_key(group.group_id, topic, partition)
                self.add(self._layout.offsets_topic, encode(record), key, groups_partition)

    def add_group_tombstone(self, key: bytes) -> None:
        """Add the tombstone of a group that no longer exists."""
        self.add(self._layout.groups_topic, None, key)

    def add_view(self, group: AnyGroup) -> None:
        """Add the group's latest view."""
        value = encode_view(kind_of(group).view(group), self._layout.view_max_bytes)
        self.add(self._layout.groups_topic, value, group.group_id.encode())

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Add a dead letter."""
        self.add(self._layout.dead_letters_topic, encode(letter), letter.key)


@dataclass(slots=True)
class _Pack:
    """An open pack: consecutive responses for one reply partition, which become one record
    (`kafka_why.contract.codec`).
    """

    answers: list[bytes]
    size_bytes: int  # of all answers
