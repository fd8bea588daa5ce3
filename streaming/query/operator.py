"""The stateful operator. Spark calls it for one group's new rows, or for the group's deadline.

Only this module touches Spark's keyed state. Spark promises little: rows come in any order and in chunks, and
a timeout fires again until it is set again. The core needs strict order, and this module provides it.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from checkpoints.folder import KnownOutage
from records.codec import Reason, Refusal, decode_request, refuse, refuse_unread, request_id
from records.layout import TopicLayout
from records.partitioner import partition_of
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup, AnyRequest, step
from state.inputs import Outage
from state.kafka.effects import Reply
from state.kafka.requests import TopicMetadata
from state.rocketmq.requests import ConnectionClosed
from state.timeline import Row, Step, Timeline
from streaming.query.log_order import LogOrder, LogRow
from streaming.query.output import Output

BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class ConfigEpoch:
    """A configuration and its first batch. `skip` are ids of records to dead-letter unread."""

    from_batch: int
    config: CoordinatorConfig
    skip: frozenset[str] = frozenset()


class OperatorError(RuntimeError):
    """The operator failed on a record and could not refuse it. The message names the record."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The function for applyInPandasWithState. Spark sends it to Python workers, so it must stay small.

    `epochs` are ordered by their batches. A batch that runs again after a restart uses the epoch of its first
    run.
    """

    layout: TopicLayout
    epochs: tuple[ConfigEpoch, ...]
    outages: tuple[KnownOutage, ...] = ()
    step: Step = step

    def __call__(
        self, key: tuple[bytes], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        _freeze_imports()
        call = GroupCall(self, _batch_id(), bytes(key[0]), state)
        if not state.hasTimedOut:
            yield from call.apply(_in_log_order(frames))
        yield from call.finish(state.getCurrentWatermarkMs())

    def epoch(self, batch_id: int | None) -> ConfigEpoch:
        """Return the epoch of the batch, with None the last epoch."""
        if batch_id is None:
            return self.epochs[-1]
        return next(e for e in reversed(self.epochs) if e.from_batch <= batch_id)

    def known_outages(self, batch_id: int | None) -> list[Outage]:
        """Return the outages that precede the batch, with None all outages."""
        return [known.outage for known in self.outages if batch_id is None or known.from_batch <= batch_id]


@cache
def _freeze_imports() -> None:
    """Exempt the objects of all imported modules from garbage collections, once in each Python worker.

    PySpark's worker collects garbage around each task, and would walk them each time.
    """
    gc.collect()
    gc.freeze()


def _batch_id() -> int | None:
    """The number of this call's batch, None outside of Spark."""
    context = TaskContext.get()
    batch = context.getLocalProperty(BATCH_ID_PROPERTY) if context else None
    return None if batch is None else int(batch)


def _in_log_order(frames: Iterable[pd.DataFrame]) -> LogOrder:
    """Unpack the rows: each is `<partition> <offset> <at_ms>`, a line feed, and the record's value."""
    rows = LogOrder()
    for frame in frames:
        for packed in frame["row"].tolist():
            header, _, value = packed.partition(b"\n")
            partition, offset, at_ms = header.split(b" ")
            rows.add(LogRow(int(partition), int(offset), int(at_ms), value))
    return rows


class GroupCall:
    """One call: decodes the group's state, applies its rows, and writes the state back."""

    def __init__(self, operator: Operator, batch_id: int | None, key: bytes, state: SparkGroupState) -> None:
        epoch = operator.epoch(batch_id)
        self._layout = operator.layout
        self._skip = epoch.skip
        self._state = state
        self._key = key
        self.group_id = key.decode(errors="replace")
        self._partition = partition_of(self.group_id, operator.layout.request_partitions)
        self._output = Output(operator.layout, key)
        restore = self._decoder()
        self._timeline = Timeline(
            self.group_id,
            restore(),
            epoch.config,
            restore=restore,
            step=operator.step,
            outages=operator.known_outages(batch_id),
        )
        self._seq_before = self._seq()
        self._faults_told = 0

    def _decoder(self) -> Callable[[], AnyGroup | None]:
        if not self._state.exists:
            return lambda: None
        version, payload = self._state.get
        return lambda: codec.decode(self.group_id, int(version), bytes(payload)).get(self.group_id)

    def _seq(self) -> tuple[str, int] | None:
        group = self._timeline.group
        return None if group is None else (group.incarnation, group.seq)

    def apply(self, rows: Iterable[LogRow]) -> Iterator[pd.DataFrame]:
        """Apply or refuse every row, in the log's order."""
        for row in rows:
            record = request_id(self._layout.requests_topic, row.partition, row.offset)
            try:
                self._apply(row, record)
            except Exception as error:
                raise OperatorError(f"record {record} of group {self.group_id!r}: {error}") from error
            if self._output.is_full:
                yield from self._output.frame()

    def _apply(self, row: LogRow, record: str) -> None:
        request = self._admit(row, record)
        if isinstance(request, Refusal):
            self._refuse(request, row, record)
        else:
            self._timeline.apply(Row(row.at_ms, record, request, len(row.value)))
            self._take_effects(row, record)

    def finish(self, watermark_ms: int) -> Iterator[pd.DataFrame]:
        """Fire the deadlines that the watermark allows, and write the state. Every call ends here.

        Spark's Python timeouts stay set until the next call sets one. A call that writes state without
        setting a timeout clears it.
        """
        self._timeline.fire_until(watermark_ms)
        self._take_effects(None, "")
        group = self._timeline.group
        payload = b""
        self._output.offsets()
        if group is None:
            if self._state.exists:
                self._output.group_tombstone()
                self._state.remove()
        else:
            if self._seq() != self._seq_before:
                self._output.snapshot(group)
            version, payload = codec.encode({self.group_id: group})
            self._state.update((version, payload))
            deadline_ms = self._timeline.next_deadline_ms()
            if deadline_ms is not None:
                self._state.setTimeoutTimestamp(max(deadline_ms, watermark_ms + 1))
        yield from self._output.frame(len(payload))

    def _admit(self, row: LogRow, record: str) -> AnyRequest | Refusal:
        """Return the request of this record, or a refusal if it is invalid or not for this group and
        partition.
        """
        if record in self._skip:
            return Refusal(Reason.SKIPPED, "skipped by configuration", None)
        request = self._decode(row.value)
        if isinstance(request, Refusal):
            return self._checked_address(request)
        if (
            not isinstance(request, ConnectionClosed | TopicMetadata)
            and not 0 <= request.reply_partition < self._layout.reply_partitions
        ):
            message = (
                f"reply partition {request.reply_partition} is not one of {self._layout.reply_partitions}"
            )
            return Refusal(Reason.NO_SUCH_REPLY_PARTITION, message, None)
        if request.group_id.encode() != self._key:
            message = f"the record's key is {self.group_id!r}, its group_id {request.group_id!r}"
            return refuse(request, Reason.KEY_MISMATCH, message)
        if request.group_id and row.partition != self._partition:
            message = (
                f"group {request.group_id!r} belongs to partition {self._partition}, this is {row.partition}"
            )
            return refuse(request, Reason.WRONG_PARTITION, message)
        return request

    def _decode(self, value: bytes) -> AnyRequest | Refusal:
        # The topic's own limit applies to compressed bytes.
        if len(value) > self._layout.request_max_bytes:
            message = (
                f"the record has {len(value)} bytes, request.max.bytes is {self._layout.request_max_bytes}"
            )
            return refuse_unread(value, Reason.REQUEST_TOO_LARGE, message)
        return decode_request(value)

    def _checked_address(self, refusal: Refusal) -> Refusal:
        address = refusal.address
        if address is None or 0 <= address.reply_partition < self._layout.reply_partitions:
            return refusal
        return Refusal(refusal.reason, refusal.message, None)

    def _refuse(self, refusal: Refusal, row: LogRow, record: str) -> None:
        response = refusal.response(record)
        if response is not None and refusal.address is not None:
            self._output.reply(Reply(refusal.address.reply_partition, response), row)
        self._output.dead_letter(refusal.reason, refusal.message, row, answered=response is not None)

    def _take_effects(self, row: LogRow | None, record: str) -> None:
        answered: set[str] = set()
        for effects in self._timeline.take_effects():
            self._output.effects(effects, row)
            answered.update(reply.response.request for reply in effects.replies)
        for fault in self._timeline.faults[self._faults_told :]:
            message = f"{fault.cause}\n{fault.traceback}"
            at_fault = row if fault.cause == record else None  # None: an earlier deadline failed
            is_answered = at_fault is not None and record in answered
            self._output.dead_letter(Reason.HANDLER_FAILED, message, at_fault, answered=is_answered)
            self._faults_told += 1
