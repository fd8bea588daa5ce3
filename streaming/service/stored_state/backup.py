"""Backup of the state while the coordinator runs, and its restoration into a new folder.

A backup is the export of one committed batch. The coordinator has since answered requests that the backup
lacks. If the old checkpoint still has its offsets and outages, the new folder handles these requests again
with the same outcome (`streaming.service.stored_state.continuation`). If it is lost, the first start refuses,
because the topics belong to a coordinator that continued.
"""

import time
from pathlib import Path

from msgspec.structs import replace
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import OwnerRecord
from checkpoints.sealed_file import ExportHeader, write_export
from streaming.service.stored_state.continuation import (
    Cluster,
    Continuation,
    NotContinued,
    continuation,
    no_cluster,
)
from streaming.service.stored_state.moving import StateNotRead, header_at, read_stored, retained_batches

_ATTEMPTS = 3


def back_up(checkpoint: Checkpoint, spark: SparkSession, path: Path) -> tuple[ExportHeader, int]:
    """Write the state after the newest committed batch into a new file, without a lock.

    Return the header and the number of groups. Raises StateNotRead, ExportError, StateError, FolderError.
    """
    for attempt in range(_ATTEMPTS):
        batch = max(retained_batches(checkpoint), default=-1)
        try:
            # Begin with the files that Spark removes first. The record of owners can be read at any time,
            # because owners only add to it.
            header = header_at(checkpoint, batch, _entries_up_to(checkpoint.record(), batch + 1))
            state = read_stored(checkpoint, spark, batch)
        except (FileNotFoundError, StateNotRead) as error:
            if attempt + 1 == _ATTEMPTS:
                raise StateNotRead(f"no state of {checkpoint} could be read: {error}") from error
        else:
            header = replace(header, is_backup=True)
            return header, write_export(path, header, state.groups)
    raise AssertionError("the last attempt raises")


def continue_from(
    header: ExportHeader, old: Checkpoint, cluster: Cluster = no_cluster
) -> tuple[Continuation, int]:
    """Return the work of the old checkpoint's coordinator after a backup, and the time in ms up to which it
    is complete.

    The old checkpoint's folder must be locked. The cluster is queried only if the last plan is damaged.
    Raises NotContinued, FolderError, KafkaError.
    """
    if old.identity() != header.identity:
        raise NotContinued(f"{old} is not the checkpoint that the file was exported from")
    last = old.last_batch("offsets")
    if last < header.batch:
        raise NotContinued(
            f"the last batch that {old} planned is {last}, and the file has the state after batch "
            f"{header.batch}. Import it without the old data folder"
        )
    before, now = (_entries_up_to(record, header.batch) for record in (_record_of(header), old.record()))
    if [(e.settings, e.skip) for e in before.epochs[-1:]] != [(e.settings, e.skip) for e in now.epochs[-1:]]:
        raise NotContinued(f"{old} has another configuration of batch {header.batch} than the file")
    complete_until_ms = int(time.time() * 1000)
    return continuation(old, header.batch, header.committed, cluster), complete_until_ms


def _entries_up_to(record: OwnerRecord, batch: int) -> OwnerRecord:
    """Return the record without entries of later batches."""
    return replace(
        record,
        epochs=[epoch for epoch in record.epochs if epoch.from_batch <= batch],
        outages=[outage for outage in record.outages if outage.from_batch <= batch],
    )


def _record_of(header: ExportHeader) -> OwnerRecord:
    """Return the record of an export, with the original batch numbers."""
    return OwnerRecord([replace(e, from_batch=e.from_batch + header.batch) for e in header.epochs])
