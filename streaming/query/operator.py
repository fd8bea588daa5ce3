"""The stateful operator. Spark calls it for one shard's new rows, or for the shard's next deadline.

A shard is the set of groups that share one keyed state of Spark. Only this package touches that state. Spark
gives no guarantees: rows come in any order and in chunks, and a timeout fires again until it is replaced. The
core, the package `state`, needs strict order, which `ShardCall` provides.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from checkpoints.metadata import KnownOutage
from kafka_why.contract.layout import TopicLayout
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.dispatch import step
from state.kafka.group import Group
from state.protocol import Outage
from state.timeline import StepFunction
from streaming.query.admission import DEFAULT_SHARDS, Admission, LogMessage, LogOrder, LogRow
from streaming.query.handling import DecodedGroup, handle
from streaming.query.output import Output

# Notes: a Python worker writes the id of its current request, or its group with deadlines, to a file, because
# a killed worker leaves no error that names them. Each request then costs a write, so a query has notes only
# after its workers have died.


WORKER_DIED = "Python worker exited unexpectedly"
"""The error text of a query whose worker ended without a Python error."""

Note = Callable[[str], None]


def no_note(text: str) -> None:
    """Do nothing, because notes are off."""


def note_writer(prefix: str | None, task: int) -> Note:
    """Return a function that writes a note to the file of this task, `<prefix>-<task>`, in place of the last
    one. Return `no_note` if `prefix` is None.
    """
    if prefix is None:
        return no_note
    path = Path(f"{prefix}-{task}")

    def note(text: str) -> None:
        path.write_text(text)

    return note


def take_unfinished_notes(prefix: str | None) -> list[str]:
    """Return the last notes of calls that did not finish, and remove the files of all notes.

    No notes are found if the workers run on other machines.
    """
    if prefix is None:
        return []
    notes = []
    for path in sorted(Path(prefix).parent.glob(f"{Path(prefix).name}-*")):
        notes.append(path.read_text())
        path.unlink()
    return [note for note in notes if note]  # a call that finishes leaves an empty note


class ShardCall:
    """A call of the operator: it reads the shard's groups, applies rows and deadlines, and writes the groups
    back.

    A group is decoded when a message or a deadline first touches it, and encoded at the end of the call. The
    others keep their encoded bytes. Each group has its own timeline, which applies its requests and deadlines
    in time order, so a fault in one group affects no other.
    """

    def __init__(
        self,
        shard: int,
        admission: Admission,
        configs: Configs,
        state: SparkGroupState,
        *,
        outages: Sequence[Outage],
        step: StepFunction,
        note: Note = no_note,
    ) -> None:
        self._admission = admission
        self._configs = configs
        self._state = state
        self._outages = outages
        self._step = step
        self._note = note
        self._output = Output(admission.layout)
        # The groups by id: all as the state has them, and those that this call has decoded.
        self._entries: dict[str, codec.StoredGroup] = {}
        if state.exists:
            version, payload = state.get
            name = f"shard {shard % admission.shards} of partition {admission.partition}"
            self._entries = codec.read_row(name, int(version), bytes(payload))
        self._decoded: dict[str, DecodedGroup] = {}

    def apply(self, rows: Iterable[LogRow]) -> Iterator[pd.DataFrame]:
        """Apply or refuse every message of `rows`, which are in the log's order. Yield frames of output."""
        for row in rows:
            for message in self._admission.messages(row):
                self._apply(message)
                if self._output.is_full:
                    yield from self._output.frame()

    def _apply(self, message: LogMessage) -> None:
        self._note(f"record {message.id}")
        handle(message, self._admission, self._has_group, self._decode_group, self._output)

    def _has_group(self, group_id: str) -> bool:
        return group_id in self._decoded or group_id in self._entries

    def _decode_group(self, group_id: str) -> DecodedGroup:
        """Return the group, decoded at its first use in this call. A new group id gets a `DecodedGroup`
        without a group.
        """
        group = self._decoded.get(group_id)
        if group is None:
            entry = self._entries.get(group_id)
            group = DecodedGroup(group_id, entry, self._configs, self._outages, self._step)
            self._decoded[group_id] = group
        return group

    def finish(self, watermark_ms: int) -> Iterator[pd.DataFrame]:
        """Fire the deadlines that are due at the watermark, encode the decoded groups, and write the state,
        at the end of every call. Yield frames of output.

        A call that writes state has to set Spark's timeout again, because writing clears it.
        """
        for group_id, entry in self._entries.items():
            if entry.next_deadline_ms is not None and entry.next_deadline_ms <= watermark_ms:
                self._decode_group(group_id)
        for group_id, group in self._decoded.items():
            self._note(f"the deadlines of group {group_id!r}")
            group.fire_until(watermark_ms, self._output)
            self._encode_group(group)
            if self._output.is_full:
                yield from self._output.frame()
        self._note("")
        payload = b""
        if self._entries:
            version, payload = codec.write_row(self._entries)
            self._state.update((version, payload))
            deadline_ms = codec.earliest_deadline_ms(self._entries)
            if deadline_ms is not None:
                # Spark refuses a timeout that is not after the watermark.
                self._state.setTimeoutTimestamp(max(deadline_ms, watermark_ms + 1))
        elif self._state.exists:
            self._state.remove()
        yield from self._output.frame(len(payload))

    def _encode_group(self, decoded: DecodedGroup) -> None:
        """Encode a decoded group, or drop it if it no longer exists, and add its changed records for the
        compacted topics.
        """
        group, group_id = decoded.timeline.group, decoded.timeline.group_id
        if decoded.is_unpublished and isinstance(group, Group):
            self._output.add_all_offsets(group)
            self._output.add_all_transactions(group)
        self._output.add_compacted(group_id)
        if group is not None:
            if decoded.has_new_history or decoded.is_unpublished:
                self._output.add_view(group)
            self._entries[group_id] = codec.encode_group(group, decoded.timeline.next_deadline_ms())
        elif self._entries.pop(group_id, None) is not None:
            # The group existed before this call, so it may have a view on the groups topic.
            self._output.add_group_tombstone(decoded.key)


BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class ConfigEpoch:
    """A configuration of the coordinator, and the batches and times for which it holds."""

    from_batch: int  # the first batch that uses it
    config: CoordinatorConfig
    skip: frozenset[str] = frozenset()  # ids of records to refuse without decoding them, from that batch on
    after_ms: int = 0  # it is in force after this time of the log


@dataclass(frozen=True, slots=True)
class Operator:
    """The function for applyInPandasWithState. Spark sends it to Python workers, so it must stay small.

    `epochs` are ordered by their batches and times. A batch that runs again after a restart uses the epochs
    and outages of its first run. `shards` is the number of shards of a partition of requests. `notes_prefix`
    is the beginning of the paths of workers' notes, or None if they write none.
    """

    layout: TopicLayout
    epochs: tuple[ConfigEpoch, ...]
    outages: tuple[KnownOutage, ...] = ()
    step: StepFunction = step
    shards: int = DEFAULT_SHARDS
    notes_prefix: str | None = None

    def __call__(
        self, key: tuple[int], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        batch_id = _batch_id()
        shard = int(key[0])  # counted over all partitions (`streaming.query.admission.shard_of`)
        call = ShardCall(
            shard,
            Admission(self.layout, shard // self.shards, self.shards, self.skip(batch_id)),
            self.configs(batch_id),
            state,
            outages=self.known_outages(batch_id),
            step=self.step,
            note=note_writer(self.notes_prefix, _task_partition()),
        )
        if not state.hasTimedOut:
            yield from call.apply(in_log_order(frames))
        yield from call.finish(state.getCurrentWatermarkMs())

    def configs(self, batch_id: int | None) -> Configs:
        """Return the configurations that the batch uses, in the order of their times, or all if `batch_id` is
        None.
        """
        first, *later = self._epochs_of(batch_id)
        return Configs(first.config, [ConfigChange(epoch.after_ms, epoch.config) for epoch in later])

    def skip(self, batch_id: int | None) -> frozenset[str]:
        """Return the ids of the records that the batch skips, or those of the last epoch if `batch_id` is
        None.
        """
        return self._epochs_of(batch_id)[-1].skip

    def _epochs_of(self, batch_id: int | None) -> list[ConfigEpoch]:
        return [epoch for epoch in self.epochs if batch_id is None or epoch.from_batch <= batch_id]

    def known_outages(self, batch_id: int | None) -> list[Outage]:
        """Return the outages that apply to the batch, or all outages if `batch_id` is None."""
        return [known.outage for known in self.outages if batch_id is None or known.from_batch <= batch_id]


def _task_partition() -> int:
    """Return the number of this task's shuffle partition, or 0 outside of Spark."""
    context = TaskContext.get()
    return context.partitionId() if context else 0


def _batch_id() -> int | None:
    """Return the number of this call's batch, or None outside of Spark."""
    context = TaskContext.get()
    batch = context.getLocalProperty(BATCH_ID_PROPERTY) if context else None
    return None if batch is None else int(batch)


def in_log_order(frames: Iterable[pd.DataFrame]) -> LogOrder:
    """Return the rows in `frames`, in the log's order.

    Their only column, `row`, is encoded by `streaming.query.pipeline.log_row`: `<partition> <offset> <at_ms>
    <size of the key in bytes>`, a line feed, the key and the value.
    """
    rows = LogOrder()
    for frame in frames:
        for encoded in frame["row"].tolist():
            header, _, content = encoded.partition(b"\n")
            partition, offset, at_ms, key_bytes = map(int, header.split(b" "))
            rows.add(LogRow(partition, offset, at_ms, content[:key_bytes], content[key_bytes:]))
    return rows
