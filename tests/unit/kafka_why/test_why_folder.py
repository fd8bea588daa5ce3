"""`why` from the folder of an observer that writes files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cli import main
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.why.history import HistoryUnavailable, read_folder
from tests.harness.observed_log import REAL_OF_OTHERS, Watched, real_records

HISTORY = Watched().take(real_records(REAL_OF_OTHERS)).history


def write(folder: Path, name: str, batch: int, entries: list[HistoryEntry]) -> None:
    """A file of a batch."""
    day = folder / "events" / "date=2026-11-26"
    day.mkdir(parents=True, exist_ok=True)
    columns = {
        "group_id": [entry.group_id for entry in entries],
        "value": [encode(entry).decode() for entry in entries],
        "batch": [batch] * len(entries),
    }
    pq.write_table(pa.table(columns), day / name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder in which the file with the last name has the first batches."""
    write(tmp_path, "to-000000000003.parquet", 3, HISTORY[:20])
    write(tmp_path, "batch-000000000004.parquet", 4, HISTORY[20:])
    return tmp_path


def test_all_entries_of_a_group_are_read_in_order(folder: Path) -> None:
    found = read_folder(folder, "queue")
    assert found.entries == [entry for entry in HISTORY if entry.group_id == "queue"]


def test_report_is_read_from_the_folder(folder: Path) -> None:
    result = CliRunner().invoke(main, ["why", "counts", "--from-dir", str(folder)])
    assert result.exit_code == 0, result.output
    assert "gave up active 0 2-3 in 190 ms" in result.output


def test_an_unknown_group_and_an_empty_folder_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HistoryUnavailable, match=r"group queues is unknown.*did you mean queue"):
        read_folder(folder, "queues")
    with pytest.raises(HistoryUnavailable, match="has no folder events"):
        read_folder(tmp_path / "events", "queue")


@pytest.mark.parametrize("arguments", [[], ["--bootstrap-servers", "127.0.0.1:1", "--from-dir", "."]])
def test_exactly_one_source_option_is_required(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["why", "g", *arguments])
    assert result.exit_code == 2
    assert "takes one of these options: --bootstrap-servers, --from-dir" in result.output
