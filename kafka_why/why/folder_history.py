"""A group's history from the folder of an observer that writes files (docs/observe.md)."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka_why.why.history import History, HistoryUnavailable, entry_in, why_nothing

_EVENTS = "events"
# Files that were listed can be merged before they are read.
_TRIES = 5
_Filters = list[tuple[str, str, str]] | None


def read_folder(folder: Path, group_id: str) -> History:
    """Return all entries of a group in the folder.

    Raises HistoryUnavailable if there are none, and OSError if the files cannot be read.
    """
    if not (folder / _EVENTS).is_dir():
        raise HistoryUnavailable(
            f"{folder} has no {_EVENTS}: it is not the output of an observer, or is empty"
        )
    rows = _read(folder, ["batch", "value"], [("group_id", "==", group_id)])
    in_order = sorted(rows, key=lambda row: row["batch"])
    entries = [entry for row in in_order for entry in entry_in(row["value"].encode(), group_id)]
    if not entries:
        known = {row["group_id"] for row in _read(folder, ["group_id"], None)}
        raise HistoryUnavailable(why_nothing(group_id, known))
    return History(entries, frozenset(), from_start=True, records_read=len(rows))


def _read(folder: Path, columns: list[str], filters: _Filters) -> list[dict[str, Any]]:
    for _ in range(_TRIES - 1):
        with suppress(FileNotFoundError):
            return _rows(folder, columns, filters)
    return _rows(folder, columns, filters)


def _rows(folder: Path, columns: list[str], filters: _Filters) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq  # a quarter of a second, which other sources need not wait
    except ImportError as error:
        raise HistoryUnavailable(
            f"{folder} has Parquet files, which pyarrow reads: pip install 'kafka-why[parquet]'"
        ) from error

    found: list[dict[str, Any]] = pq.read_table(
        folder / _EVENTS, columns=columns, filters=filters
    ).to_pylist()
    return found
