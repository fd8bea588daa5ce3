"""The files of an observer's output folder, for an observer that may not write to the cluster. Each batch has
its own file in a table's folder, named by the batch, so a batch that runs again replaces its file. The files
of a folder are merged from time to time. Names of files:

    events/date=2026-11-26/batch-000000000041.parquet    entries of the history of batch 41, by the date (UTC)
    groups/to-000000000040.parquet                       the merged files of batches up to 40: the latest view
                                                         of each group, its state and members
    offsets/...                                          the latest committed offsets, in such files, too
    dead_letters/date=.../...                            records that could not be read or applied

Files are renamed when complete. During a merge a reader may see rows twice, but misses none.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from checkpoints.checkpoint import Checkpoint
from kafka_why.local_files import FolderError, LocalFiles, make_private_folder, sync

MERGE_EACH_BATCHES = 60
_STAGING = "_staging"
_CLAIM = "output-dir"
# Names of files. The group is the number of the batch, or of the last merged batch.
_BATCH_FILE, _MERGED_FILE = re.compile(r"batch-(\d+)\.parquet"), re.compile(r"to-(\d+)\.parquet")


class OutputTable(NamedTuple):
    """A table of the folder.

    With `keys`, it keeps only the latest row of each key, and drops that row if it has no value (a
    tombstone). Without `keys` it keeps all rows, in one folder for each date.
    """

    name: str
    keys: tuple[str, ...]


EVENTS = OutputTable("events", ())
GROUPS = OutputTable("groups", ("group_id",))
OFFSETS = OutputTable("offsets", ("group_id", "topic", "partition"))
DEAD_LETTERS = OutputTable("dead_letters", ())
TABLES = (EVENTS, GROUPS, OFFSETS, DEAD_LETTERS)


def claim_folder(output_dir: Path, data_folder: Path) -> None:
    """Claim `output_dir` for the output of the checkpoint in `data_folder`.

    The claim cannot change after the checkpoint's first batch.

    Raises FolderError if the checkpoint has written elsewhere, or if the folder has other files.
    """
    claim_file, wanted = data_folder / _CLAIM, str(output_dir.absolute())
    claimed = claim_file.read_text() if claim_file.exists() else None
    if claimed == wanted:
        return
    if Checkpoint.at(data_folder).last_batch("commits") >= 0:
        raise FolderError(
            f"{data_folder} belongs to an observer that has written to {claimed or 'topics'}: give another "
            "--data-dir, and the observer reads from the beginning again"
        )
    make_private_folder(output_dir)
    if any(output_dir.iterdir()):
        raise FolderError(f"{output_dir} is not empty, and not this observer's: give another --output-dir")
    LocalFiles(data_folder).write(_CLAIM, wanted.encode())


class OutputFolder:
    """The output folder of one observer. One thread writes the batches, one after the other."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.staging = root / _STAGING  # for the files of the current batch or merge

    def begin(self) -> None:
        """Remove the files of a batch that was interrupted."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def move_batch(self, table: OutputTable, batch_id: int) -> None:
        """Move the batch's files of a table from `staging` to the table's folder, except files without
        rows.
        """
        for path in sorted((self.staging / table.name).rglob("*.parquet")):
            if pq.read_metadata(path).num_rows:
                folder = self._root / path.parent.relative_to(self.staging)
                make_private_folder(folder)
                _move(path, folder / f"batch-{batch_id:012}.parquet")

    def merge(self, end_batch: int) -> None:
        """Merge the files of the batches before `end_batch`, folder by folder. These batches must be
        committed.
        """
        self.staging.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            for folder in _folders(self._root / table.name, table):
                self._merge(table, folder, end_batch)

    def _merge(self, table: OutputTable, folder: Path, end_batch: int) -> None:
        """Merge one folder: its newest merged file, and the files of the later batches before `end_batch`."""
        merged_files = _by_batch(folder, _MERGED_FILE)
        batch_files = {n: path for n, path in _by_batch(folder, _BATCH_FILE).items() if n < end_batch}
        last_merged = max(merged_files, default=-1)
        # An interrupted merge has left files whose rows are in the newest merged file.
        _remove(path for n, path in merged_files.items() if n < last_merged)
        _remove(path for n, path in batch_files.items() if n <= last_merged)
        sources = [path for n, path in merged_files.items() if n == last_merged]
        sources += [path for n, path in batch_files.items() if n > last_merged]
        if len(sources) < 2:
            return
        target = self.staging / "merged.parquet"
        if table.keys:
            _write_latest_rows(sources, table.keys, target)
        else:
            _write_all_rows(sources, target)
        _move(target, folder / f"to-{max(batch_files):012}.parquet")
        _remove(sources)


def _write_all_rows(sources: Sequence[Path], target: Path) -> None:
    """Write all rows of the sources to one file."""
    # A file that an earlier version of the code wrote may lack columns.
    schema = pa.unify_schemas([pq.read_schema(source) for source in sources])
    with pq.ParquetWriter(target, schema) as writer:
        for source in sources:
            for rows in pq.ParquetFile(source).iter_batches():
                writer.write_table(_concatenated([schema.empty_table(), pa.Table.from_batches([rows])]))


def _write_latest_rows(sources: Sequence[Path], keys: Sequence[str], target: Path) -> None:
    """Write the last row of each key to one file, except tombstones. Later sources have later rows."""
    rows = _concatenated([pq.ParquetFile(source).read() for source in sources])
    columns = [rows[name].to_pylist() for name in keys]
    # By key: the number of its last row, which replaces those of earlier rows.
    last_rows = {key: number for number, key in enumerate(zip(*columns, strict=True))}
    latest = rows.take(pa.array(sorted(last_rows.values()), pa.int64()))
    pq.write_table(latest.filter(latest["value"].is_valid()), target)


def _concatenated(tables: Sequence[Any]) -> Any:
    """Return the rows of all tables. Columns that a table lacks are null in its rows."""
    return pa.concat_tables(tables, promote_options="default")


def _folders(root: Path, table: OutputTable) -> Iterator[Path]:
    """Yield the folders with a table's files: for a table of latest rows by key, `root`; for a table without
    keys, each folder `date=...` in `root`.
    """
    if not root.exists():
        return
    has_date_folders = not table.keys
    yield from sorted(root.iterdir()) if has_date_folders else [root]


def _by_batch(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Return the files whose names match `pattern`, by the batch numbers in their names, lowest first."""
    matching = {int(m[1]): path for path in folder.iterdir() if (m := pattern.fullmatch(path.name))}
    return dict(sorted(matching.items()))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _move(path: Path, to: Path) -> None:
    """Move a file durably, because Spark commits the batch next."""
    sync(path)
    path.replace(to)
    sync(to.parent)
