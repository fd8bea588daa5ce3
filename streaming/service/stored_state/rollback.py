"""The rollback of a checkpoint to an earlier batch, and the backup of a running coordinator's state.

After a rollback every later request is handled again, with the same outcome. The new checkpoint is built next
to the old one and replaces it by two renames. The old one is kept.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec.structs import replace
from pyspark.sql import SparkSession

from checkpoints.checkpoint import OWNERS, Checkpoint
from checkpoints.codec import StateError, StoredGroup, decode_group
from checkpoints.metadata import OwnerRecord
from checkpoints.sealed_file import ExportHeader, write_export
from checkpoints.spark_logs import (
    SPARK,
    SparkLogDamaged,
    encode_planned,
    read_next_watermark_ms,
    read_planned,
)
from checkpoints.state_stores import StateStore, is_intact, state_stores
from kafka_why.errors import UserFacingError
from kafka_why.local_files import LocalFiles, make_private_folder
from streaming.service.stored_state.continuation import (
    Cluster,
    Continuation,
    intact_plan,
    plan_continuation,
)
from streaming.service.stored_state.moving import StateNotRead, header_at, read_stored, retained_batches

_QUERY_ID = "metadata"
_NEW = f"{SPARK}.rollback"


@dataclass(frozen=True)
class Rollback:
    """A completed rollback: the state is that after `batch`."""

    batch: int
    last: int  # the last planned batch
    groups: int
    removed: int  # Spark's files that the new checkpoint lacks
    kept: Path  # the folder with the old checkpoint


def roll_back(
    checkpoint: Checkpoint,
    keep: Path,
    starting_spark: Callable[[], AbstractContextManager[SparkSession]],
    *,
    to_batch: int | None = None,
    cluster: Cluster = nullcontext,
) -> Rollback:
    """Roll a checkpoint in a locked local folder back to `to_batch`, by default the newest intact batch.

    `keep` is the path of a new folder on the same file system, for the old checkpoint. The cluster is queried
    only if the last plan is damaged. Raises UserFacingError, FolderError, KafkaError, SparkFailed.
    """
    folder = checkpoint.files.local_path
    if folder is None:
        raise UserFacingError(f"{checkpoint} is not a local folder. Copy it into one, and roll that back")
    spark = folder / SPARK
    if not spark.is_dir():
        raise UserFacingError(
            f"{spark} is missing. If a rollback was interrupted, move the folder '{SPARK}' back from the "
            "folder that it kept, and start the rollback again"
        )
    if keep.exists():
        raise UserFacingError(f"{keep} exists. The old checkpoint is kept in a new folder")
    batch = _choose_batch(checkpoint, spark, to_batch)
    committed = read_planned(checkpoint.files, batch, checkpoint.identity().requests_topic)
    continuation = plan_continuation(checkpoint, batch, committed, cluster)
    shutil.rmtree(folder / _NEW, ignore_errors=True)
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder / _NEW, ignore_errors=True)
        removed = _build_new(checkpoint, spark, folder / _NEW, continuation)
        groups = _check_new(folder / _NEW, checkpoint, batch, starting_spark)
        _swap(checkpoint, folder, keep, continuation)
    return Rollback(batch, continuation.last, groups, removed, keep)


def _choose_batch(checkpoint: Checkpoint, spark: Path, to_batch: int | None) -> int:
    """Return `to_batch`, or the newest intact batch if `to_batch` is None.

    Raises UserFacingError if the checkpoint cannot go back to that batch, or if nothing is damaged and no
    batch was named.
    """
    for path in _always_needed_files(spark):
        if not is_intact(path):
            raise UserFacingError(
                f"{path} is damaged, and every batch needs it. Put it back from a copy, or import a backup"
            )
    committed, stores = retained_batches(checkpoint), state_stores(spark)
    newest_intact = next(
        (b for b in reversed(committed) if _is_batch_intact(checkpoint, spark, stores, b)), None
    )
    if newest_intact is None:
        raise UserFacingError(
            f"no state in {spark} is intact: Spark keeps what the last {len(committed)} batches need, and "
            "the damage is in all of it. Import a backup (docs/state.md)"
        )
    batch = newest_intact if to_batch is None else to_batch
    if batch not in committed:
        raise UserFacingError(
            f"batch {batch} is not kept: it can go back to batches {committed[0]} to {newest_intact}"
        )
    if not _is_batch_intact(checkpoint, spark, stores, batch):
        raise UserFacingError(
            f"the files of batch {batch} are damaged; batch {newest_intact} is the newest intact one"
        )
    if to_batch is None and batch == committed[-1] and _is_sound(checkpoint, spark, stores, batch):
        raise UserFacingError(
            f"nothing is damaged. To go back all the same, name a batch from {committed[0]} to {batch} "
            "(--to-batch)"
        )
    return batch


def _always_needed_files(spark: Path) -> list[Path]:
    """Return the state's schemas, which every batch needs.

    No other file is needed by all: the query may get a new id, and Spark reads the source's first offsets for
    batch 0 only.
    """
    files = spark.glob("state/**/_metadata/**/*")
    return [path for path in files if path.is_file() and not path.name.startswith(".")]


def _is_batch_intact(checkpoint: Checkpoint, spark: Path, stores: Iterable[StateStore], batch: int) -> bool:
    """Return True if the batch's logs are intact, and the state after it can be loaded."""
    topic = checkpoint.identity().requests_topic
    if intact_plan(checkpoint, batch, topic) is None or not is_intact(spark / "commits" / str(batch)):
        return False
    try:
        read_next_watermark_ms(checkpoint.files, batch)
    except SparkLogDamaged:
        return False
    return all(store.can_load(batch + 1) for store in stores)


def _is_sound(checkpoint: Checkpoint, spark: Path, stores: Iterable[StateStore], batch: int) -> bool:
    """Return True if Spark can continue from its newest committed batch, `batch`, without a rollback."""
    topic, last = checkpoint.identity().requests_topic, checkpoint.last_batch("offsets")
    can_start = is_intact(spark / _QUERY_ID) and intact_plan(checkpoint, last, topic) is not None
    return can_start and not any(store.damaged_snapshots(batch + 1) for store in stores)


def _build_new(checkpoint: Checkpoint, spark: Path, new: Path, continuation: Continuation) -> int:
    """Build the new checkpoint from links to the files of the old one.

    Returns the number of files left out.
    """
    left_out = {
        path
        for log in ("offsets", "commits")
        for path in (spark / log).iterdir()
        if path.name.isdigit() and int(path.name) > continuation.batch
    }
    has_id = is_intact(spark / _QUERY_ID)
    if not has_id:
        left_out.add(spark / _QUERY_ID)
    for store in state_stores(spark):
        version = continuation.batch + 1  # the state after that batch
        left_out.update(store.newer(version), store.damaged_snapshots(version))
    # With their checksum files.
    names = {(path.parent, name) for path in left_out for name in (path.name, f".{path.name}.crc")}

    def ignore(folder: str, entries: list[str]) -> list[str]:
        return [name for name in entries if (Path(folder), name) in names]

    # Spark replaces files and never changes one, so both checkpoints can share them.
    shutil.copytree(spark, new, copy_function=os.link, ignore=ignore)
    if not has_id:  # Spark starts no query on a checkpoint without one
        LocalFiles(new).write(_QUERY_ID, msgspec.json.encode({"id": str(uuid4())}))
    if continuation.planned is not None:
        topic = checkpoint.identity().requests_topic
        template = (spark / "offsets" / str(continuation.batch)).read_bytes()
        content = encode_planned(continuation.planned, topic, template)
        LocalFiles(new).write(f"offsets/{continuation.batch + 1}", content)
    return len(left_out)


def _check_new(
    new: Path,
    checkpoint: Checkpoint,
    batch: int,
    starting_spark: Callable[[], AbstractContextManager[SparkSession]],
) -> int:
    """Let Spark read the state of the new checkpoint, and decode every group.

    Returns the number of groups.
    """
    with starting_spark() as session:
        try:
            state = read_stored(checkpoint, session, batch, spark_uri=str(new))
            for stored in state.groups:
                decode_group(stored.group_id, StoredGroup(stored.version, None, stored.group))
        except (StateNotRead, StateError) as error:
            raise UserFacingError(f"the state after batch {batch} is damaged, too: {error}") from error
    return len(state.groups)


def _swap(checkpoint: Checkpoint, folder: Path, keep: Path, continuation: Continuation) -> None:
    """Replace the old checkpoint with the new one.

    A crash meanwhile leaves a folder without Spark's checkpoint, on which no coordinator starts.
    """
    os.sync()
    make_private_folder(keep)
    for name in (OWNERS, "identity.json"):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, keep / name)
        elif (folder / name).exists():
            shutil.copy2(folder / name, keep / name)
    (folder / SPARK).rename(keep / SPARK)
    checkpoint.rewrite(continuation.record)
    (folder / _NEW).rename(folder / SPARK)
    os.sync()


_ATTEMPTS = 3


def back_up(checkpoint: Checkpoint, spark: SparkSession, path: Path) -> tuple[ExportHeader, int]:
    """Write the state after the newest committed batch into a new file, without a lock.

    Return the header and the number of groups. Raises StateNotRead, UserFacingError, StateError, FolderError.
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
    header: ExportHeader, old: Checkpoint, cluster: Cluster = nullcontext
) -> tuple[Continuation, int]:
    """Return the work that the old checkpoint's coordinator planned after a backup, and the time in ms up to
    which this work is complete.

    The old checkpoint's folder must be locked. The cluster is queried only if the last plan is damaged.
    Raises UserFacingError, FolderError, KafkaError.
    """
    if old.identity() != header.identity:
        raise UserFacingError(f"{old} is not the checkpoint that the file was exported from")
    last = old.last_batch("offsets")
    if last < header.batch:
        raise UserFacingError(
            f"the last batch that {old} planned is {last}, and the file has the state after batch "
            f"{header.batch}. Import it without the old data folder"
        )
    # In the header, the batch of the export is batch 0.
    exported = [(e.settings, e.skip) for e in header.epochs if e.from_batch <= 0]
    current = [(e.settings, e.skip) for e in old.record().epochs if e.from_batch <= header.batch]
    if exported[-1:] != current[-1:]:  # the batch used the last of these configurations
        raise UserFacingError(f"{old} has another configuration of batch {header.batch} than the file")
    complete_until_ms = int(time.time() * 1000)
    return plan_continuation(old, header.batch, header.committed, cluster), complete_until_ms


def _entries_up_to(record: OwnerRecord, batch: int) -> OwnerRecord:
    """Return the record without the configurations and outages that begin with later batches."""
    return replace(
        record,
        epochs=[epoch for epoch in record.epochs if epoch.from_batch <= batch],
        outages=[outage for outage in record.outages if outage.from_batch <= batch],
    )
