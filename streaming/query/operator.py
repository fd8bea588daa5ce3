"""The stateful operator. Spark calls it for one shard's new rows, or for the shard's next deadline.

Only this package touches Spark's keyed state. Spark gives no guarantees: rows come in any order and in
chunks, and a timeout fires again until it is replaced. The core needs strict order, which `ShardCall`
provides.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints.metadata import KnownOutage
from kafka_why.contract.layout import TopicLayout
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.dispatch import step
from state.inputs import Outage
from state.timeline import StepFunction
from streaming.query.admission import DEFAULT_SHARDS, Admission
from streaming.query.log_order import LogOrder, LogRow
from streaming.query.shard_call import ShardCall, note_writer

BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class ConfigEpoch:
    """A configuration, the first batch that uses it, and the time after which it is in force.

    `skip` are ids of records to dead-letter unread from that batch on.
    """

    from_batch: int
    config: CoordinatorConfig
    skip: frozenset[str] = frozenset()
    after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Operator:
    """The function for applyInPandasWithState. Spark sends it to Python workers, so it must stay small.

    `epochs` are ordered by their batches and times. A batch that runs again after a restart uses the epochs
    of its first run. `shards` is the number of shards of a partition of requests. `notes_prefix` starts the
    paths of the files in which workers note their current request (`streaming.query.shard_call`), None for no
    notes.
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
        call = ShardCall(
            int(key[0]),
            Admission(self.layout, int(key[0]) // self.shards, self.shards, self.skip(batch_id)),
            self.configs(batch_id),
            state,
            outages=self.known_outages(batch_id),
            step=self.step,
            note=note_writer(self.notes_prefix, _task()),
        )
        if not state.hasTimedOut:
            yield from call.apply(in_log_order(frames))
        yield from call.finish(state.getCurrentWatermarkMs())

    def configs(self, batch_id: int | None) -> Configs:
        """Return the configurations that the batch uses, in the order of their times, or all if `batch_id` is
        None.
        """
        first, *later = self._known_epochs(batch_id)
        return Configs(first.config, [ConfigChange(epoch.after_ms, epoch.config) for epoch in later])

    def skip(self, batch_id: int | None) -> frozenset[str]:
        """Return the ids of the records that the batch skips, or those of the last epoch if `batch_id` is
        None.
        """
        return self._known_epochs(batch_id)[-1].skip

    def _known_epochs(self, batch_id: int | None) -> list[ConfigEpoch]:
        return [epoch for epoch in self.epochs if batch_id is None or epoch.from_batch <= batch_id]

    def known_outages(self, batch_id: int | None) -> list[Outage]:
        """Return the outages that precede the batch, or all outages if `batch_id` is None."""
        return [known.outage for known in self.outages if batch_id is None or known.from_batch <= batch_id]


def _task() -> int:
    """Return the number of this task's partition, 0 outside of Spark."""
    context = TaskContext.get()
    return context.partitionId() if context else 0


def _batch_id() -> int | None:
    """Return the number of this call's batch, or None outside of Spark."""
    context = TaskContext.get()
    batch = context.getLocalProperty(BATCH_ID_PROPERTY) if context else None
    return None if batch is None else int(batch)


def in_log_order(frames: Iterable[pd.DataFrame]) -> LogOrder:
    """Unpack the rows: `<partition> <offset> <at_ms> <bytes of the key>`, a line feed, the key and the value
    of the record.
    """
    rows = LogOrder()
    for frame in frames:
        for packed in frame["row"].tolist():
            header, _, content = packed.partition(b"\n")
            partition, offset, at_ms, key_bytes = map(int, header.split(b" "))
            rows.add(LogRow(partition, offset, at_ms, content[:key_bytes], content[key_bytes:]))
    return rows
