"""Rows come back in the log's order, from memory or from temporary files."""

from pathlib import Path
from random import Random

import pytest

from streaming.query import admission
from streaming.query.admission import LogOrder, LogRow

ROW_BYTES = 10 + admission.ROW_OVERHEAD_BYTES


def shuffled_rows(count: int) -> list[LogRow]:
    rows = [LogRow(n % 3, n, 1_000 + n, b"k", b"value" + b"%05d" % n) for n in range(count)]
    Random(count).shuffle(rows)
    return rows


@pytest.mark.parametrize(
    "run_max_bytes",
    [admission.RUN_MAX_BYTES, 100 * ROW_BYTES, 7 * ROW_BYTES, ROW_BYTES - 1],
    ids=["in memory", "a few runs", "many runs", "a run a row"],
)
def test_log_rows_are_sorted_by_partition_and_offset(run_max_bytes: int) -> None:
    rows = shuffled_rows(250)
    order = LogOrder(run_max_bytes)
    for row in rows:
        order.add(row)
    found = list(order)
    assert found == sorted(rows)
    assert {type(row) for row in found} == {LogRow}


def test_rows_without_values_count_towards_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The rows of a backlog of empty records need memory too."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    order = LogOrder(4 * admission.ROW_OVERHEAD_BYTES)
    for offset in range(20):
        order.add(LogRow(0, offset, 0, b"", b""))
    assert len(order._runs) == 4
    assert [row.offset for row in order] == list(range(20))


def test_spilled_runs_are_deleted_when_the_reader_stops_early() -> None:
    order = LogOrder(ROW_BYTES)
    for row in shuffled_rows(20):
        order.add(row)
    runs = order._runs
    rows = iter(order)
    assert next(rows).offset == 0
    rows.close()  # type: ignore[attr-defined]
    assert runs
    assert all(run.closed for run in runs)
