"""`group-coordinator state`: what is refused before Spark starts, in a sentence."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from checkpoints.metadata import Identity
from checkpoints.sealed_file import ExportHeader, write_export
from checkpoints.spark_logs import PlannedBatch
from cli import main
from kafka_why.local_files import ServiceFolder

HEADER = ExportHeader(
    exported_at_ms=1,
    code_version="0.1.0",
    identity=Identity("c", "eu-requests", "t", 2, "00000000-0000-0000-0000-000000000001", 16),
    epochs=[],
    outages=[],
    committed=PlannedBatch({0: 1, 1: 1}, 1, 1),
    next_watermark_ms=1,
    planned=None,
    batch=0,
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["state", *map(str, arguments)])


def export_in(folder: Path, **changes: object) -> Path:
    write_export(folder / "file", replace(HEADER, **changes), [])
    return folder / "file"


@pytest.mark.parametrize("command", [["export", "file"], ["rollback"]])
def test_export_and_rollback_refuse_a_running_coordinator(tmp_path: Path, command: list[str]) -> None:
    folder = ServiceFolder(tmp_path / "coordinator")
    folder.lock()
    result = run(*command, "--data-dir", tmp_path)
    folder.unlock()
    assert result.exit_code == 1
    assert "coordinator is in use by the coordinator with process id" in result.output


def test_data_folder_without_a_coordinator_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    result = run("export", tmp_path / "file", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert "has no folder of a coordinator" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("unread", "arguments", "exit_code", "message"),
    [
        (None, ["--request-partitions", "4"], 1, "Another number needs topics of their own: give --prefix"),
        (None, ["--prefix", "us"], 1, "export with a broker (--bootstrap-servers)"),
        ({0: 0, 1: 7}, ["--prefix", "us"], 1, "7 in partition 1"),
        (None, ["--shards", "3"], 2, "not a power of two"),
        (None, ["--shards", "many"], 2, "'many' is not a whole number"),
    ],
)
def test_import_that_loses_requests_or_has_invalid_shards_is_refused(
    tmp_path: Path, unread: dict[int, int] | None, arguments: list[str], exit_code: int, message: str
) -> None:
    path = export_in(tmp_path, unread=unread)
    result = run("import", path, "--data-dir", tmp_path / "new", *arguments)
    assert result.exit_code == exit_code
    assert message in result.output
    assert not (tmp_path / "new").exists()


def test_import_refuses_a_damaged_file_and_an_existing_folder(tmp_path: Path) -> None:
    path, new = export_in(tmp_path), tmp_path / "new"
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    cut = run("import", path, "--data-dir", new)
    assert (cut.exit_code, "is cut: its last line is missing" in cut.output) == (1, True)
    assert not new.exists()
    path.write_bytes(content)
    (new / "coordinator").mkdir(parents=True)
    there = run("import", path, "--data-dir", new)
    assert (there.exit_code, "coordinator exists. Import into a new folder" in there.output) == (1, True)
