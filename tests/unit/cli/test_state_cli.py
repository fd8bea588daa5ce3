"""`group-coordinator state`: what is refused before Spark starts, in a sentence."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from checkpoints.export_file import Header, write_export
from checkpoints.folder import Folder
from checkpoints.metadata import Identity
from checkpoints.spark_logs import PlannedBatch
from cli.state import state

HEADER = Header(
    exported_at_ms=1,
    code_version="0.1.0",
    identity=Identity("c", "eu-requests", "t", 2, "00000000-0000-0000-0000-000000000001", 16),
    epochs=[],
    outages=[],
    committed=PlannedBatch({0: 1, 1: 1}, 1, 1),
    next_watermark_ms=1,
    planned=None,
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(state, [str(argument) for argument in arguments])


def export_in(folder: Path, **changes: object) -> Path:
    write_export(folder / "file", replace(HEADER, **changes), [])
    return folder / "file"


def test_a_running_coordinator_is_not_exported(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "coordinator")
    folder.lock()
    result = run("export", tmp_path / "file", "--data-dir", tmp_path)
    folder.unlock()
    assert result.exit_code == 1
    assert "coordinator is in use by the coordinator with process id" in result.output


def test_a_data_folder_without_a_coordinator_is_refused_and_gets_none(tmp_path: Path) -> None:
    result = run("export", tmp_path / "file", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert "has no folder of a coordinator" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_not_imported(tmp_path: Path) -> None:
    path = export_in(tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    result = run("import", path, "--data-dir", tmp_path / "new")
    assert result.exit_code == 1
    assert "is cut: its last line is missing" in result.output
    assert not (tmp_path / "new").exists()


def test_a_folder_that_exists_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "new" / "coordinator").mkdir(parents=True)
    result = run("import", export_in(tmp_path), "--data-dir", tmp_path / "new")
    assert result.exit_code == 1
    assert "coordinator exists. Import into a new folder" in result.output


@pytest.mark.parametrize(
    ("unread", "arguments", "message"),
    [
        (None, ["--request-partitions", "4"], "Another number needs topics of their own: give --prefix"),
        (None, ["--prefix", "us"], "export with a broker (--bootstrap-servers)"),
        ({0: 0, 1: 7}, ["--prefix", "us"], "7 in partition 1"),
    ],
)
def test_a_move_that_would_lose_requests_is_refused(
    tmp_path: Path, unread: dict[int, int] | None, arguments: list[str], message: str
) -> None:
    path = export_in(tmp_path, unread=unread)
    result = run("import", path, "--data-dir", tmp_path / "new", *arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("shards", "why"), [("3", "not a power of two"), ("many", "'many' is not a number")])
def test_the_number_of_shards_is_checked(tmp_path: Path, shards: str, why: str) -> None:
    result = run("import", export_in(tmp_path), "--data-dir", tmp_path / "new", "--shards", shards)
    assert result.exit_code == 2
    assert why in result.output
