"""The files of an observer's output folder, for clusters to which an observer may not write. Each batch has
its own file in a table's folder, named by the batch, so a batch that runs again replaces its file. The files
of a folder are merged from time to time. Names of files:

    events/date=2026-11-26/batch-000000000041.parquet    entries of the history of batch 41, by the date (UTC)
    groups/to-000000000040.parquet                       the latest views after batch 40
    offsets/...                                          the latest committed offsets, likewise
    dead_letters/date=.../...                            records that could not be read

Files are renamed when complete. During a merge a reader may see rows twice, but misses none.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from checkpoints.checkpoint import Checkpoint
from kafka_why.local_files import FolderError, LocalFiles, make_private_folder, sync

MERGE_EACH_BATCHES = 60
_STAGING = "_staging"
_CLAIM = "output-dir"
_PART, _MERGED = re.compile(r"batch-(\d+)\.parquet"), re.compile(r"to-(\d+)\.parquet")


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
    """Claim the folder for the output of this checkpoint, from its first batch on.

    Raises FolderError if the checkpoint has written elsewhere, or if the folder has other files.
    """
    claimed, wanted = data_folder / _CLAIM, str(output_dir.absolute())
    before = claimed.read_text() if claimed.exists() else None
    if before == wanted:
        return
    if Checkpoint.at(data_folder).last_batch("commits") >= 0:
        raise FolderError(
            f"{data_folder} belongs to an observer that has written to {before or 'topics'}: give another "
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
        self.staging = root / _STAGING

    def begin(self) -> None:
        """Remove the files of a batch that was interrupted."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def move_batch(self, table: OutputTable, batch_id: int) -> None:
        """Move the batch's files of a table from `staging` to the table's folder, except those without
        rows.
        """
        for path in sorted((self.staging / table.name).rglob("*.parquet")):
            if pq.read_metadata(path).num_rows:
                folder = self._root / path.parent.relative_to(self.staging)
                make_private_folder(folder)
                _move(path, folder / f"batch-{batch_id:012}.parquet")

    def merge(self, before: int) -> None:
        """Merge the files of the batches before `before`, folder by folder. All of these batches are
        committed.
        """
        self.staging.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            for folder in _folders(self._root / table.name, table):
                self._merge(table, folder, before)

    def _merge(self, table: OutputTable, folder: Path, before: int) -> None:
        """Merge one folder: its last merged file, and the files of the later batches before `before`."""
        merged = _numbered(folder, _MERGED)
        parts = {n: path for n, path in _numbered(folder, _PART).items() if n < before}
        last = max(merged, default=-1)
        # An interrupted merge has left files whose rows are in the newest merged file.
        _remove([*(merged[n] for n in merged if n != last), *(parts[n] for n in parts if n <= last)])
        sources = [*(merged[n] for n in merged if n == last), *(parts[n] for n in parts if n > last)]
        if len(sources) < 2:
            return
        target = self.staging / "merged.parquet"
        (_write_all_rows if not table.keys else _write_latest_rows)(sources, table.keys, target)
        _move(target, folder / f"to-{max(parts):012}.parquet")
        _remove(sources)


def _write_all_rows(sources: Sequence[Path], _: Sequence[str], target: Path) -> None:
    """Write all rows of the sources to one file."""
    # A file that an earlier version of the code wrote may lack columns.
    schema = pa.unify_schemas([pq.read_schema(source) for source in sources])
    with pq.ParquetWriter(target, schema) as writer:
        for source in sources:
            for rows in pq.ParquetFile(source).iter_batches():
                writer.write_table(_joined([schema.empty_table(), pa.Table.from_batches([rows])]))


def _write_latest_rows(sources: Sequence[Path], keys: Sequence[str], target: Path) -> None:
    """Write the last row of each key to one file. Later sources have later rows."""
    rows = _joined([pq.ParquetFile(source).read() for source in sources])
    found = dict(zip(zip(*(rows[name].to_pylist() for name in keys), strict=True), count(), strict=False))
    latest = rows.take(pa.array(sorted(found.values()), pa.int64()))
    pq.write_table(latest.filter(latest["value"].is_valid()), target)


def _joined(tables: Sequence[Any]) -> Any:
    return pa.concat_tables(tables, promote_options="default")


def _folders(root: Path, table: OutputTable) -> Iterator[Path]:
    if root.exists():
        yield from [root] if table.keys else sorted(root.iterdir())


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Return the files whose names match `pattern` by their numbers of batches, the lowest first."""
    found = {int(m[1]): path for path in folder.iterdir() if (m := pattern.fullmatch(path.name))}
    return dict(sorted(found.items()))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _move(path: Path, to: Path) -> None:
    """Move a file durably, because Spark commits the batch next."""
    sync(path)
    path.replace(to)
    sync(to.parent)
