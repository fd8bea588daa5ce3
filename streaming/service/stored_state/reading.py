"""Reading the state of a checkpoint, even while a coordinator uses it.

Nothing is locked and nothing is written. Spark's files of a committed batch do not change; they are removed
when the batch is old (`minBatchesToRetain`).
"""

from dataclasses import dataclass

import structlog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.export_file import ExportedGroup
from checkpoints.metadata import OwnerRecord, configs_of
from checkpoints.spark_logs import SPARK, read_next_watermark_ms
from state.config import CoordinatorConfig
from streaming.query.seeding import read_state
from streaming.service.stored_state.moving import groups_in

log = structlog.get_logger()
_ATTEMPTS = 3


class StateNotRead(RuntimeError):
    """The state after a batch cannot be read. The message names the readable batches."""


@dataclass(frozen=True)
class StoredState:
    """The groups after a committed batch, and the watermark in ms of the next one."""

    batch: int
    watermark_ms: int
    record: OwnerRecord
    groups: list[ExportedGroup]

    @property
    def config(self) -> CoordinatorConfig:
        """The configuration in force at the watermark."""
        known = [epoch for epoch in self.record.epochs if epoch.from_batch <= self.batch]
        return configs_of(known, CoordinatorConfig()).at(self.watermark_ms)


def retained_batches(checkpoint: Checkpoint) -> range:
    """Return the committed batches whose state Spark keeps: the last 100, or fewer on a new checkpoint."""
    batches = [int(name) for name in checkpoint.files.names(f"{SPARK}/commits") if name.isdigit()]
    return range(min(batches), max(batches) + 1) if batches else range(0)


def read_stored(
    checkpoint: Checkpoint, spark: SparkSession, batch: int | None = None, *, spark_uri: str | None = None
) -> StoredState:
    """Read the state after a batch, or after the newest committed one if it is None.

    If Spark removes the newest one's files meanwhile, the next is read. `spark_uri` is another location of
    Spark's files. Raises StateNotRead, StateError, FolderError.
    """
    kept = retained_batches(checkpoint)
    if not kept:
        raise StateNotRead(f"{checkpoint} has no committed batch, so it has no state")
    if batch is not None and batch not in kept:
        raise StateNotRead(f"the state after batch {batch} is not kept: {_kept_text(kept)}")
    wanted, failure = kept[-1], ""
    for _ in range(1 if batch is not None else _ATTEMPTS):
        wanted = kept[-1] if batch is None else batch
        try:
            # Read the record first: later batches only add to it.
            record = checkpoint.record()
            watermark_ms = read_next_watermark_ms(checkpoint.files, wanted)
            groups = list(groups_in(read_state(spark, spark_uri or checkpoint.spark_uri, wanted)))
            return StoredState(wanted, watermark_ms, record, groups)
        except (PySparkException, FileNotFoundError) as error:
            failure = str(error).strip().partition("\n")[0]
            kept = retained_batches(checkpoint) or kept
            log.debug("the state was not read", batch=wanted, error=failure)
    raise StateNotRead(
        f"the state after batch {wanted} cannot be read, because its files were removed or are damaged; "
        f"{_kept_text(kept)}. Spark says: {failure}"
    )


def _kept_text(kept: range) -> str:
    return f"batches {kept[0]} to {kept[-1]} are kept" if kept else "no batch is kept"
